from __future__ import annotations

import re

import libcst as cst

from ddp_lint.findings import Applicability, Confidence, Fix
from ddp_lint.launch.origin import rank_source
from ddp_lint.launch.single_process import counts_one_node, on_one_node
from ddp_lint.launch.started import started_on_one_node
from ddp_lint.rules.base import Rule
from ddp_lint.rules.data.loading import SAMPLER
from ddp_lint.rules.triggers import Triggers
from ddp_lint.view.edits import replace
from ddp_lint.view.wraps import argument

#: Words of the number of all ranks, and of those of one node.
_ALL_RANKS = re.compile(r"world", re.IGNORECASE)
_OF_NODE = re.compile(r"local|device_count|node|gpus", re.IGNORECASE)


class LocalRankAsRank(Rule):
    """The local rank, or this node's GPU count, is passed to `init_process_group` or a sampler as the job's.

    ## What it does

    Finds `init_process_group(rank=...)` with `LOCAL_RANK`, and `world_size=torch.cuda.device_count()` in the same
    call; and `DistributedSampler(rank=...)` with `LOCAL_RANK`, if it divides the data between all ranks of the job.

    ## Why it breaks

    On two nodes two processes register as rank 0, two as rank 1: the rendezvous rejects them or waits for ranks that
    do not exist. On one node that uses only some of its GPUs, `device_count()` is larger than the number of ranks, and
    all of them wait for peers that were never started. A sampler that gets the local rank divides the data into as many
    parts as the job has ranks, of which the second node reads the same as the first: the others are never read, without
    an error.

    ## Example

    ```python
    import datetime
    import os

    import torch
    import torch.distributed as dist

    os.environ["LOCAL_RANK"] = "0"  # what rank 1 reads when it is the first process of the second node
    dist.init_process_group(
        "gloo",
        rank=int(os.environ["LOCAL_RANK"]),  # <- DDP406
        world_size=int(os.environ["WORLD_SIZE"]),
        timeout=datetime.timedelta(seconds=5),
    )
    dist.barrier()
    ```

    ## Use instead

    ```python
    import datetime

    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=5))
    dist.barrier()
    dist.destroy_process_group()
    ```

    torchrun sets `RANK` and `WORLD_SIZE`, and `init_process_group` reads them.

    ## When it is silent

    Ranks that are computed (`node_rank * gpus + local_rank`), and values that are not proven to be the local rank;
    files that set `MASTER_ADDR` to this machine, or mention that `torchrun --standalone` starts them. Of low confidence
    where every command of the project starts the program on one node, and it has no option for more, and where an
    attribute that a sampler gets is the local rank by its name alone. A sampler for the parts of one node's data
    (`num_replicas=local_world_size`).

    ## How to confirm

    `ddp-lint verify train.py`: the ranks stall in `init_process_group`, or it raises.

    ## Fix safety

    Unsafe: `RANK` must be set by the launcher, as torchrun does.

    ## References

    - https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.init_process_group
    """

    confidence = Confidence.HIGH
    triggers = Triggers("init_process_group", "DistributedSampler")
    oracles = ("stall", "exception")

    def visit_Call(self, node: cst.Call) -> None:
        name = self.module.qualified(node.func)
        if name in (SAMPLER, "torch.utils.data.distributed.DistributedSampler"):
            self._visit_sampler(node)
        if name != "torch.distributed.init_process_group":
            return
        given = argument(node, None, "rank")
        source = rank_source(self.module, given, "local_rank") if given is not None else None
        if given is None or source is None or on_one_node(self.module):
            return
        labels: list[tuple[cst.CSTNode, str]] = [(source, "the local rank")] if source is not given else []
        size = argument(node, None, "world_size")
        count = self._device_count(size) if size is not None else None
        if count is not None:
            labels.append((count, "the GPUs of this node, used as the number of ranks of the job"))
        alike = started_on_one_node(self.module.project, self.module.facts)  # both ranks are the same there
        self.report(
            given,
            "the local rank is passed as the job's rank: two nodes have two ranks 0, and the job hangs",
            notes=["the ranks above the number of GPUs of a node never register"],
            labels=labels,
            confidence=Confidence.LOW if alike else None,
            help="omit rank and world_size: torchrun sets RANK and WORLD_SIZE",
            fix=self._fix(given),
        )

    def _visit_sampler(self, node: cst.Call) -> None:
        given, size = argument(node, 2, "rank"), argument(node, 1, "num_replicas")
        if given is None or on_one_node(self.module) or counts_one_node(self.module):
            return
        if size is not None and not self._is_of_job(size):
            return
        source = rank_source(self.module, given, "local_rank")
        by_name = isinstance(given, cst.Attribute) and given.attr.value == "local_rank"
        if source is None and not by_name:
            return
        unsure = source is None or started_on_one_node(self.module.project, self.module.facts)
        self.report(
            given,
            "this sampler's rank is the local one: all nodes read the same parts of the data, the rest is never read",
            labels=[(source, "the local rank")] if source not in (None, given) else [],
            confidence=Confidence.LOW if unsure else None,
            help="leave rank and num_replicas out: the sampler asks the process group",
        )

    def _is_of_job(self, size: cst.BaseExpression) -> bool:
        """Whether a number of parts is that of all ranks, as far as its name and what is assigned to it show."""
        texts = [self.module.code(value) for value in (size, *self.module.assignments(size))]
        return _ALL_RANKS.search(texts[0]) is not None and not any(map(_OF_NODE.search, texts))

    def _device_count(self, size: cst.BaseExpression) -> cst.CSTNode | None:
        for value in (size, *self.module.assignments(size)):
            if isinstance(value, cst.Call) and self.module.qualified(value.func) == "torch.cuda.device_count":
                return value
        return None

    def _fix(self, given: cst.BaseExpression) -> Fix | None:
        if self.module.imports.resolve("os") != "os":
            return None
        edit = replace(self.module, given, 'int(os.environ["RANK"])')
        return Fix("register the global rank", Applicability.UNSAFE, (edit,))
