from __future__ import annotations

import re

import libcst as cst

from ddp_lint.findings import Confidence
from ddp_lint.launch.ranks import mentions_own_rank
from ddp_lint.rules.base import Rule
from ddp_lint.rules.data.loading import LOADER, framework_loads, is_evaluation
from ddp_lint.rules.triggers import Triggers
from ddp_lint.source.control_flow import exclusive
from ddp_lint.source.wraps import Wrap, argument, assigned_name


class LoaderNotDivided(Rule):
    """The training loader of a DDP model has no sampler, so every rank reads the whole dataset.

    ## What it does

    Finds `DataLoader(..., shuffle=True)` without a sampler in a function that also wraps a model with DDP or FSDP
    and calls `backward()`, where nothing in the file divides the data.

    ## Why it breaks

    Each rank draws from all of the data. With one seed rank 0 and rank 1 train on identical batches and the second
    GPU adds nothing; with different seeds the ranks overlap at random. Either way an epoch costs the world size as
    much as it should. No error. Measured with one seed: identical data (and dropout masks) on both ranks.

    ## Example

    ```python
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel as DDP
    from torch.utils.data import DataLoader, TensorDataset

    dist.init_process_group("gloo")


    def main():
        torch.manual_seed(0)
        dataset = TensorDataset(torch.arange(16.0).unsqueeze(1))
        loader = DataLoader(dataset, batch_size=4, shuffle=True)  # <- DDP707
        model = DDP(torch.nn.Linear(1, 1))
        for (x,) in loader:
            print(dist.get_node_local_rank(), x.flatten().tolist())
            model(x).mean().backward()


    main()
    dist.destroy_process_group()
    ```

    ## Use instead

    ```python
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel as DDP
    from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

    dist.init_process_group("gloo")


    def main():
        torch.manual_seed(0)
        dataset = TensorDataset(torch.arange(16.0).unsqueeze(1))
        loader = DataLoader(dataset, batch_size=4, sampler=DistributedSampler(dataset))
        model = DDP(torch.nn.Linear(1, 1))
        for (x,) in loader:
            print(dist.get_node_local_rank(), x.flatten().tolist())
            model(x).mean().backward()


    main()
    dist.destroy_process_group()
    ```

    ## When it is silent

    Evaluation loaders, loaders with a sampler or batch sampler, files in which anything divides the data (a
    sampler, a shard, a rank in the dataset), loaders handed to a framework that replaces the sampler.

    ## How to confirm

    `ddp-lint verify train.py`: both ranks read overlapping indices.

    ## Fix safety

    No automatic fix: the sampler also takes over the shuffling.

    ## References

    - https://pytorch.org/docs/stable/data.html#torch.utils.data.distributed.DistributedSampler
    """

    triggers = Triggers("DataLoader", file=("DistributedDataParallel", "FullyShardedDataParallel", "fully_shard"))
    oracles = ("samples",)
    confidence = Confidence.MEDIUM

    def visit_Call(self, node: cst.Call) -> None:
        if self.module.qualified(node.func) != LOADER or any(arg.star for arg in node.args):
            return
        shuffle = argument(node, 2, "shuffle")
        if not isinstance(shuffle, cst.Name) or shuffle.value != "True":
            return
        if argument(node, 3, "sampler") is not None or argument(node, 4, "batch_sampler") is not None:
            return
        wrap = self._wrap_beside(node)
        if wrap is None or self._is_divided(node) or framework_loads(self.module):
            return
        if is_evaluation(assigned_name(self.module, node)) or is_evaluation(self.module.code(node.args[0].value)):
            return
        self.report(
            node,
            "no sampler divides this data: every rank reads all of it",
            notes=["rank 0 and rank 1 each read all of it, and an epoch costs the world size as much"],
            labels=[(wrap.call, "the model that it feeds is wrapped here")],
            help="pass sampler=DistributedSampler(dataset) and call set_epoch in the epoch loop",
        )

    def _wrap_beside(self, node: cst.Call) -> Wrap | None:
        here = self.module.function_of(node)
        return next(
            (
                w
                for w in self.module.wraps.all
                if self.module.function_of(w.call) is here and not w.tested and not exclusive(self.module, w.call, node)
            ),
            None,
        )

    def _is_divided(self, node: cst.Call) -> bool:
        """Whether the rest of the file divides data: any of the words that do so, outside of the device set-up."""
        text = re.sub(r"(?m)^(from|import) .*$", "", self.module.file.text)  # an import alone divides nothing
        if re.search(r"Sampler|split_dataset_by_node|split_by_node|\.shard\(|num_replicas", text):
            return True
        function = self.module.function_of(node)
        scope = re.sub(r"device_ids\s*=\s*\[[^\]]*\]", "", self.module.code(function) if function is not None else text)
        by_rank = re.search(r"(rank|world_size)\s*(::|\])|\[\s*\w*rank|rank\s*\*|%\s*\w*world", scope) is not None
        return by_rank or mentions_own_rank(self.module, scope)
