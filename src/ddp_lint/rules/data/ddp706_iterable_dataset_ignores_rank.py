from __future__ import annotations

import ast
import re

import libcst as cst

from ddp_lint.findings import Confidence
from ddp_lint.knowledge import table
from ddp_lint.knowledge.tensors import words_of
from ddp_lint.launch.by_rank import Place, assigned_above, is_by_rank, takes_rank
from ddp_lint.launch.callers import CallSite, constructions
from ddp_lint.launch.one_rank import mentions_own_rank
from ddp_lint.launch.ranks import several_ranks
from ddp_lint.rules.base import Rule
from ddp_lint.rules.data.loading import LOADERS, files_of_programs, is_evaluation
from ddp_lint.rules.data.streams import repeating_loader, undivided_stream
from ddp_lint.rules.triggers import Triggers
from ddp_lint.source.imports import dotted_ast
from ddp_lint.source.queries import calls_in, last_name
from ddp_lint.source.tree import subtree
from ddp_lint.view.wraps import argument, assigned_name

# A class that says any of this divides its stream, draws at random, or passes on another dataset's stream.
_SHARE = re.compile(r"rank|world|worker|shard|split_by|num_replicas|seed|random|shuffle|self\.(dataset|ds|source)\b")
#: What a class says that may divide its stream, apart from the workers.
_BY_OTHERS = re.compile(r"rank|world|shard|split_by|num_replicas|process|self\.(dataset|ds|source)\b")
#: Packages that divide the stream of a loader which they are given, and what the code of a program says that does so.
_DIVIDING = frozenset({"accelerate", "transformers", "datasets", "webdataset", "torchdata", "streaming", "ray"})
_DIVIDED = re.compile(
    r"islice\([^)\n]*rank|%\s*\(?[\w.]*(world|num_replicas|num_proc)|split_by_node|IterableDatasetShard"
)
#: What a class finds its data by itself with, and how it takes the part of a worker.
_SOURCES = re.compile(r"\bi?glob\(|listdir\(|scandir\(")
_BETWEEN_WORKERS = re.compile(r"\.id\s*::|%\s*\w+\.num_workers|::\s*\w+\.num_workers")


