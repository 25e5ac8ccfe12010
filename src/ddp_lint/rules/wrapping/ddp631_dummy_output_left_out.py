from __future__ import annotations

import ast
import collections
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from ddp_lint.findings import Confidence
from ddp_lint.project.parts import inside
from ddp_lint.rules.base import Rule
from ddp_lint.rules.triggers import Triggers
from ddp_lint.source.imports import dotted_ast
from ddp_lint.source.syntax import FunctionNode, names_in, walk

#: A file without it has no dummies. By its first character, for which Python looks quickly; it may not be the last
#: one of a longer number.
_ZERO = re.compile(r"0(?<=\b0)(\.0*)? *\*|\* *0(\.0*)?\b")


class _Unpacked(NamedTuple):
    """A call whose results are unpacked into names; '' for what has none."""

    statement: ast.Assign
    call: ast.Call
    names: Sequence[str]


class DummyOutputLeftOut(Rule):
    """A dummy forward keeps the ranks in step, but one of its outputs does not go into the loss.

    ## What it does

    Finds a module that a function calls twice and that returns several outputs: once for real data, of which all
    outputs are used, and once as a dummy, of which one output is added as `0.0 * x.mean()`, and another one is dropped:
    `embeds, _ = self.visual(zeros)`.

    ## Why it breaks

    The dummy is there for a rank whose batch has no images: its gradients are zero, but they take part. The layers that
    make the output that was dropped get no gradients on that rank. DDP raises `Expected to have finished reduction in
    the prior iteration` in the next step, and with FSDP the ranks that have images wait in the reduction of these
    layers for ever. It shows as soon as one rank has images in its batch and another one has none. Measured on two
    ranks (gloo, torch 2.13): DDP raises, and FSDP2 hangs where these layers are a unit of their own.

    ## Example

    ```python
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel as DDP

    dist.init_process_group("gloo")


    class Tower(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.deep = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, image):
            hidden = self.first(image)
            return hidden, self.deep(hidden)


    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.visual, self.text = Tower(), nn.Linear(4, 4)

        def forward(self, text, image=None):
            hidden = self.text(text)
            if image is not None:
                embeds, deep = self.visual(image)
                return hidden + embeds + deep
            embeds, _ = self.visual(torch.zeros(1, 4))  # <- DDP631
            return hidden + 0.0 * embeds.mean()


    model = DDP(Model())
    for step in range(2):
        image = torch.randn(2, 4) if dist.get_rank() == 0 else None
        model(torch.randn(2, 4), image).sum().backward()
    dist.destroy_process_group()
    ```

    ## Use instead

    ```python
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel as DDP

    dist.init_process_group("gloo")


    class Tower(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.deep = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, image):
            hidden = self.first(image)
            return hidden, self.deep(hidden)


    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.visual, self.text = Tower(), nn.Linear(4, 4)

        def forward(self, text, image=None):
            hidden = self.text(text)
            if image is not None:
                embeds, deep = self.visual(image)
                return hidden + embeds + deep
            embeds, deep = self.visual(torch.zeros(1, 4))
            return hidden + 0.0 * embeds.mean() + 0.0 * deep.mean()


    model = DDP(Model())
    for step in range(2):
        image = torch.randn(2, 4) if dist.get_rank() == 0 else None
        model(torch.randn(2, 4), image).sum().backward()
    dist.destroy_process_group()
    ```

    ## When it is silent

    Dummies of which no output is used: with frozen layers it is their forward alone that keeps the ranks in step;
    outputs that the call for real data drops, too; modules that return one output; calls whose other outputs are used
    for more than the product with zero.

    ## How to confirm

    `ddp-lint verify model.py`: the exception of DDP, or a rank that waits, where the batches of the ranks differ.

    ## Fix safety

    No automatic fix: what the outputs are (a tensor, a list of tensors) is not known.

    ## References

    - https://docs.pytorch.org/docs/stable/notes/ddp.html#internal-design
    """

    confidence = Confidence.MEDIUM
    triggers = Triggers(file=("torch", "transformers"), tests=False)
    oracles = ("exception", "stall", "sequence")

    def finish(self) -> None:
        facts = self.module.facts
        if facts is None or not facts.file.shows(_ZERO):
            return
        for function in walk(facts.tree):
            if isinstance(function, FunctionNode):
                for dummy, place, real in _left_out(function):
                    name = dotted_ast(dummy.call.func)
                    self.report(
                        facts.file.span_of(dummy.call),
                        f"an output of the dummy `{name}()` is left out: the layers behind it get no gradients here",
                        notes=["rank 0 has data for this module and reduces these gradients; rank 1 never does"],
                        labels=[(facts.file.span_of(real.call), f"`{real.names[place]}` of this call is used")],
                        help="add all outputs of the dummy times zero",
                    )


