from __future__ import annotations

import bisect
import functools

import libcst as cst

from ddp_lint.findings import Applicability, Edit, Fix, Span
from ddp_lint.launch.helpers import helper_of
from ddp_lint.rules.base import Rule
from ddp_lint.rules.triggers import Triggers
from ddp_lint.source import dotted
from ddp_lint.source.control_flow import opposed
from ddp_lint.source.imports import dotted_ast
from ddp_lint.source.queries import calls_in, line_around
from ddp_lint.source.syntax import calls_below
from ddp_lint.source.tree import called, descendants, subtree

_CLIPS = frozenset(
    f"torch.nn.utils.{where}{name}" for where in ("", "clip_grad.") for name in ("clip_grad_norm_", "clip_grad_value_")
)
_OWN = frozenset({"scale", "step", "update", "get_scale", "is_enabled", "state_dict", "load_state_dict"})


class ClipBeforeUnscale(Rule):
    """Gradients are clipped while a GradScaler's factor is still in them.

    ## What it does

    Finds `torch.nn.utils.clip_grad_norm_` (or `clip_grad_value_`), also in a function of the project that is called for
    it, after `scaler.scale(loss).backward()` with no `scaler.unscale_(optimizer)` between the two. The backward may be
    in another method of the class than the clipping and `self.scaler.step(optimizer)`.

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

    triggers = Triggers("clip_grad_norm_", "clip_grad_value_", "step", file=("scale",))
    oracles = ("scaled",)

    def visit_Call(self, node: cst.Call) -> None:
        if not self._clips(node):
            return
        calls = self._calls_of(self.module.scope_of(node))
        if node not in calls.places:
            return
        here = functools.partial(self._before, calls, node)
        scaled = here(calls.scaling) or self._scaled_by_class(node, calls)
        if scaled is None or not isinstance(scaled.func, cst.Attribute):
            return
        scaler = dotted(scaled.func.value)
        unscaled = here(calls.unscaling(scaler), calls.places.get(scaled, -1))
        inside = (c for c in descendants(scaled) if isinstance(c, cst.Call))
        if unscaled or self._is_given(node, scaler) or any(_may_unscale(c, scaler) for c in inside):
            return
        step = calls.step(scaler)
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

    @functools.cached_property
    def _stepping(self) -> set[cst.CSTNode]:
        """The scopes in which something steps that is given the optimizer, as a scaler is."""
        return {self.module.scope_of(call) for call in self.module.of_type(cst.Call) if _steps(call)}

    def _calls_of(self, scope: cst.FunctionDef | cst.Module) -> _Calls:
        if scope not in self._by_scope:
            ordered = list(calls_in(scope))
            self._by_scope[scope] = _Calls(ordered, [i for i, call in enumerate(ordered) if self._scales(call)])
        return self._by_scope[scope]

    @functools.cached_property
    def _by_scope(self) -> dict[cst.CSTNode, _Calls]:
        return {}

    def _before(self, calls: _Calls, node: cst.Call, places: list[int], after: int = -1) -> cst.Call | None:
        """The last call before `node`, and behind the place `after`, that one run may reach as well."""
        for place in reversed(places[: bisect.bisect_left(places, calls.places[node])]):
            if place <= after:
                return None
            if not opposed(self.module, calls.ordered[place], node):
                return calls.ordered[place]
        return None

    def _clips(self, call: cst.Call) -> bool:
        """Whether a call clips gradients: by itself, or in a function of the project, where a scaler steps after it."""
        if self.module.qualified(call.func) in _CLIPS:
            return True
        if called(call) in _OWN or self.module.scope_of(call) not in self._stepping:
            return False
        helper = helper_of(self.module, call)
        if helper is None:
            return False
        names = [dotted_ast(n.func) for n in calls_below(helper.function)]
        clips = any(name.endswith(("clip_grad_norm_", "clip_grad_value_")) for name in names)
        return clips and not any("unscale" in name or name.endswith((".step", ".scale")) for name in names)

    def _scaled_by_class(self, clip: cst.Call, calls: _Calls) -> cst.Call | None:
        """``self.scaler.scale(loss).backward()`` in another method of the class, none of which unscales, where this one
        clips and steps: ``clip(self.model); self.scaler.step(self.optimizer)``."""
        owner = self.module.class_of(clip)
        later = calls.stepping[bisect.bisect_left(calls.stepping, calls.places[clip]) :] if owner is not None else []
        steps = [c for c in (calls.ordered[place] for place in later) if not opposed(self.module, c, clip)]
        if not steps:
            return None
        of_class = [c for c in self.module.of_type(cst.Call) if self.module.class_of(c) is owner]
        if any("unscale" in called(c) for c in of_class):
            return None
        scalers = {dotted(c.func).rpartition(".")[0] for c in steps}
        scaling = (c for c in of_class if self._scales(c))
        return next((c for c in scaling if dotted(c.func).rpartition(".")[0] in scalers), None)

    def _is_given(self, call: cst.Call, scaler: str) -> bool:
        """Whether a call is given the scaler or what it says: ``clip(model, scale=scaler.get_scale())``."""
        return any(dotted(part) == scaler for arg in call.args for part in subtree(arg.value))

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


class _Calls:
    """The calls of one scope in their order, by what a clip among them has to know: places are indices in it."""

    def __init__(self, ordered: list[cst.Call], scaling: list[int]) -> None:
        self.ordered = ordered
        self.scaling = scaling
        self.places = {call: place for place, call in enumerate(ordered)}
        self.stepping = [place for place, call in enumerate(ordered) if _steps(call)]
        self._unscaling: dict[str, list[int]] = {}
        self._step: dict[str, cst.Call | None] = {}

    def unscaling(self, scaler: str) -> list[int]:
        """Those that may take the factor of this scaler out."""
        if scaler not in self._unscaling:
            self._unscaling[scaler] = [i for i, call in enumerate(self.ordered) if _may_unscale(call, scaler)]
        return self._unscaling[scaler]

    def step(self, scaler: str) -> cst.Call | None:
        """The first step of this scaler."""
        if scaler not in self._step:
            steps = (c for c in self.ordered if called(c) == "step" and dotted(c.func) == f"{scaler}.step")
            self._step[scaler] = next(steps, None)
        return self._step[scaler]


def _steps(call: cst.Call) -> bool:
    """``scaler.step(optimizer)``, which a plain optimizer is not given."""
    return called(call) == "step" and bool(call.args) and "." in dotted(call.func)


def _may_unscale(call: cst.Call, scaler: str) -> bool:
    """`scaler.unscale_(optimizer)`, or any call that is given the scaler."""
    if "unscale" in called(call):
        return True
    if dotted(call.func).startswith(f"{scaler}.") and called(call) in _OWN:
        return False
    return any(dotted(arg.value) == scaler for arg in call.args)
