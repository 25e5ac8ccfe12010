from __future__ import annotations

import re

import libcst as cst

from ddp_lint.findings import Confidence
from ddp_lint.launch.one_rank import mentions_own_rank
from ddp_lint.launch.ranks import several_ranks
from ddp_lint.rules.base import Rule
from ddp_lint.rules.triggers import Triggers

# A class that says any of this divides its stream, draws at random, or passes on another dataset's stream.
_SHARE = re.compile(r"rank|world|worker|shard|split_by|num_replicas|seed|random|shuffle|self\.(dataset|ds|source)\b")


class IterableDatasetIgnoresRank(Rule):
    """An IterableDataset yields the same stream on every rank and in every worker.

    ## What it does

    Finds a `torch.utils.data.IterableDataset` in code that several ranks run whose `__iter__` and the rest of the
    class never read the rank, the world size or the worker.

    ## Why it breaks

    A DataLoader cannot put a sampler around an iterable. Rank 0 and rank 1, and each of their workers, read the same
    stream: the gradients are averaged over copies of the same samples, and an epoch reads each sample (world size x
    workers) times. There is no error.

    ## Example

    ```python
    import torch
    import torch.distributed as dist
    from torch.utils.data import DataLoader, IterableDataset


    class Numbers(IterableDataset):
        def __iter__(self):  # <- DDP706
            yield from torch.arange(8.0)


    dist.init_process_group("gloo")
    for x in DataLoader(Numbers(), batch_size=4):
        print(dist.get_rank(), x.tolist())
    dist.destroy_process_group()
    ```

    ## Use instead

    ```python
    import torch
    import torch.distributed as dist
    from torch.utils.data import DataLoader, IterableDataset, get_worker_info


    class Numbers(IterableDataset):
        def __iter__(self):
            worker = get_worker_info()
            workers, index = (worker.num_workers, worker.id) if worker is not None else (1, 0)
            share = dist.get_rank() * workers + index
            yield from torch.arange(8.0)[share :: dist.get_world_size() * workers]


    dist.init_process_group("gloo")
    for x in DataLoader(Numbers(), batch_size=4):
        print(dist.get_rank(), x.tolist())
    dist.destroy_process_group()
    ```

    ## When it is silent

    Classes that mention the rank, the world size, a shard, a worker or a seed, that wrap another dataset, that
    inherit their iteration, and files that only one process runs.

    ## How to confirm

    `ddp-lint verify train.py`: both ranks read the same samples.

    ## Fix safety

    No automatic fix.

    ## References

    - https://pytorch.org/docs/stable/data.html#torch.utils.data.IterableDataset
    """

    triggers = Triggers("IterableDataset")
    oracles = ("samples",)
    confidence = Confidence.MEDIUM
    default = False

    def visit_ClassDef(self, node: cst.ClassDef) -> None:
        if not any(self.module.qualified(base.value) == "torch.utils.data.IterableDataset" for base in node.bases):
            return
        iterate = next(
            (n for n in node.body.body if isinstance(n, cst.FunctionDef) and n.name.value == "__iter__"), None
        )
        if iterate is None or self._knows_its_share(node) or several_ranks(self.module) is None:
            return
        self.report(
            iterate.name,
            f"`{node.name.value}` yields the same stream on every rank and worker: all train on copies of "
            "the same samples",
            help="take every n-th item by rank and worker (get_worker_info), or split the sources between them",
        )

    def _knows_its_share(self, node: cst.ClassDef) -> bool:
        code = self.module.code(node)
        return _SHARE.search(code.lower()) is not None or mentions_own_rank(self.module, code)