class IterableDatasetIgnoresRank(Rule):
    """An IterableDataset yields the same stream on every rank and in every worker.

    ## What it does

    Finds a `torch.utils.data.IterableDataset` in code that several ranks run whose `__iter__` and the rest of the
    class never read the rank, the world size or the worker (`--preview`: a stream may be meant to be one); or that
    finds its files itself, or is given what its makers find (`Lines(glob(pattern))`), and divides them between the
    workers alone; or that goes through the part of its rank
    (`files[rank::world_size]`) in each of the workers that its loader has. Also a loader of a stream of Hugging Face
    (`load_dataset(..., streaming=True)`), also inside a dataset of the project, in a program that wraps a model and
    divides the stream nowhere.

    ## Why it breaks

    A DataLoader cannot put a sampler around an iterable. Rank 0 and rank 1, and each of their workers, read the same
    stream: the gradients are averaged over copies of the same samples, and an epoch reads each sample (world size x
    workers) times. There is no error. Where only the workers are left out, each of them yields all of its rank's part:
    an epoch is as many times as long.

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

    Classes that mention the rank, the world size or a shard, that wrap another dataset, that inherit their iteration,
    and files that only one process runs. Of streams that all workers yield alike, classes that mention a worker or a
    seed. Of files divided between the workers, classes that draw by a generator of the process, which may be in another
    state on each rank; it takes `--preview` to see those whose maker gives them something by the rank, whose program
    divides the batches or uses a framework that does, or wraps no model.

    Of parts by the rank, classes with a `while` in their iteration, loaders with one worker or an unknown number of
    them, or with a `worker_init_fn`. Of streams of Hugging Face, those that are shuffled without a seed or get anything
    by the rank, data to evaluate on, and programs with model parallelism or a framework that divides batches.

    ## How to confirm

    `ddp-lint verify train.py`: both ranks read the same samples.

    ## Fix safety

    No automatic fix.

    ## References

    - https://pytorch.org/docs/stable/data.html#torch.utils.data.IterableDataset
    """

    triggers = Triggers(
        "IterableDataset", "DataLoader", "StatefulDataLoader", file=("IterableDataset", "load_dataset", "datasets")
    )
    oracles = ("samples",)
    of_several = True
    confidence = Confidence.MEDIUM

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
                confidence=Confidence.MEDIUM if self._reads_alike(node) else Confidence.LOW,
            )
            return
        if iterate is not None and (repeated := repeating_loader(self.module, node)) is not None:
            self._report_repeated(node, iterate, repeated)
            return
        if iterate is None or self._knows_its_share(node) or several_ranks(self.module) is None:
            return
        self.report(
            iterate.name,
            f"`{node.name.value}` yields the same stream on every rank and worker: all train on copies of "
            "the same samples",
            help="take every n-th item by rank and worker (get_worker_info), or split the sources between them",
            confidence=Confidence.LOW,
        )

    def visit_Call(self, node: cst.Call) -> None:
        if self.module.qualified(node.func) not in LOADERS or self.module.file.is_test:
            return
        if is_evaluation(assigned_name(self.module, node)) or any(
            is_evaluation(self.module.code(a)) for a in node.args
        ):
            return
        stream = undivided_stream(self.module, node)
        if stream is not None and several_ranks(self.module, node) is not None:
            self.report(
                node,
                "this stream is the same on every rank: all train on copies of the same samples",
                notes=["a DataLoader puts no sampler around a stream, and nothing in the program divides it"],
                help="stream = datasets.distributed.split_dataset_by_node(stream, rank=rank, world_size=world_size)",
                confidence=Confidence.MEDIUM,
            )

    def _report_repeated(self, node: cst.ClassDef, iterate: cst.FunctionDef, loader: CallSite) -> None:
        if several_ranks(self.module) is None:
            return
        self.report(
            iterate.name,
            f"`{node.name.value}` divides its stream between the ranks, but not the workers: each yields all of a part",
            labels=[(loader.span, "several workers of one rank")],
            help="take the part of rank * num_workers + worker of world_size * num_workers parts",
            confidence=Confidence.MEDIUM,
        )

    def _divides_between_workers_alone(self, node: cst.ClassDef) -> bool:
        """Whether a class that finds its data itself, or is given what its makers find, gives each worker a part of it,
        has no word of ranks, and draws by no generator but those that it makes."""
        code = self.module.code(node.body)
        if "get_worker_info" not in code or mentions_own_rank(self.module, code):
            return False
        if _SOURCES.search(code) is None and not (self._is_given_found(node) and self._reads_alike(node)):
            return False
        if _BY_OTHERS.search(code.lower().replace("worker", "")) is not None or _BETWEEN_WORKERS.search(code) is None:
            return False
        return not any(isinstance(n, cst.Call) and self._draws_by_process(n) for n in subtree(node.body))

    def _is_given_found(self, node: cst.ClassDef) -> bool:
        """Whether all makers of the dataset give it what they have found themselves (``Lines(glob.glob(pattern))``),
        and nothing that has the rank in it."""
        project, sites = self.module.project, constructions(self.module, node)
        if project is None:
            return False
        for site in sites:
            place = Place(site.facts, site.around)
            given = (*site.node.args, *(keyword.value for keyword in site.node.keywords))
            held = [v for each in given for v in (each, *assigned_above(place, dotted_ast(each), each.lineno))]
            if any(takes_rank(project, each, place) for each in held):
                return False
            if not any(_SOURCES.search(ast.unparse(each)) for each in held):
                return False
        return bool(sites)

    def _draws_by_process(self, call: cst.Call) -> bool:
        """Whether a call draws from a generator of the process, which may be in another state on each rank; or makes
        one that nothing seeds."""
        name = self.module.qualified(call.func)
        if name in table("data")["generators"]:
            return not call.args
        if name == "torch.Generator" or argument(call, None, "generator") is not None:
            return False
        return name.startswith(("random.", "numpy.random.")) or (name.startswith("torch.") and "rand" in name)

    def _reads_alike(self, node: cst.ClassDef) -> bool:
        """Whether the ranks of a program that shares a model are given the same: no maker of the dataset gives it
        anything by the rank, and no framework or file of the program divides what it yields."""
        project = self.module.project
        if project is None or self.module.file.is_test or is_evaluation(" ".join(words_of(node.name.value))):
            return False
        sites = constructions(self.module, node)
        for site in sites:
            given = (*site.node.args, *(keyword.value for keyword in site.node.keywords))
            if any(is_by_rank(project, each, Place(site.facts, site.around)) for each in given):
                return False
        files = list(files_of_programs(self.module))
        if any(not _DIVIDING.isdisjoint(each.imports.packages) or each.file.shows(_DIVIDED) for each in files):
            return False
        return bool(sites) and any(project.texts.shows(each, "wraps") for each in files)

    def _knows_its_share(self, node: cst.ClassDef) -> bool:
        code = self.module.code(node)
        return _SHARE.search(code.lower()) is not None or mentions_own_rank(self.module, code)
