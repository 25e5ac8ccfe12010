from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import libcst as cst

from ddp_lint.rules.base import Rule
from ddp_lint.rules.triggers import Triggers
from ddp_lint.source import dotted
from ddp_lint.source.tree import descendants, subtree
from ddp_lint.view.accumulation import is_step


@dataclasses.dataclass(frozen=True)
class _Turn:
    """``(counter + offset) % size == 0``; `zero` False: ``!= 0``."""

    counter: str
    size: str
    offset: int
    zero: bool
    node: cst.CSTNode


class NoSyncBeforeStep(Rule):
    """The micro-batch before the optimizer step runs under no_sync: the two conditions count differently.

    ## What it does

    Compares the condition under which gradient accumulation enters `no_sync` with the one under which it steps:
    `no_sync` while `i % n != 0` and a step when `(i + 1) % n == 0` never hold for the same micro-batch.

    ## Why it breaks

    The averaging happens in the backward that runs outside of `no_sync`. Here that is the first micro-batch of each
    round; the gradients that rank 0 and rank 1 add afterwards, up to the step, are not averaged. Measured on gloo
    (torch 2.13): the gradients of the ranks differ at every step, without an error.

    ## Example

    ```python
    import contextlib
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
    for i in range(4):
        with model.no_sync() if i % 2 != 0 else contextlib.nullcontext():  # <- DDP623
            model(torch.randn(8, 4, device=device) + dist.get_rank()).square().mean().backward()
        if (i + 1) % 2 == 0:
            optimizer.step()
            optimizer.zero_grad()

    dist.destroy_process_group()
    ```

    ## Use instead

    ```python
    import contextlib
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
    for i in range(4):
        with model.no_sync() if (i + 1) % 2 != 0 else contextlib.nullcontext():
            model(torch.randn(8, 4, device=device) + dist.get_rank()).square().mean().backward()
        if (i + 1) % 2 == 0:
            optimizer.step()
            optimizer.zero_grad()

    dist.destroy_process_group()
    ```

    ## When it is silent

    Conditions on different counters or sizes; a counter that the code changes itself between the two; a step that some
    other condition allows too.

    ## How to confirm

    `ddp-lint verify train.py`: the gradients of the ranks differ at `optimizer.step()`.

    ## Fix safety

    No automatic fix: which of the two conditions is meant is the author's decision.

    ## References

    - https://pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html#torch.nn.parallel.DistributedDataParallel.no_sync
    """

    triggers = Triggers("no_sync")
    oracles = ("gradient", "parameter", "reference")

    def start(self) -> None:
        self._waiting: list[tuple[cst.Attribute, _Turn]] = []
        self._stepping: list[tuple[cst.Call, list[_Turn]]] = []

    def visit_Attribute(self, node: cst.Attribute) -> None:
        if node.attr.value == "no_sync":
            turn = next((turn for turn in self._turns_of(node) if not turn.zero), None)
            if turn is not None:
                self._waiting.append((node, turn))

    def visit_Call(self, node: cst.Call) -> None:
        if is_step(node) and isinstance(node.func, cst.Attribute):
            self._stepping.append((node, [turn for turn in self._turns_of(node) if turn.zero]))

    def finish(self) -> None:
        for node, turn in self._waiting:
            place = self._place(node)
            here = [turns for call, turns in self._stepping if self._place(call) is place]
            steps = [step for turns in here for step in turns if (step.counter, step.size) == (turn.counter, turn.size)]
            if steps and all(step.offset != turn.offset for step in steps) and not self._changes(place, turn.counter):
                self.report(
                    turn.node,
                    f"no_sync and the step use different iterations of `{turn.counter}`: the gradients of a step "
                    "are not averaged",
                    notes=[
                        "the backward before the step runs under no_sync: rank 0 and rank 1 step with "
                        "their own gradients"
                    ],
                    labels=[(steps[0].node, "steps in this iteration")],
                    help="leave the micro-batch before the step outside no_sync: use one condition for both",
                )

    def _place(self, node: cst.CSTNode) -> cst.CSTNode:
        """The class, or else the function, that both have to be in."""
        return self.module.class_of(node) or self.module.scope_of(node)

    def _turns_of(self, node: cst.CSTNode) -> Iterator[_Turn]:
        """The turns in which a node runs, by the conditions around it."""
        below = node
        for up in self.module.ancestors(node):
            if isinstance(up, (cst.FunctionDef, cst.ClassDef)):
                return
            if isinstance(up, (cst.If, cst.IfExp)) and below is not up.test:
                for turn in _turns(up.test):
                    yield turn if below is up.body else dataclasses.replace(turn, zero=not turn.zero)
            below = up

    def _changes(self, place: cst.CSTNode, counter: str) -> bool:
        """The code counts by itself, so that the two conditions need not see one value; a copy is one."""
        for node in descendants(place):
            if isinstance(node, cst.AugAssign) and _last(node.target) == counter:
                return True
            if isinstance(node, cst.Assign) and any(_last(target.target) == counter for target in node.targets):
                parts = subtree(node.value)
                if any(isinstance(part, cst.BinaryOperation) for part in parts):
                    return True
        return False


def _turns(test: cst.BaseExpression) -> Iterator[_Turn]:
    """The turns in a condition, and in the parts of one that all have to hold."""
    if isinstance(test, cst.BooleanOperation) and isinstance(test.operator, cst.And):
        yield from _turns(test.left)
        yield from _turns(test.right)
    elif isinstance(test, cst.Comparison) and len(test.comparisons) == 1:
        (target,) = test.comparisons
        compared = isinstance(target.comparator, cst.Integer) and target.comparator.value == "0"
        if compared and isinstance(target.operator, (cst.Equal, cst.NotEqual)):
            yield from _turn(test.left, test, zero=isinstance(target.operator, cst.Equal))
    else:
        yield from _turn(test, test, zero=False)


def _turn(rest: cst.BaseExpression, node: cst.CSTNode, *, zero: bool) -> Iterator[_Turn]:
    """``(counter + offset) % size``."""
    if not isinstance(rest, cst.BinaryOperation) or not isinstance(rest.operator, cst.Modulo):
        return
    counter, offset = _plus(rest.left)
    size = rest.right.value if isinstance(rest.right, cst.Integer) else _last(rest.right)
    if counter and size:
        yield _Turn(counter, size, offset, zero, node)


def _plus(node: cst.BaseExpression) -> tuple[str, int]:
    """`i + 1` as the counter's name and what is added to it; '' for anything else."""
    if isinstance(node, cst.BinaryOperation):
        if isinstance(node.operator, cst.Add) and isinstance(node.right, cst.Integer):
            return _last(node.left), int(node.right.value)
        return "", 0
    return _last(node), 0


def _last(node: cst.CSTNode) -> str:
    return dotted(node).rpartition(".")[2]
