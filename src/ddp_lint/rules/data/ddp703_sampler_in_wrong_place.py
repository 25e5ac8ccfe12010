from __future__ import annotations

import libcst as cst

from ddp_lint.rules.base import Rule
from ddp_lint.rules.data.loading import LOADERS, is_sampler
from ddp_lint.rules.triggers import Triggers
from ddp_lint.source import dotted
from ddp_lint.source.queries import is_true, literal_text, options
from ddp_lint.source.tree import descendants
from ddp_lint.view.wraps import argument


class SamplerInWrongPlace(Rule):
    """The sampler is passed to the wrong argument of the DataLoader, or together with shuffle.

    ## What it does

    Finds `DataLoader(batch_sampler=DistributedSampler(...))`, the same in options that are passed to a loader
    (`options["batch_sampler"] = DistributedSampler(...)`), and `shuffle=True` next to `sampler=` of a
    DistributedSampler, also one flag for both: `DistributedSampler(data, shuffle=shuffle)`, then
    `DataLoader(data, shuffle=shuffle, sampler=sampler)`.

    ## Why it breaks

    A batch sampler must yield lists of indices; a DistributedSampler yields single ones, and iteration fails on
    every rank ("'int' object is not iterable"). `shuffle=True` excludes a sampler: the constructor raises on every
    rank, but only in the distributed run, because a single process passes `sampler=None`. Measured: ValueError
    "sampler option is mutually exclusive with shuffle".

    ## Example

    ```python
    import torch
    import torch.distributed as dist
    from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

    dist.init_process_group("gloo")

    dataset = TensorDataset(torch.arange(16.0).unsqueeze(1))
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_size=4, shuffle=True, sampler=sampler)  # <- DDP703

    dist.destroy_process_group()
    ```

    ## Use instead

    ```python
    import torch
    import torch.distributed as dist
    from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

    dist.init_process_group("gloo")

    dataset = TensorDataset(torch.arange(16.0).unsqueeze(1))
    sampler = DistributedSampler(dataset, shuffle=True)
    loader = DataLoader(dataset, batch_size=4, sampler=sampler)

    dist.destroy_process_group()
    ```

    ## When it is silent

    `shuffle=sampler is None`, a flag that is set again after the sampler is made, a batch sampler that was built around
    the sampler (`BatchSampler(sampler, ...)`), samplers of unknown origin.

    ## How to confirm

    `ddp-lint verify train.py`: the exception at the line.

    ## Fix safety

    No automatic fix.

    ## References

    - https://pytorch.org/docs/stable/data.html#torch.utils.data.distributed.DistributedSampler
    """

    triggers = Triggers("DataLoader", "StatefulDataLoader", "batch_sampler", file=("DistributedSampler",))
    oracles = ("exception",)

    def visit_Call(self, node: cst.Call) -> None:
        if self.module.qualified(node.func) not in LOADERS:
            return
        batch_sampler = argument(node, 4, "batch_sampler")
        if batch_sampler is not None and self._is_sampler(batch_sampler):
            self._report_batches(node)
        shuffle, sampler = argument(node, 2, "shuffle"), argument(node, 3, "sampler")
        if shuffle is None or sampler is None or not self._is_sampler(sampler):
            return
        flag = dotted(shuffle)
        if is_true(shuffle) or self._hands_on(sampler, flag):
            what = "shuffle=True is" if is_true(shuffle) else f"`{flag}`, which may be true, is"
            self.report(
                node,
                f"{what} combined with a sampler: the constructor raises on every rank of a distributed run",
                help="let the sampler shuffle, and pass shuffle=(sampler is None)",
            )

    def _hands_on(self, sampler: cst.BaseExpression, name: str) -> bool:
        """Whether the sampler was given the same flag: ``DistributedSampler(data, shuffle=shuffle)``. Where it is true,
        the loader raises."""
        makers = [value for value in self.module.assignments(sampler) if isinstance(value, cst.Call)]
        calls = makers or ([sampler] if isinstance(sampler, cst.Call) else [])
        given = [argument(call, 3, "shuffle") for call in calls]
        alike = [flag for flag in given if flag is not None and dotted(flag) == name]
        return name not in ("", "False", "None") and bool(alike) and not self._is_cleared(name, calls)

    def _is_cleared(self, name: str, calls: list[cst.Call]) -> bool:
        """Whether the flag gets another value below the sampler: ``shuffle = False``."""
        function = self.module.function_of(calls[0])
        line = max(self.module.span(call).line for call in calls)
        targets = (n for n in descendants(function or self.module.tree) if isinstance(n, cst.AssignTarget))
        return any(dotted(n.target) == name and self.module.span(n).line > line for n in targets)

    def visit_Assign(self, node: cst.Assign) -> None:
        """``options["batch_sampler"] = DistributedSampler(...)``, options that are handed to a loader elsewhere."""
        key = node.targets[0].target
        if isinstance(key, cst.Subscript) and "batch_sampler" in self.module.code(key) and self._is_sampler(node.value):
            index = key.slice[0].slice
            if isinstance(index, cst.Index) and literal_text(index.value) == "batch_sampler":
                self._report_batches(node)

    def _report_batches(self, node: cst.CSTNode) -> None:
        self.report(
            node,
            "a DistributedSampler as `batch_sampler` yields single indices, not lists: iteration fails on every rank",
            help="pass it as sampler=, or wrap it: BatchSampler(sampler, batch_size, drop_last)",
        )

    def _is_sampler(self, value: cst.BaseExpression) -> bool:
        """A DistributedSampler in all that the expression can be, but for None and what nothing shows."""
        values = self.module.assignments(value) or [value]
        arms = options(values)
        calls = [arm for arm in arms if isinstance(arm, cst.Call)]
        return bool(calls) and all(is_sampler(self.module, call) for call in calls)
