from __future__ import annotations

import ast
import functools
import itertools
from collections.abc import Iterator

import libcst as cst

from ddp_lint.findings import Confidence
from ddp_lint.rules.base import Rule
from ddp_lint.rules.triggers import Triggers
from ddp_lint.source import dotted
from ddp_lint.source.queries import calls_in
from ddp_lint.source.syntax import calls_below
from ddp_lint.source.tree import called, descendants
from ddp_lint.view.accumulation import calls_of_round, guards, is_backward, is_step, loop_of

_CLIPS = frozenset({"clip_grad_norm_", "clip_grad_value_"})
#: The arguments that tell accelerate how many micro-batches a step is for.
_ROUNDS = frozenset({"gradient_accumulation_steps", "num_steps"})
_PREPARING = frozenset({"prepare", "prepare_optimizer"})
#: What a loop reads or makes that keeps its gradients from round to round, or needs none of them for a step.
_KEEPS = frozenset({"grad", "register_hook", "autograd"})


class GradientsLostBeforeStep(Rule):
    """Gradients are cleared in every micro-batch of one step, or clipped when the step has already used them.

    ## What it does

    Finds `optimizer.zero_grad()` in each round of a loop that runs `backward()`, where the optimizer steps behind the
    loop only; under `with accelerator.accumulate(model)` one that stands before the backward; a backward behind the
    loop over the micro-batches, from the loss of the last one divided by their number; and a clipping of gradients
    right behind the step that uses them, in a loop that clears them before the next one.

    ## Why it breaks

    The step behind the loop has the gradients of the last micro-batch alone: of four, all ranks compute and reduce
    four, and three quarters of the batch take no part. Clipped behind the step, gradients are never clipped: the norm
    that the step took is whatever it was, on rank 0 and on rank 1. Neither raises. Measured on two ranks with gloo
    (torch 2.13): after four micro-batches the gradient is that of the last one.

    The optimizer that `accelerator.prepare` returns skips `zero_grad()` as it skips `step()`, and does both in the
    micro-batch that synchronizes: there, a `zero_grad()` before the backward clears what the other micro-batches have
    left. Behind the step it is right. Measured with accelerate 1: of four, the gradient is a quarter of the last one's.

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
    `zero_grad` under a condition; `accumulate` of programs that nowhere give `gradient_accumulation_steps`, or give 1,
    or whose optimizer nothing prepares; a loss that the loop itself reads, as where it adds it up; a clipping whose
    norm is used, or that another step follows.

    ## How to confirm

    `ddp-lint verify train.py`: gradients were cleared a second time before a step, or cleared after they were clipped.

    ## Fix safety

    No automatic fix: the steps change, and the learning rate may have been tuned for the old ones.

    ## References

    - https://docs.pytorch.org/docs/stable/notes/amp_examples.html#gradient-accumulation
    - https://huggingface.co/docs/accelerate/usage_guides/gradient_accumulation#the-finished-code
    """

    confidence = Confidence.MEDIUM
    triggers = Triggers("zero_grad", "backward", *sorted(_CLIPS), file=("backward",), tests=False)
    oracles = ("cleared",)

    def visit_Call(self, node: cst.Call) -> None:
        if called(node) == "zero_grad":
            step = self._step_behind(node)
            if step is not None:
                self.report(
                    node,
                    f"{self.module.quoted(step.func)} after the loop has the gradients of the last micro-batch only",
                    notes=["all ranks reduce the gradients of the others, and clear them here"],
                    labels=[(step, "steps once for all rounds")],
                    help="call zero_grad() once, before the loop",
                )
                return
            backward = self._backward_of_synchronizing_round(node)
            if backward is not None:
                self.report(
                    node,
                    "zero_grad() comes before backward() under accumulate(): all micro-batches but the last are lost",
                    labels=[(backward, "adds the gradients of the last micro-batch, the only ones left at the step")],
                    notes=["an optimizer of accelerate clears in the micro-batch that steps, and at no other"],
                    help="call zero_grad() after the step",
                )
        elif is_backward(node):
            loop = self._loop_of_losses(node)
            if loop is not None:
                self.report(
                    node,
                    "the loss of the last micro-batch alone is used, divided by the number of all of them",
                    labels=[(loop.iter, "the losses of the other rounds are lost")],
                    help="run backward in each round of the loop",
                )
        elif called(node) in _CLIPS:
            step = self._step_before(node)
            if step is not None:
                self.report(
                    node,
                    "gradients are clipped after the step has used them, and cleared before the next: none is clipped",
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

    # ---- cleared by accelerate

    def _backward_of_synchronizing_round(self, node: cst.Call) -> cst.Call | None:
        """The backward before which a prepared optimizer is cleared in ``with accelerator.accumulate(model)``, where it
        has made no step in the same round."""
        optimizer, parent = dotted(node.func).rpartition(".")[0], self.module.parent(node)
        if not optimizer or not isinstance(parent, cst.Expr) or not self.module.file.holds("accumulate"):
            return None
        loop = loop_of(self.module, node)
        inside = itertools.takewhile(lambda up: up is not loop, self.module.ancestors(node))
        around = next((up for up in inside if isinstance(up, cst.With) and _accumulates(up)), None)
        if around is None or not self._accumulates_for(optimizer, node):
            return None
        if next(guards(self.module, node), None) is not None:
            return None
        calls = [call for call in calls_in(around.body) if loop_of(self.module, call) is loop]
        before, behind = calls[: calls.index(node)], calls[calls.index(node) + 1 :]
        if any(is_backward(call) or dotted(call.func) == f"{optimizer}.step" for call in before):
            return None
        steps = any(dotted(call.func) == f"{optimizer}.step" for call in behind)
        return next((call for call in behind if is_backward(call)), None) if steps else None

    def _accumulates_for(self, optimizer: str, at: cst.Call) -> bool:
        """Whether the file lets accelerate accumulate over several rounds, and prepares an optimizer or gets it."""
        facts = self.module.facts
        if facts is None:
            return False
        calls = list(calls_below(facts.tree))
        given = [keyword.value for call in calls for keyword in call.keywords if keyword.arg in _ROUNDS]
        if all(isinstance(value, ast.Constant) and value.value in (1, None) for value in given):
            return False
        bound = self.module.bindings(optimizer, at)
        prepared = (each for each in bound if isinstance(each.value, cst.Call) and called(each.value) in _PREPARING)
        return any(each.kind == "parameter" for each in bound) or next(prepared, None) is not None

    # ---- computed for the last micro-batch alone

    def _loop_of_losses(self, node: cst.Call) -> cst.For | None:
        """The loop over micro-batches right above a backward from the loss that its last round has left, divided by
        the number of its rounds: ``(loss / n).backward()`` behind ``for _ in range(n)``."""
        given = node.args[0].value if node.args else node.func.value if isinstance(node.func, cst.Attribute) else None
        if isinstance(given, cst.Call) and called(given) == "scale" and given.args:
            given = given.args[0].value
        if not isinstance(given, cst.BinaryOperation) or not isinstance(given.operator, cst.Divide):
            return None
        if not isinstance(given.left, cst.Name):
            return None
        loss, number = given.left, self.module.code(given.right)
        bound = [each for each in self.module.bindings(loss) if self.module.wraps.follows(node, each.node)]
        loop = loop_of(self.module, bound[-1].node) if bound and bound[-1].kind == "assign" else None
        if not isinstance(loop, cst.For) or loop_of(self.module, node) is not loop_of(self.module, loop):
            return None
        if self.module.code(loop.iter) != f"range({number})" and number != f"len({self.module.code(loop.iter)})":
            return None
        inside = [part for part in descendants(loop.body) if isinstance(part, cst.Name) and part.value == loss.value]
        return loop if len(inside) == 1 and not any(map(self._runs_backward, calls_in(loop))) else None

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


def _accumulates(node: cst.With) -> bool:
    """``with accelerator.accumulate(model):``"""
    return any(isinstance(item.item, cst.Call) and called(item.item) == "accumulate" for item in node.items)


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
