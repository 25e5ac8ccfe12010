from __future__ import annotations

import libcst as cst

from ddp_lint.findings import Confidence
from ddp_lint.knowledge.communication import load
from ddp_lint.launch.one_rank import on_one_rank
from ddp_lint.rules.base import Rule
from ddp_lint.rules.collectives.buffers import LISTED, SIZED, Made, made_by
from ddp_lint.rules.triggers import Triggers
from ddp_lint.source import dotted
from ddp_lint.source.control_flow import exclusive
from ddp_lint.source.imports import dotted_ast
from ddp_lint.source.parsing import parse_expression
from ddp_lint.source.queries import calls_in
from ddp_lint.source.syntax import argument_at
from ddp_lint.source.tree import called, descendants, names_in
from ddp_lint.view.scopes import Binding
from ddp_lint.view.wraps import argument


class BufferUnlikeWhatIsSent(Rule):
    """One rank broadcasts a tensor of another type or length than the others have made room for.

    ## What it does

    Finds a `broadcast` of a tensor that one rank makes in one arm of a test and the others in the other one, where the
    two are of different types (`torch.tensor([3])` is int64, `torch.zeros(1)` float32, `loss.half()` float16) or of
    different sizes that are written out, or where the one that is sent is as long as a list that this rank alone has
    filled, and the others have made a tensor of a fixed size.

    ## Why it breaks

    A broadcast sends bytes: neither type nor size go with them. Measured on two ranks (gloo, torch 2.13): what is
    longer than the room for it (int64 into float32) aborts the rank that receives it, and what is shorter is written to
    the beginning of it, without an error. There ones of float16 are read as 0.0078 and 0.0, a 3 of int32 as 4.2e-45.
    With NCCL a collective of tensors of other sizes hangs.

    ## Example

    ```python
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")

    if dist.get_rank() == 0:
        steps = torch.tensor([3])
    else:
        steps = torch.zeros(1)
    dist.broadcast(steps, src=0)  # <- DDP116
    print(dist.get_rank(), steps)

    dist.destroy_process_group()
    ```

    ## Use instead

    ```python
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")

    if dist.get_rank() == 0:
        steps = torch.tensor([3])
    else:
        steps = torch.zeros(1, dtype=torch.long)
    dist.broadcast(steps, src=0)
    print(dist.get_rank(), steps)

    dist.destroy_process_group()
    ```

    ## When it is silent

    Types that the code does not say; lists whose length is asked for (`len(ids)`), as where they are padded; functions
    that have exchanged something before, perhaps the size.

    ## How to confirm

    `ddp-lint verify train.py`: the ranks call the collective with tensors of another type or shape.

    ## Fix safety

    No automatic fix: either type may be the right one.

    ## References

    - https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.broadcast
    """

    confidence = Confidence.MEDIUM
    triggers = Triggers("broadcast", file=("torch",), tests=False)
    oracles = ("sequence", "stall", "exception")

    def visit_Call(self, node: cst.Call) -> None:
        if called(node) != "broadcast":
            return
        entry = load().collectives.get(self.module.qualified(node.func))
        if entry is None or entry.op != "broadcast" or not entry.payload:
            return
        tensor = argument(node, 0, entry.payload[0])
        pair = self._two_ways(tensor, node) if isinstance(tensor, cst.Name) else None
        if pair is None or self.module.facts is None:
            return
        sent, room = self._made(pair[0]), self._made(pair[1])
        if sent is None or room is None:
            return
        if sent.dtype and room.dtype and sent.dtype != room.dtype:
            self._report(node, pair, f"a tensor of {sent.dtype} is sent into one of {room.dtype}")
        elif sent.elements and room.elements and sent.elements != room.elements:
            self._report(node, pair, f"a tensor of size {sent.elements} is sent into one of size {room.elements}")
        elif room.maker in SIZED and self._is_of_own_length(sent, room, node):
            self._report(node, pair, "a tensor as long as a list of this rank is sent into one of a fixed size")

    def _two_ways(self, tensor: cst.Name, call: cst.Call) -> tuple[Binding, Binding] | None:
        """What the tensor is on the rank that sends it, and on the others."""
        bindings = list(self.module.scopes.last_before(self.module.bindings(tensor), call))[:2]
        if len(bindings) < 2 or any(b.kind != "assign" or b.index or b.value is None for b in bindings):
            return None
        first, second = bindings
        if not exclusive(self.module, first.node, second.node):
            return None
        alone = [on_one_rank(self.module, binding.node) for binding in bindings]
        if alone == [True, False]:
            return first, second
        return (second, first) if alone == [False, True] else None

    def _made(self, binding: Binding) -> Made | None:
        value = parse_expression(self.module.code(binding.value)) if binding.value is not None else None
        return made_by(self.module.facts, value) if value is not None and self.module.facts is not None else None

    def _is_of_own_length(self, sent: Made, room: Made, node: cst.Call) -> bool:
        """Whether the sent tensor is made of a list that is filled by what only the run knows, and nothing compares its
        length, nor has told the others."""
        name = dotted_ast(argument_at(sent.base, 0, "data")) if sent.maker in LISTED else ""
        scope = self.module.scope_of(node)
        if not name or "." in name or not isinstance(scope, cst.FunctionDef):
            return False
        grown = False
        for part in descendants(scope.body):
            if isinstance(part, cst.AugAssign) and dotted(part.target) == name:
                grown = isinstance(part.operator, cst.AddAssign)
            elif isinstance(part, cst.Call) and called(part) == "len" and name in names_in(part):
                return False
            elif isinstance(part, cst.Call) and dotted(part.func) == f"{name}.extend":
                grown = True
        return grown and not any(self._exchanges(call, node) for call in calls_in(scope.body))

    def _exchanges(self, call: cst.Call, later: cst.Call) -> bool:
        entry = load().collectives.get(self.module.qualified(call.func))
        above = self.module.span(call).line < self.module.span(later).line
        return above and entry is not None and entry.kind == "collective" and entry.op != "barrier"

    def _report(self, node: cst.Call, pair: tuple[Binding, Binding], what: str) -> None:
        self.report(
            node,
            f"{what}: it hangs, aborts or leaves wrong numbers",
            notes=["rank 0 sends bytes, and rank 1 takes them for what its own tensor is"],
            labels=[(pair[0].node, "what is sent"), (pair[1].node, "what the other ranks have made for it")],
            help="make both tensors of one type and size; send the size first where it is not known",
        )
