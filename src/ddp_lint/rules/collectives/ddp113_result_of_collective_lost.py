from __future__ import annotations

import libcst as cst

from ddp_lint.findings import Applicability, Confidence, Edit, Fix
from ddp_lint.knowledge.communication import Collective, load
from ddp_lint.rules.base import Rule
from ddp_lint.rules.triggers import Triggers
from ddp_lint.source import dotted
from ddp_lint.source.tree import called, descendants, names_in, subtree
from ddp_lint.view.wraps import argument

#: Parameters that take a list of the tensors that a collective fills.
_FILLED = ("tensor_list", "gather_list", "output_tensor_list")
#: How a name is bound to a value of its own, not to a module or a function.
_VARIABLE = frozenset({"assign", "augment", "parameter", "for", "with"})
_NAMES = ("all_reduce", "allreduce", "all_gather", "all_to_all", "broadcast", "gather", "reduce")


class ResultOfCollectiveLost(Rule):
    """What a collective computes is lost: its result is dropped, or all ranks' data go into one tensor.

    ## What it does

    Finds an output list with one tensor several times (`[torch.zeros_like(x)] * world_size`) in `all_gather`, `gather`
    and `all_to_all`; and a call that leaves its argument as it is and returns the result (functional collectives,
    `torch.distributed.nn.functional`, `hvd.allreduce`, `hvd.broadcast`, accelerate's `reduce`), if the result is
    dropped and the argument is used afterwards.

    ## Why it breaks

    The list holds references to one tensor: what comes from rank 1 overwrites what came from rank 0, and every entry is
    the last rank's. A dropped result changes nothing: rank 0 and rank 1 go on with their own values, although the call
    has waited for all ranks. There is no error. Measured on two ranks (gloo, torch 2.13): `[zeros] * 2` holds 2.0 twice
    instead of 1.0 and 2.0, and after the `all_reduce`, `broadcast` and `reduce` of `torch.distributed.nn.functional`
    and of the functional collectives the argument is 1.0 on rank 0 and 2.0 on rank 1.

    ## Example

    ```python
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")

    mine = torch.full((2,), float(dist.get_rank()))
    parts = [torch.zeros_like(mine)] * dist.get_world_size()
    dist.all_gather(parts, mine)  # <- DDP113
    print(dist.get_rank(), parts)

    dist.destroy_process_group()
    ```

    ## Use instead

    ```python
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")

    mine = torch.full((2,), float(dist.get_rank()))
    parts = [torch.zeros_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, mine)
    print(dist.get_rank(), parts)

    dist.destroy_process_group()
    ```

    ## When it is silent

    Lists of objects (`[None] * world_size`), which the call replaces; lists that are changed after they were made; a
    dropped result of what is not used afterwards, as in a warm-up or a barrier (`hvd.allreduce(torch.tensor(0))`);
    calls that work in place (`dist.all_reduce`, `hvd.allreduce_`).

    ## How to confirm

    `ddp-lint verify train.py`: the collective fills one tensor with what comes from several ranks, or leaves its
    argument as it is.

    ## Fix safety

    `[tensor()] * n` becomes `[tensor() for _ in range(n)]`, and a dropped result is assigned to the argument. Both are
    safe: on one process the program does the same.

    ## References

    - https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.all_gather
    - https://horovod.readthedocs.io/en/stable/api.html#horovod.torch.allreduce
    """

    confidence = Confidence.HIGH
    triggers = Triggers(*_NAMES, file=("distributed", "horovod", "accelerate"), tests=False)
    oracles = ("lost",)

    def visit_Call(self, node: cst.Call) -> None:
        name = self.module.qualified(node.func)
        if name.rpartition(".")[2] not in _NAMES and called(node) not in _NAMES:
            return
        entry = load().collectives.get(name or self.module.callee(node))
        if entry is None:
            return
        if entry.out_of_place and isinstance(self.module.parent(node), cst.Expr):
            self._dropped(node, entry)
        for parameter in _FILLED:
            if parameter in entry.takes:
                self._filled(node, argument(node, entry.takes.index(parameter), parameter))

    # ---- one tensor for all ranks

    def _filled(self, node: cst.Call, outputs: cst.BaseExpression | None) -> None:
        values = self.module.bindings(outputs) if isinstance(outputs, cst.Name) else ()
        made = values[0].value if len(values) == 1 and values[0].kind == "assign" and not values[0].index else outputs
        shared = _repeated(made)
        if shared is None or (isinstance(outputs, cst.Name) and self._is_changed(outputs)):
            return
        self.report(
            node,
            f"`{self.module.code(node.func)}` puts what comes from all ranks into one tensor: the last rank's is left",
            notes=["rank 0's data is overwritten by rank 1's in every entry of the list, on both ranks"],
            labels=[(made, "one tensor, several times")] if made is not None and made is not outputs else [],
            help="make a tensor for each rank: `[torch.empty_like(x) for _ in range(world_size)]`",
            fix=self._fix_list(made, shared),
        )

    def _is_changed(self, outputs: cst.Name) -> bool:
        """Whether the function writes to places of a list: ``parts[rank] = mine.clone()``."""
        scope = self.module.scope_of(outputs)
        targets = (node.target for node in descendants(scope) if isinstance(node, cst.AssignTarget))
        return any(isinstance(t, cst.Subscript) and dotted(t.value) == outputs.value for t in targets)

    def _fix_list(self, made: cst.BaseExpression | None, shared: cst.BaseExpression) -> Fix | None:
        """A list that makes its tensor for each place."""
        if not isinstance(made, cst.BinaryOperation) or not isinstance(shared, cst.Call):
            return None
        number = made.left if isinstance(made.right, cst.List) else made.right
        text = f"[{self.module.code(shared)} for _ in range({self.module.code(number)})]"
        return Fix("make a tensor for each rank", Applicability.SAFE, (Edit(self.module.span(made), text),))

    # ---- a result that nothing takes

    def _dropped(self, node: cst.Call, entry: Collective) -> None:
        value = argument(node, 0, entry.takes[0]) if entry.takes else None
        used = self._used_later(node, value) if value is not None else None
        if value is None or used is None:
            return
        called_as, given = self.module.code(node.func), self.module.quoted(value)
        self.report(
            node,
            f"the result of `{called_as}` is dropped, and {given} stays as it was: each rank keeps its own value",
            notes=["rank 0 and rank 1 have communicated for nothing: the call does not change its argument"],
            labels=[(used, "this rank's own value")] if used is not value else [],
            help=f"take what it returns: `x = {called_as}(x)`, or use a call that works in place",
            fix=self._fix_dropped(node, value),
            confidence=Confidence.MEDIUM,
        )

    def _used_later(self, node: cst.Call, value: cst.BaseExpression) -> cst.CSTNode | None:
        """Where what is reduced is read behind the call; the value itself where an object or a collection holds it:
        ``p.grad``, `p` of ``for p in parameters``. None for what the call alone gets: ``torch.zeros(1)``."""
        parts = list(subtree(value))
        bindings = {part.value: self.module.bindings(part) for part in parts if isinstance(part, cst.Name)}
        variables = {name for name, each in bindings.items() if any(b.kind in _VARIABLE for b in each)}
        if not variables or any(isinstance(part, cst.Call) for part in parts):
            return None
        held = any(isinstance(part, (cst.Attribute, cst.Subscript)) for part in parts)
        if held or any(b.kind == "for" for name in variables for b in bindings[name]):
            return value
        return self._read_behind(node, variables)

    def _read_behind(self, node: cst.Call, names: set[str]) -> cst.CSTNode | None:
        """The first mention of one of these names behind a call, if it is no assignment of something else."""
        called_at = self.module.span(node)
        for part in descendants(self.module.scope_of(node)):
            if not isinstance(part, cst.Name) or part.value not in names:
                continue
            here = self.module.span(part)
            if (here.line, here.column) < (called_at.end_line, called_at.end_column):
                continue
            target = self.module.parent(part)
            statement = self.module.parent(target) if isinstance(target, cst.AssignTarget) else None
            assigned_anew = isinstance(statement, cst.Assign) and part.value not in names_in(statement.value)
            return None if assigned_anew else part
        return None

    def _fix_dropped(self, node: cst.Call, value: cst.BaseExpression) -> Fix | None:
        if not isinstance(value, cst.Name):
            return None
        edit = Edit(self.module.span(node), f"{value.value} = {self.module.code(node)}")
        return Fix("take what it returns", Applicability.SAFE, (edit,))


def _repeated(made: cst.BaseExpression | None) -> cst.BaseExpression | None:
    """The tensor that a list holds in each of its places: of ``[t] * n`` and ``[t for _ in range(n)]``."""
    if isinstance(made, cst.BinaryOperation) and isinstance(made.operator, cst.Multiply):
        lists = [side for side in (made.left, made.right) if isinstance(side, cst.List)]
        single = lists[0].elements[0].value if len(lists) == 1 and len(lists[0].elements) == 1 else None
        return single if isinstance(single, (cst.Name, cst.Attribute, cst.Call)) and not _is_none(single) else None
    if isinstance(made, cst.ListComp) and isinstance(made.elt, (cst.Name, cst.Attribute)):
        counted = names_in(made.for_in)
        return None if dotted(made.elt) in counted or dotted(made.elt).partition(".")[0] in counted else made.elt
    return None


def _is_none(value: cst.BaseExpression) -> bool:
    return dotted(value) == "None"
