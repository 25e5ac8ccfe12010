from __future__ import annotations

import libcst as cst

from ddp_lint.findings import Applicability, Edit, Fix
from ddp_lint.launch.callers import call_sites
from ddp_lint.rules.base import Rule
from ddp_lint.rules.data.loading import LOADERS
from ddp_lint.rules.triggers import Triggers
from ddp_lint.source import dotted

_DEPTH = 8  # steps from what a call gives to the call that makes it


class SetEpochOnLoader(Rule):
    """set_epoch is called on the loader instead of its sampler.

    ## What it does

    Finds `loader.set_epoch(epoch)` where `loader` is a plain `torch.utils.data.DataLoader`.

    ## Why it breaks

    A DataLoader has no `set_epoch`: AttributeError on every rank, or, after a `hasattr` test, no effect on any rank,
    so that each epoch repeats the order of the first.

    ## Example

    ```python
    import torch
    import torch.distributed as dist
    from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

    dist.init_process_group("gloo")

    dataset = TensorDataset(torch.arange(16.0).unsqueeze(1))
    loader = DataLoader(dataset, batch_size=4, sampler=DistributedSampler(dataset))
    for epoch in range(2):
        loader.set_epoch(epoch)  # <- DDP704
        for (x,) in loader:
            print(dist.get_rank(), x.flatten().tolist())

    dist.destroy_process_group()
    ```

    ## Use instead

    ```python
    import torch
    import torch.distributed as dist
    from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

    dist.init_process_group("gloo")

    dataset = TensorDataset(torch.arange(16.0).unsqueeze(1))
    loader = DataLoader(dataset, batch_size=4, sampler=DistributedSampler(dataset))
    for epoch in range(2):
        loader.sampler.set_epoch(epoch)
        for (x,) in loader:
            print(dist.get_rank(), x.flatten().tolist())

    dist.destroy_process_group()
    ```

    ## When it is silent

    `loader.sampler.set_epoch`, samplers, datasets, loaders of other classes (several frameworks give theirs a
    `set_epoch`).

    ## How to confirm

    `ddp-lint verify train.py`: the exception, or equal orders.

    ## Fix safety

    Safe if the loader is built with a DistributedSampler, because the sampler has the method.

    ## References

    - https://pytorch.org/docs/stable/data.html#torch.utils.data.distributed.DistributedSampler
    """

    triggers = Triggers("set_epoch", "DataLoader", file=("set_epoch",))
    oracles = ("exception", "epochs")

    def visit_Call(self, node: cst.Call) -> None:
        if not isinstance(node.func, cst.Attribute) or node.func.attr.value != "set_epoch":
            return
        loader = node.func.value
        made_here = self.module.constructed_by(loader) in LOADERS and not self._rebound(loader)
        if not made_here and not self._is_handed(loader):
            return
        edit = Edit(self.module.span(loader), f"{self.module.code(loader)}.sampler")
        self.report(
            node,
            f"{self.module.quoted(loader)} is a DataLoader, which has no `set_epoch()`: its sampler has",
            notes=["every rank fails here, or repeats the order of the first epoch if the call is guarded"],
            help=f"call {self.module.code(loader)}.sampler.set_epoch(...)",
            fix=Fix("set the sampler's epoch", Applicability.SAFE, (edit,)),
        )

    def _is_handed(self, loader: cst.BaseExpression) -> bool:
        """Whether all who call the function around give it a loader for a parameter."""
        function, project, name = self.module.function_of(loader), self.module.project, dotted(loader)
        if function is None or project is None or [b.kind for b in self.module.bindings(loader)] != ["parameter"]:
            return False
        sites = call_sites(self.module, function)
        given = ((site, site.given(function, name)) for site in sites)
        return bool(sites) and all(
            value is not None and project.types.of(value, site.facts, site.around, None, _DEPTH) in LOADERS
            for site, value in given
        )

    def _rebound(self, loader: cst.BaseExpression) -> bool:
        """Whether the name ever holds anything but a DataLoader: `prepare(loader)` returns one that has set_epoch."""
        values = [(binding.index, binding.value) for binding in self.module.bindings(loader)]
        return any(
            index or not isinstance(v, cst.Call) or self.module.qualified(v.func) not in LOADERS for index, v in values
        )
