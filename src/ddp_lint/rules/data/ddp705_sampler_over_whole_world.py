from __future__ import annotations

import re

import libcst as cst

from ddp_lint.findings import Confidence, Span
from ddp_lint.knowledge import frameworks, table
from ddp_lint.launch.callers import CallSite, call_sites, constructions
from ddp_lint.project.facts import ModuleFacts
from ddp_lint.rules.base import Rule
from ddp_lint.rules.data.loading import is_part_of_rank, is_sampler
from ddp_lint.rules.triggers import Triggers
from ddp_lint.source import dotted
from ddp_lint.source.control_flow import conditions
from ddp_lint.source.queries import last_name
from ddp_lint.source.syntax import walk
from ddp_lint.source.tree import descendants
from ddp_lint.view.wraps import argument, assigned_name

_DDP = "torch.nn.parallel.DistributedDataParallel"
#: Names of a group of data-parallel ranks, of ranks that share a batch, and words of groups of experts, which do not.
_OF_DATA = re.compile(r"(^|_)(dp|data_parallel)(_|$)")
_OF_MODEL = re.compile(r"(\b|_)(tp|pp|tensor_parallel|pipeline_parallel|model_parallel)(\b|_)|\bmp_(size|rank|group)")
_OF_EXPERTS = re.compile(r"expert|moe|(\b|_)ep(\b|_)", re.IGNORECASE)
_WORLD_SIZE = re.compile(r"environ\b.*WORLD_SIZE")


