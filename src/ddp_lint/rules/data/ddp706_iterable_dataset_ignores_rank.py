from __future__ import annotations

import re

import libcst as cst

from ddp_lint.findings import Confidence
from ddp_lint.launch.one_rank import mentions_own_rank
from ddp_lint.launch.ranks import several_ranks
from ddp_lint.rules.base import Rule
from ddp_lint.rules.triggers import Triggers
from ddp_lint.source.queries import calls_in, last_name

# A class that says any of this divides its stream, draws at random, or passes on another dataset's stream.
_SHARE = re.compile(r"rank|world|worker|shard|split_by|num_replicas|seed|random|shuffle|self\.(dataset|ds|source)\b")
#: What a class finds its data by itself with, and how it takes the part of a worker.
_SOURCES = re.compile(r"\bi?glob\(|listdir\(|scandir\(")
_BETWEEN_WORKERS = re.compile(r"\.id\s*::|%\s*\w+\.num_workers|::\s*\w+\.num_workers")


class IterableDatasetIgnoresRank(Rule):
    """An IterableDataset yields the same stream on every rank and in every worker.

    ## What it does

    Finds a `torch.utils.data.IterableDataset` in code that several ranks run whose `__iter__` and the rest of the
    class never read the rank, the world size or the worker; or that finds its files itself and divides them between
    the workers alone.

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

    Classes that mention the rank, the world size, a shard, a worker or a seed (those that divide the files that they
    find between the workers apart), that wrap another dataset, that
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
        if iterate is not None and self._divides_between_workers_alone(node) and several_ranks(self.module) is not None:
            self.report(
                iterate.name,
                f"`{node.name.value}` divides its stream between the workers, but not the ranks: all train on copies",
                labels=[
                    (call, "the worker, not the rank")
                    for call in calls_in(iterate.body)
                    if last_name(call.func) == "get_worker_info"
                ][:1],
                help="take the part of rank * num_workers + worker of world_size * num_workers parts",
            )
            return
        if iterate is None or self._knows_its_share(node) or several_ranks(self.module) is None:
            return
        self.report(
            iterate.name,
            f"`{node.name.value}` yields the same stream on every rank and worker: all train on copies of "
            "the same samples",
            help="take every n-th item by rank and worker (get_worker_info), or split the sources between them",
        )

    def _divides_between_workers_alone(self, node: cst.ClassDef) -> bool:
        """Whether a class that finds its data itself gives each worker a part of it, and has no word of ranks."""
        code = self.module.code(node.body)
        if "get_worker_info" not in code or _SOURCES.search(code) is None or mentions_own_rank(self.module, code):
            return False
        return _SHARE.search(code.lower().replace("worker", "")) is None and _BETWEEN_WORKERS.search(code) is not None

    def _knows_its_share(self, node: cst.ClassDef) -> bool:
        code = self.module.code(node)
        return _SHARE.search(code.lower()) is not None or mentions_own_rank(self.module, code)
