from __future__ import annotations

import functools
from collections.abc import Iterator

import libcst as cst

from ddp_lint.findings import Confidence
from ddp_lint.rules.base import Rule
from ddp_lint.rules.triggers import Triggers
from ddp_lint.source import dotted
from ddp_lint.source.queries import calls_in
from ddp_lint.source.tree import called, descendants
from ddp_lint.view.accumulation import calls_of_round, guards, is_backward, is_step, loop_of

_CLIPS = frozenset({"clip_grad_norm_", "clip_grad_value_"})
#: What a loop reads or makes that keeps its gradients from round to round, or needs none of them for a step.
_KEEPS = frozenset({"grad", "register_hook", "autograd"})


class GradientsLostBeforeStep(Rule):
    """Gradients are cleared in every micro-batch of one step, or clipped when the step has already used them.

    ## What it does

    Finds `optimizer.zero_grad()` in each round of a loop that runs `backward()`, where the optimizer steps behind the
    loop only, and a clipping of gradients right behind the step that uses them, in a loop that clears them before the
    next one.

    ## Why it breaks

    The step behind the loop has the gradients of the last micro-batch alone: of four, all ranks compute and reduce
    four, and three quarters of the batch take no part. Clipped behind the step, gradients are never clipped: the norm
    that the step took is whatever it was, on rank 0 and on rank 1. Neither raises. Measured on two ranks with gloo
    (torch 2.13): after four micro-batches the gradient is that of the last one.

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
    model = DDP(torch.nn.Linear(4, 4).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        for _ in range(4):
            optimizer.zero_grad()  # <- DDP253
            (model(torch.randn(8, 4, device=device)).square().mean() / 4).backward()
        optimizer.step()
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
    model = DDP(torch.nn.Linear(4, 4).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        for _ in range(4):
            (model(torch.randn(8, 4, device=device)).square().mean() / 4).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    dist.destroy_process_group()
    ```

    ## When it is silent

    Loops that read `.grad` or register hooks, with a backward between them and the step, or with one round; a
    `zero_grad` under a condition; a clipping whose norm is used, or that another step follows.

    ## How to confirm

    `ddp-lint verify train.py`: gradients were cleared a second time before a step, or cleared after they were clipped.

    ## Fix safety

    No automatic fix: the steps change, and the learning rate may have been tuned for the old ones.

    ## References

    - https://docs.pytorch.org/docs/stable/notes/amp_examples.html#gradient-accumulation
    """

    confidence = Confidence.MEDIUM
    triggers = Triggers("zero_grad", *sorted(_CLIPS), file=("backward",), tests=False)
    oracles = ("cleared",)

    def visit_Call(self, node: cst.Call) -> None:
        if called(node) == "zero_grad":
            step = self._step_behind(node)
            if step is not None:
                self.report(
                    node,
                    f"{self.module.quoted(step.func)} behind the loop has the gradients of the last micro-batch alone",
                    notes=["all ranks reduce those of the others, and clear them"],
                    labels=[(step, "steps once for all rounds")],
                    help="call zero_grad() once, before the loop",
                )
        elif called(node) in _CLIPS:
            step = self._step_before(node)
            if step is not None:
                self.report(
                    node,
                    "gradients are clipped when the step has used them, and cleared before the next: none is clipped",
                    labels=[(step, "steps with the gradients as they are")],
                    help="clip right before the step",
                )

    # ---- cleared in every round

    def _step_behind(self, node: cst.Call) -> cst.Call | None:
        """The step of the same optimizer behind the loop of micro-batches around."""
        loop = loop_of(self.module, node)
        optimizer = dotted(node.func).rpartition(".")[0]
        if not isinstance(loop, cst.For) or not optimizer or next(guards(self.module, node), None) is not None:
            return None
        step = self._step_for_all_rounds(loop)
        if step is None or not self._is_of(step, optimizer):
            return None
        runs = (call for call in self._round(loop).calls if self._runs_backward(call))
        return step if any(self.module.wraps.follows(call, node) for call in runs) else None

    def _step_for_all_rounds(self, loop: cst.For) -> cst.Call | None:
        """The step right behind a loop whose rounds run backward and step with nothing."""
        if loop not in self._steps:
            self._steps[loop] = self._find_step(loop)
        return self._steps[loop]

    def _find_step(self, loop: cst.For) -> cst.Call | None:
        every = set(calls_in(loop))
        if any(map(is_step, every)) or not any(map(self._runs_backward, every)) or self._keeps_gradients(loop):
            return None
        behind = (call for call in self._calls_around(loop) if call not in every)
        behind = (call for call in behind if self.module.wraps.follows(call, loop))
        next_one = next((call for call in behind if is_step(call) or self._runs_backward(call)), None)
        if next_one is None or not is_step(next_one):
            return None
        return next_one if loop_of(self.module, next_one) is loop_of(self.module, loop) else None

    @functools.cached_property
    def _steps(self) -> dict[cst.CSTNode, cst.Call | None]:
        return {}

    def _is_of(self, step: cst.Call, optimizer: str) -> bool:
        """``optimizer.step()``, or ``scaler.step(optimizer)``."""
        return dotted(step.func) == f"{optimizer}.step" or any(dotted(arg.value) == optimizer for arg in step.args)

    def _calls_around(self, loop: cst.CSTNode) -> Iterator[cst.Call]:
        function = self.module.function_of(loop)
        return calls_in(function.body if function is not None else self.module.tree)

    def _keeps_gradients(self, loop: cst.For) -> bool:
        return any(
            isinstance(node, cst.Attribute) and node.attr.value in _KEEPS for node in descendants(loop.body)
        ) or self.module.code(loop.iter) in ("range(1)",)

    def _runs_backward(self, call: cst.Call) -> bool:
        return is_backward(call) or called(call) in self._running_backward

    @functools.cached_property
    def _running_backward(self) -> frozenset[str]:
        """The functions of the file that run backward, and step with nothing."""
        functions = {each.name.value: list(calls_in(each.body)) for each in self.module.of_type(cst.FunctionDef)}
        return frozenset(
            name for name, calls in functions.items() if any(map(is_backward, calls)) and not any(map(is_step, calls))
        )

    # ---- clipped behind the step

    def _step_before(self, node: cst.Call) -> cst.Call | None:
        """The step that has used the gradients which are clipped, in a round that clears them."""
        if not isinstance(self.module.parent(node), cst.Expr) or not node.args:
            return None
        round_ = self._round(loop_of(self.module, node))
        step = round_.step_without_clip
        if step is None or round_.places.get(node, -1) < round_.places[step]:
            return None
        return step if set(guards(self.module, node)).issuperset(guards(self.module, step)) else None

    def _round(self, loop: cst.CSTNode) -> _Round:
        if loop not in self._rounds:
            self._rounds[loop] = _Round(calls_of_round(self.module, loop))
        return self._rounds[loop]

    @functools.cached_property
    def _rounds(self) -> dict[cst.CSTNode, _Round]:
        return {}


class _Round:
    """The calls of one round of a loop, with the place of each, and the one step that they make if no clip is before
    it: after all backwards, in a round that clears gradients."""

    def __init__(self, calls: list[cst.Call]) -> None:
        self.calls = calls
        self.places = {call: place for place, call in enumerate(calls)}
        self.step_without_clip = self._step()

    def _step(self) -> cst.Call | None:
        steps = [call for call in self.calls if is_step(call)]
        backwards = [self.places[call] for call in self.calls if is_backward(call)]
        cleared = any(called(call) == "zero_grad" for call in self.calls)
        if len(steps) != 1 or not backwards or not cleared or max(backwards) > self.places[steps[0]]:
            return None
        before = self.calls[: self.places[steps[0]]]
        return None if any(called(call) in _CLIPS for call in before) else steps[0]