class SamplerOverWholeWorld(Rule):
    """A DistributedSampler divides by the whole world although a model-parallel group needs the same data.

    ## What it does

    Finds a DistributedSampler without `num_replicas` and `rank`, or with those of the whole world, in a file that uses
    tensor, pipeline or model parallelism, or has DDP average over the data-parallel ranks alone
    (`process_group=mesh.dp_group`), and in a function or class that another file calls which knows the number of
    data-parallel ranks. Also a sampler over data that is this rank's part already (`data.shard(world, rank)`,
    `split_dataset_by_node(data, rank, world)`, `Subset(data, range(rank, n, world))`).

    ## Why it breaks

    Without arguments the sampler divides by the world size and takes the global rank. Ranks of one model-parallel
    group then get different samples: rank 0 computes its part of the layers on one batch and rank 1 its part on
    another, and their sum is that of neither batch. There is no error. A sampler over this rank's part divides it
    again: with eight ranks one sample in eight is ever read.

    ## Example

    ```python
    import torch
    import torch.distributed as dist
    from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

    dist.init_process_group("gloo")

    model_parallel_size = 2
    data_parallel_size = dist.get_world_size() // model_parallel_size
    dataset = TensorDataset(torch.arange(16.0).unsqueeze(1))
    sampler = DistributedSampler(dataset, shuffle=False)  # <- DDP705
    for (x,) in DataLoader(dataset, batch_size=8, sampler=sampler):
        print("model-parallel rank", dist.get_rank() % model_parallel_size, x.flatten().tolist())

    dist.destroy_process_group()
    ```

    ## Use instead

    ```python
    import torch
    import torch.distributed as dist
    from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

    dist.init_process_group("gloo")

    model_parallel_size = 2
    data_parallel_size = dist.get_world_size() // model_parallel_size
    dataset = TensorDataset(torch.arange(16.0).unsqueeze(1))
    data_parallel_rank = dist.get_rank() // model_parallel_size
    sampler = DistributedSampler(dataset, num_replicas=data_parallel_size, rank=data_parallel_rank, shuffle=False)
    for (x,) in DataLoader(dataset, batch_size=8, sampler=sampler):
        print("model-parallel rank", dist.get_rank() % model_parallel_size, x.flatten().tolist())

    dist.destroy_process_group()
    ```

    ## When it is silent

    Files without model parallelism, samplers with explicit ranks or that nothing takes; TorchRec, whose
    `DistributedModelParallel` shards only the tables, so that each rank has its own batches.

    ## How to confirm

    `ddp-lint verify train.py`: the ranks of a model-parallel group read different indices.

    ## Fix safety

    No automatic fix: only the project knows its data-parallel rank.

    ## References

    - https://pytorch.org/docs/stable/data.html#torch.utils.data.distributed.DistributedSampler
    """

    triggers = Triggers("DistributedSampler")
    oracles = ("divided",)
    confidence = Confidence.MEDIUM

    def start(self) -> None:
        self._taken: dict[cst.FunctionDef | None, set[str]] = {}

    def visit_Call(self, node: cst.Call) -> None:
        if not is_sampler(self.module, node) or any(arg.star for arg in node.args):
            return
        own_batches = frameworks.packages(lambda framework: framework.batches_per_rank)
        if not own_batches.isdisjoint(self.module.imports.packages):
            return
        told = [each for each in (argument(node, 1, "num_replicas"), argument(node, 2, "rank")) if each is not None]
        whole = not told or (len(told) == 2 and self._is_size_of_world(told[0]))
        if not whole or self._is_left_over(node):
            return
        data = argument(node, 0, "dataset")
        if data is not None and self._is_part(data, node):
            self.report(
                node,
                "the data is this rank's part already: the sampler divides it again, and most is never read",
                notes=["rank 0 reads a part of the part that it took by its number, and so does rank 1"],
                help="leave the division to the sampler alone, or to the program alone",
            )
            return
        here = _uses(self.module.facts, "model_parallelism")
        wrap = None if here else self._wrap_in_part()
        caller = None if here or wrap is not None else self._parallel_caller(node)
        if here or wrap is not None or caller is not None:
            labels: list[tuple[cst.CSTNode | Span, str]] = []
            if caller is not None:
                labels.append((caller.span, "this file knows the data-parallel ranks"))
            if wrap is not None:
                labels.append((wrap, "averages over the data-parallel ranks alone"))
            self.report(
                node,
                "the data is divided by the whole world: ranks of one model-parallel group get different samples",
                notes=["the ranks of the group compute parts of different batches"],
                labels=labels,
                help="pass num_replicas= and rank= of the data-parallel group",
            )

    def _is_part(self, data: cst.BaseExpression, at: cst.Call) -> bool:
        """Whether the data is this rank's part in all runs that come to the sampler."""
        made: cst.BaseExpression | None = data
        if isinstance(data, cst.Name):
            last = next(self.module.scopes.last_before(self.module.bindings(data, at), at), None)
            made = last.value if last is not None and not last.index else None
        if not isinstance(made, cst.Call) or not is_part_of_rank(self.module, made):
            return False
        return set(conditions(self.module, made)) <= set(conditions(self.module, at))

    def _is_size_of_world(self, given: cst.BaseExpression) -> bool:
        """Whether a number is that of all ranks: ``dist.get_world_size()``, ``int(os.environ["WORLD_SIZE"])``."""
        values = self.module.assignments(given) if isinstance(given, cst.Name) else [given]
        value = values[0] if len(values) == 1 else None
        if not isinstance(value, cst.Call):
            return False
        if self.module.qualified(value.func) == "torch.distributed.get_world_size":
            return not value.args
        return dotted(value.func) == "int" and _WORLD_SIZE.search(self.module.code(value)) is not None

    def _wrap_in_part(self) -> cst.Call | None:
        """The wrap of a model whose gradients are averaged over the data-parallel ranks alone (`process_group=`), in a
        file with ranks of tensors or of stages, where all wraps are like that, and no experts are."""
        wraps = self.module.calls_to(frozenset({_DDP}))
        groups = [argument(wrap, None, "process_group") for wrap in wraps]
        named = [last_name(g.func) if isinstance(g, cst.Call) else dotted(g).rpartition(".")[2] for g in groups if g]
        if not wraps or len(named) < len(wraps) or not all(map(_OF_DATA.search, named)):
            return None
        code = self.module.file.code
        return wraps[0] if _OF_MODEL.search(code) and not _OF_EXPERTS.search(code) else None

    def _is_left_over(self, node: cst.Call) -> bool:
        """Whether nothing takes the sampler, so that it divides no data."""
        name, function = assigned_name(self.module, node), self.module.function_of(node)
        return name.isidentifier() and name not in self._taken_in(function)

    def _taken_in(self, function: cst.FunctionDef | None) -> set[str]:
        """The names that a function uses otherwise than to assign to them or to their attributes."""
        if function not in self._taken:
            names = (n for n in descendants(function or self.module.tree) if isinstance(n, cst.Name))
            parents = (cst.AssignTarget, cst.Attribute)
            self._taken[function] = {n.value for n in names if not isinstance(self.module.parent(n), parents)}
        return self._taken[function]

    def _parallel_caller(self, node: cst.Call) -> CallSite | None:
        """A call of the function or class around, in a file in which data-parallel ranks are not all ranks."""
        function, owner = self.module.function_of(node), self.module.class_of(node)
        sites = (
            constructions(self.module, owner)
            if owner is not None
            else call_sites(self.module, function)
            if function is not None
            else ()
        )
        return next((site for site in sites if _uses(site.facts, "data_parallel_ranks")), None)


def _uses(facts: ModuleFacts | None, kind: str) -> bool:
    """Whether the code of a file, and not a comment alone, has one of the names of a kind."""
    words = set(table("data")[kind])
    if facts is None or not any(map(facts.file.holds, words)):
        return False
    names = (getattr(node, field, None) for node in walk(facts.tree) for field in ("id", "attr", "arg", "name"))
    return any(isinstance(name, str) and name.rpartition(".")[2] in words for name in names)
