from __future__ import annotations

import re

import libcst as cst

from ddp_lint.findings import Confidence
from ddp_lint.rules.base import Rule
from ddp_lint.rules.triggers import Triggers
from ddp_lint.rules.wrapping.preparing import prepares
from ddp_lint.source import dotted
from ddp_lint.source.control_flow import opposed
from ddp_lint.source.queries import calls_in, literal_text
from ddp_lint.source.tree import called
from ddp_lint.view.accumulation import calls_of_round, loop_of
from ddp_lint.view.wraps import argument

_ACCELERATOR = "accelerate.Accelerator"
_SCALERS = frozenset({"torch.amp.GradScaler", "torch.cuda.amp.GradScaler", "torch.cuda.amp.grad_scaler.GradScaler"})
#: What scales a loss, wherever it is.
_SCALES = re.compile(r"\.scale\b|scale_loss|NativeScaler")


class UnscaledBackward(Rule):
    """A loss whose backward runs without the scale that the optimizer's step takes out of the gradients.

    ## What it does

    Finds `loss.backward()` where the step is that of a `GradScaler` which scales no loss in the file
    (`scaler.step(optimizer)` without `scaler.scale(loss)`), and `loss.backward()` in place of
    `accelerator.backward(loss)` where an `Accelerator(mixed_precision="fp16")` has prepared the optimizer that steps.

    ## Why it breaks

    The step of a scaler divides the gradients by its scale first. It has none before it has scaled a loss: measured
    with torch 2.13, `scaler.step` ends with the AssertionError "Attempted step but _scale is None", on every rank, in
    the first step. The optimizer that accelerate 1.15 prepares under fp16 steps by such a scaler, too.

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
            loss.backward()
            scaler.step(optimizer)  # <- DDP256
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
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()


    train()
    dist.destroy_process_group()
    ```

    ## When it is silent

    A scaler with `enabled=`, or that is given to a function; files that scale any loss, or call
    `accelerator.backward`; Accelerators whose precision is not written where they are made; optimizers that nothing
    prepares; DeepSpeed and FSDP under accelerate, which scale in other ways; a backward and a step that no run takes
    together.

    ## How to confirm

    `ddp-lint verify train.py`: the exception in the first step (of fp16 under accelerate: on GPUs).

    ## Fix safety

    No automatic fix: `scaler.scale(loss).backward()`, or `accelerator.backward(loss)`.

    ## References

    - https://docs.pytorch.org/docs/stable/amp.html#gradient-scaling
    - https://github.com/lucidrains/med-seg-diff-pytorch/pull/6
    """

    confidence = Confidence.HIGH
    triggers = Triggers(
        "backward", "GradScaler", "Accelerator", "prepare", "step", file=("GradScaler", "Accelerator"), tests=False
    )
    oracles = ("exception",)

    def visit_Call(self, node: cst.Call) -> None:
        if called(node) != "backward" or not isinstance(node.func, cst.Attribute) or not dotted(node.func.value):
            return
        if any(arg.keyword is None for arg in node.args) or _SCALES.search(self.module.file.code):
            return  # it is given the loss, or gradients
        for step in calls_of_round(self.module, loop_of(self.module, node)):
            if called(step) != "step" or opposed(self.module, step, node):
                continue
            if self.module.order[step] < self.module.order[node]:
                continue
            if step.args and self._is_by_scaler(step):
                self._report(node, step, f"scaler.scale({dotted(node.func.value)}).backward()")
            elif not step.args and self._is_by_accelerator(step):
                self._report(node, step, f"accelerator.backward({dotted(node.func.value)})")
            else:
                continue
            return

    def _report(self, node: cst.Call, step: cst.Call, instead: str) -> None:
        self.report(
            step,
            "the step takes the scale of a GradScaler out of the gradients, which scales no loss: it raises",
            notes=["rank 0 and rank 1 end in the first step: `_scale` of the scaler is None"],
            labels=[(node, "the loss is not scaled here")],
            help=f"call {instead}",
        )

    # ---- a scaler of the program's own

    def _is_by_scaler(self, step: cst.Call) -> bool:
        if not isinstance(step.func, cst.Attribute):
            return False
        name, made = dotted(step.func.value), self.module.assignments(step.func.value)
        calls = [value for value in made if isinstance(value, cst.Call)]
        if not name or len(made) != 1 or len(calls) != 1 or self.module.qualified(calls[0].func) not in _SCALERS:
            return False
        enabled = any(arg.star or (arg.keyword and arg.keyword.value == "enabled") for arg in calls[0].args)
        return not enabled and len(calls[0].args) < 5 and not self._is_handed_on(name, step)

    def _is_handed_on(self, name: str, step: cst.Call) -> bool:
        """Whether a call is given the scaler, or the object that has it, and may scale by it."""
        calls = self.module.of_type(cst.Call) if "." in name else calls_in(self.module.scope_of(step))
        return any(dotted(arg.value) in (name, name.partition(".")[0]) for call in calls for arg in call.args)

    # ---- an Accelerator

    def _is_by_accelerator(self, step: cst.Call) -> bool:
        """Whether what steps was prepared by an Accelerator for fp16, whose backward nothing calls."""
        if not isinstance(step.func, cst.Attribute) or self._calls_its_backward():
            return False
        bound = self.module.bindings(step.func.value)
        prepared = [
            each.value for each in bound if isinstance(each.value, cst.Call) and called(each.value) == "prepare"
        ]
        last = bound[-1].value if bound else None
        return last is not None and last in prepared and all(map(self._is_prepared_for_half, prepared))

    def _calls_its_backward(self) -> bool:
        """Whether anything in the file gives a loss to a backward."""
        return any(any(arg.keyword is None for arg in call.args) for call in self.module.calls_named("backward"))

    def _is_prepared_for_half(self, call: cst.BaseExpression) -> bool:
        if (
            not isinstance(call, cst.Call)
            or not isinstance(call.func, cst.Attribute)
            or not prepares(self.module, call)
        ):
            return False
        made = self.module.assignments(call.func.value)
        return len(made) == 1 and all(map(self._is_for_half, made))

    def _is_for_half(self, made: cst.BaseExpression) -> bool:
        if not isinstance(made, cst.Call) or self.module.qualified(made.func) != _ACCELERATOR:
            return False
        precision = argument(made, None, "mixed_precision")
        return precision is not None and literal_text(precision) == "fp16"
