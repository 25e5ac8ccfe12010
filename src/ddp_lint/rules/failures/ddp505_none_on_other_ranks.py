from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ddp_lint.findings import Confidence
from ddp_lint.launch.ranks import first_rank_test, on_one_rank, several_ranks
from ddp_lint.rules.base import Rule
from ddp_lint.rules.triggers import Triggers
from ddp_lint.source import dotted
from ddp_lint.source.control_flow import conditions
from ddp_lint.source.tree import descendants, names_in, subtree


class NoneOnOtherRanks(Rule):
    """A value that only rank 0 has is None on the other ranks, and is used there.

    ## What it does

    Finds `x.method()`, `x.attribute` and `x[i]` on every rank, where `x` is `None` on all ranks but the first because
    of `x = make() if rank == 0 else None`, or `x = None` and an assignment under a test for the rank.

    ## Why it breaks

    Rank 0 continues, rank 1 raises "AttributeError: 'NoneType' object has no attribute", or "TypeError: 'NoneType'
    object is not subscriptable": the job ends with an error that does not occur with one process, or rank 0 waits in
    its next collective for a rank that has ended.

    ## Example

    ```python
    import torch
    import torch.distributed as dist


    class Average:
        def __init__(self):
            self.updates = 0


    def main():
        dist.init_process_group("gloo")
        rank = dist.get_rank()
        average = Average() if rank == 0 else None
        for _ in range(2):
            dist.all_reduce(torch.ones(1))
            average.updates += 1  # <- DDP505
        dist.destroy_process_group()


    main()
    ```

    ## Use instead

    ```python
    import torch
    import torch.distributed as dist


    class Average:
        def __init__(self):
            self.updates = 0


    def main():
        dist.init_process_group("gloo")
        rank = dist.get_rank()
        average = Average() if rank == 0 else None
        for _ in range(2):
            dist.all_reduce(torch.ones(1))
            if average is not None:
                average.updates += 1
        dist.destroy_process_group()


    main()
    ```

    ## When it is silent

    Uses under a condition, except one that counts steps (`step % 10 == 0`); names that other code may assign; names
    that are tested or asserted; attributes of objects; tests.

    ## How to confirm

    `ddp-lint verify train.py`: the error, on the ranks other than 0.

    ## Fix safety

    No automatic fix: what the other ranks should do is not known.

    ## References

    - https://docs.pytorch.org/docs/stable/elastic/run.html
    """

    confidence = Confidence.MEDIUM
    triggers = Triggers(
        "rank",
        "RANK",
        "get_rank",
        "local_rank",
        "global_rank",
        "is_main_process",
        "is_master",
        file=("init_process_group", "DistributedDataParallel", "torchrun", "RANK", "LOCAL_RANK", "Accelerator"),
        tests=False,
    )
    oracles = ("exception",)

    def visit_Assign(self, node: cst.Assign) -> None:
        target = node.targets[0].target
        if len(node.targets) == 1 and isinstance(target, cst.Name) and self._is_of_first_rank(node, target):
            use = next(self._used(node, target.value), None)
            if use is not None and several_ranks(self.module) is not None:
                self._report(use, target, node)

    def _is_of_first_rank(self, node: cst.Assign, target: cst.Name) -> bool:
        """Whether an assignment, with what one rank alone assigns later, leaves None to the other ranks."""
        if (not isinstance(node.value, cst.IfExp) and dotted(node.value) != "None") or on_one_rank(self.module, node):
            return False
        others = [b for b in self.module.bindings(target) if b.node is not node and b.value is not node.value]
        if isinstance(node.value, cst.IfExp):
            test = self.module.code(node.value.test)
            by_first = dotted(node.value.orelse) == "None" and first_rank_test(test, True)
            by_others = dotted(node.value.body) == "None" and first_rank_test(test, False)
            return not others and (by_first or by_others)
        kinds = {binding.kind for binding in others}
        only = all(on_one_rank(self.module, binding.node) for binding in others)
        return kinds == {"assign"} and only

    def _used(self, made: cst.Assign, name: str) -> Iterator[cst.Attribute | cst.Subscript]:
        """Where an attribute or an item of the name is read or set on every rank."""
        function = self.module.function_of(made)
        scope = function.body if function is not None else self.module.tree
        if any(isinstance(n, cst.Assert) and name in names_in(n.test) for n in descendants(scope)):
            return
        around = {test for test, _ in conditions(self.module, made)}
        for node in descendants(scope):
            if (
                isinstance(node, (cst.Attribute, cst.Subscript))
                and dotted(node.value) == name
                and self.module.function_of(node) is function
                and self.module.wraps.follows(node, made)
                and not on_one_rank(self.module, node)
                and not any(isinstance(up, (cst.Try, cst.Lambda)) for up in self.module.ancestors(node))
                and all(test in around or _counts_steps(test, name) for test, _ in conditions(self.module, node))
            ):
                yield node

    def _report(self, use: cst.Attribute | cst.Subscript, target: cst.Name, made: cst.Assign) -> None:
        part = f".{use.attr.value}" if isinstance(use, cst.Attribute) else "[…]"
        error = "AttributeError" if isinstance(use, cst.Attribute) else "TypeError"
        self.report(
            use,
            f"`{target.value}` is None on all ranks but the first: `{part}` raises {error} there",
            notes=["rank 0 continues, rank 1 ends here"],
            labels=[(made, "None on the other ranks")],
            help=f"use it under `if {target.value} is not None:`",
        )


def _counts_steps(test: cst.BaseExpression, name: str) -> bool:
    parts = list(subtree(test))
    modulo = any(isinstance(p, cst.BinaryOperation) and isinstance(p.operator, cst.Modulo) for p in parts)
    return modulo and name not in names_in(test) and not any(isinstance(p, cst.BooleanOperation) for p in parts)