def _left_out(function: ast.AST) -> Iterator[tuple[_Unpacked, int, _Unpacked]]:
    """Dummies, the place of the output that is left out, and the call that takes it."""
    nodes = inside(function)
    calls: dict[str, list[_Unpacked]] = collections.defaultdict(list)
    for node in nodes:
        unpacked = _unpacked(node)
        if unpacked is not None:
            calls[dotted_ast(unpacked.call.func)].append(unpacked)
    several = {name: each for name, each in calls.items() if name and len(each) > 1}
    if not several:
        return
    read = {name for node in nodes for name in _read(node)}
    zeroed = {name for node in nodes for name in _times_zero(node)}
    behind = {unpacked.statement: rest for unpacked, rest in _with_rest(function, several.values())}
    for each in several.values():
        takers: dict[tuple[int, int], _Unpacked] = {}
        for call in each:
            for place, name in enumerate(call.names):
                if name in read and name != "_":
                    takers.setdefault((place, len(call.names)), call)
        for dummy in each:
            used = zeroed.intersection(dummy.names)
            if not used or any(_is_used(name, behind.get(dummy.statement, ())) for name in used):
                continue
            for place, name in enumerate(dummy.names):
                real = takers.get((place, len(dummy.names)))
                if name not in read and real is not None:
                    yield dummy, place, real


def _with_rest(
    function: ast.AST, calls: Iterable[Iterable[_Unpacked]]
) -> Iterator[tuple[_Unpacked, Sequence[ast.stmt]]]:
    """The calls with the statements that follow them in their block."""
    wanted = {unpacked.statement: unpacked for each in calls for unpacked in each}
    for node in (function, *inside(function)):
        blocks = [
            block for name in ("body", "orelse", "finalbody") if isinstance(block := getattr(node, name, None), list)
        ]
        for block in blocks:
            for place, statement in enumerate(block):
                if statement in wanted:
                    yield wanted[statement], block[place + 1 :]


def _is_used(name: str, statements: Iterable[ast.stmt]) -> bool:
    """Whether statements read a name otherwise than times zero before one binds it again: it is no dummy's output."""
    for statement in statements:
        nodes = list(walk(statement))
        nothing = {id(each) for node in nodes for side in _zero_sides(node) for each in walk(side)}
        if any(name in _read(node) and id(node) not in nothing for node in nodes):
            return True
        if any(isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Store) for node in nodes):
            return False
    return False


def _read(node: ast.AST) -> Sequence[str]:
    return (node.id,) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) else ()


def _unpacked(node: ast.AST) -> _Unpacked | None:
    if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Call) or len(node.targets) != 1:
        return None
    target = node.targets[0]
    return _Unpacked(node, node.value, [*map(dotted_ast, target.elts)]) if isinstance(target, ast.Tuple) else None


def _times_zero(node: ast.AST) -> frozenset[str]:
    """The names in what is multiplied by zero: ``0.0 * x.mean()``."""
    return frozenset().union(*map(names_in, _zero_sides(node)))


def _zero_sides(node: ast.AST) -> Sequence[ast.expr]:
    """What is multiplied by zero."""
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Mult):
        return ()
    sides = (node.left, node.right), (node.right, node.left)
    return [other for one, other in sides if isinstance(one, ast.Constant) and one.value == 0]
