from __future__ import annotations

import ast
import functools
import re

import libcst as cst

from ddp_lint.findings import Confidence, Span
from ddp_lint.knowledge.frameworks import wrappers
from ddp_lint.launch.by_rank import Place
from ddp_lint.launch.callers import CallSite, call_sites
from ddp_lint.launch.one_process import as_one_process
from ddp_lint.launch.one_rank import mentions_own_rank
from ddp_lint.launch.random_state import is_alike
from ddp_lint.launch.ranks import several_ranks
from ddp_lint.rules.base import Rule
from ddp_lint.rules.data.loading import (
    LOADERS,
    files_of_programs,
    framework_loads,
    is_evaluation,
    is_made_by_rank,
    is_sampler,
)
from ddp_lint.rules.data.own_orders import is_shared_undivided, own_order
from ddp_lint.rules.data.streams import is_for_one_group
from ddp_lint.rules.data.trainers import trainers_of
from ddp_lint.rules.triggers import Triggers
from ddp_lint.source import dotted
from ddp_lint.source.control_flow import conditions, exclusive
from ddp_lint.source.queries import calls_in, is_true
from ddp_lint.source.syntax import FunctionNode, calls_below, function_at, walk
from ddp_lint.source.tree import called, descendants, parameters_of
from ddp_lint.view.as_ast import as_ast
from ddp_lint.view.wraps import Wrap, argument, assigned_name

_DIVIDES = re.compile(
    r"(?<!\bRandom)Sampler|split_dataset_by_node|split_by_node|partition_dataset\(|\.shard\(|num_replicas"
)
_RANDOM = "torch.utils.data.RandomSampler"
_WEIGHTED = frozenset({"torch.utils.data.WeightedRandomSampler", "torch.utils.data.sampler.WeightedRandomSampler"})
#: Packages that put a sampler of their own around the one of a loader, or give each rank other batches of it.
_OF_OTHERS = frozenset(
    {"accelerate", "transformers", "lightning", "pytorch_lightning", "ignite", "catalyst", "composer"}
)
#: What makes the engine of another framework of a model, and divides no data that it is not given.
_ENGINES = frozenset({"deepspeed.initialize"})
_WRAPS = ("DistributedDataParallel", "FullyShardedDataParallel", "fully_shard")


class LoaderNotDivided(Rule):
    """The training loader of a DDP model has no sampler, so every rank reads the whole dataset.

    ## What it does

    Finds `DataLoader(..., shuffle=True)` without a sampler, or with `RandomSampler(dataset)`, in a function that also
    wraps a model with DDP or FSDP, or makes an engine of DeepSpeed, in a class or by a function that it calls where
    `backward()` is called, too; and nothing in the file divides the data.
    Also a `WeightedRandomSampler` without a generator in a program that wraps a model, where the last seed of torch
    above it is one for all ranks, and no seed of the program has the rank in it.
    Also a loader without a sampler, if a `DistributedSampler` over the same dataset exists that no loader uses; one
    that shuffles and goes to a trainer of Lightning for several devices with `use_distributed_sampler=False`; and one
    with a sampler or batch sampler of the project that knows no rank and draws from a generator which it seeds itself.

    ## Why it breaks

    Each rank draws from all of the data. With one seed rank 0 and rank 1 train on identical batches and the second GPU
    adds nothing; with different seeds the ranks overlap at random. In both cases an epoch takes world size times as
    long as it should, without an error. Measured with one seed: identical data (and dropout masks) on both ranks,
    also from a `WeightedRandomSampler`.

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

    Evaluation loaders, loaders with another sampler or batch sampler (of the project: one that says anything of ranks,
    draws from a generator of the process, or gets anything by the rank), files in which anything divides the data (a
    sampler, a shard, a rank in the dataset), data from a function or class of the project that mentions the rank,
    loaders passed to a framework that replaces the sampler. A weighted sampler where torch may be seeded by the rank,
    or not at all, where another sampler takes its place, and where there is one process.

    ## How to confirm

    `ddp-lint verify train.py`: both ranks read overlapping indices.

    ## Fix safety

    No automatic fix: the sampler also takes over the shuffling.

    ## References

    - https://pytorch.org/docs/stable/data.html#torch.utils.data.distributed.DistributedSampler
    """

    triggers = Triggers(
        "DataLoader", "StatefulDataLoader", *_WRAPS, "initialize", "backward", file=("DataLoader", "StatefulDataLoader")
    )
    of_several = True
    oracles = ("samples",)
    confidence = Confidence.MEDIUM

    @functools.cached_property
    def _samplers(self) -> dict[cst.CSTNode, dict[str, list[cst.Call]]]:
        """By function, or the module."""
        return {}

    @functools.cached_property
    def _by_rank(self) -> dict[cst.FunctionDef | None, bool]:
        """By function: whether it divides something by the rank."""
        return {}

    def visit_Call(self, node: cst.Call) -> None:
        if self.module.qualified(node.func) not in LOADERS or not node.args or any(arg.star for arg in node.args):
            return
        sampler = argument(node, 3, "sampler")
        if sampler is not None and (weighted := self._weighted(sampler)) is not None:
            self._report_weighted(node, weighted)
        if is_evaluation(assigned_name(self.module, node)) or is_evaluation(self.module.code(node.args[0].value)):
            return
        if (sampler is not None and not self._is_random(sampler)) or argument(node, 4, "batch_sampler") is not None:
            self._check_own(node)
            return
        if framework_loads(self.module):
            self._check_handed_over(node)
            return
        if (left_out := self._sampler_left_out(node)) is not None:
            self._report_left_out(node, left_out)
        elif self._shuffles(node) and not self._is_divided(node):
            self._report_whole(node)

    def _check_own(self, node: cst.Call) -> None:
        """A sampler of the project whose order is the same on all ranks."""
        function = self.module.function_of(node)
        if self.module.file.is_test or (function is not None and is_evaluation(function.name.value)):
            return
        found = own_order(self.module, node)
        if found is not None and several_ranks(self.module, node) is not None:
            self.report(
                node,
                f"`{found[1]}` knows no rank: it gives all ranks the same samples in the same order",
                notes=["rank 0 and rank 1 train on identical batches, and the second GPU adds nothing"],
                labels=[(found[0], "seeded alike on all ranks")],
                help="let the sampler hand out every world_size-th batch, from the rank on",
            )

    def _check_handed_over(self, node: cst.Call) -> None:
        """A loader of Lightning, whose trainer is told to put no sampler for the ranks around it."""
        function, project = self.module.function_of(node), self.module.project
        if project is None or self.module.file.is_test or not self._shuffles(node):
            return
        if (function is not None and is_evaluation(function.name.value)) or self._is_divided(node):
            return
        trainer = next((each for each in trainers_of(self.module) if each.is_undivided), None)
        if trainer is None or not is_shared_undivided(self.module):
            return
        if any(_divides(facts.file.code) for facts in files_of_programs(self.module)):
            return
        if several_ranks(self.module, node) is not None:
            self.report(
                node,
                "no sampler divides this data: every rank reads all of it",
                notes=["rank 0 and rank 1 each read all of it, and an epoch takes world size times as long"],
                labels=[(trainer.span, "told to divide no data")],
                help="pass sampler=DistributedSampler(dataset), or leave use_distributed_sampler on",
            )

    def _is_random(self, sampler: cst.BaseExpression) -> bool:
        """Whether a sampler is surely ``RandomSampler(dataset)``, which goes through all of the data on each rank."""
        made = [sampler] if isinstance(sampler, cst.Call) else self.module.assignments(sampler)
        return bool(made) and all(
            isinstance(value, cst.Call) and self.module.qualified(value.func) == _RANDOM and len(value.args) == 1
            for value in made
        )

    def _weighted(self, sampler: cst.BaseExpression) -> cst.Call | None:
        """The WeightedRandomSampler that a loader gets, where no other sampler takes its place later on."""
        made = [sampler] if isinstance(sampler, cst.Call) else self.module.assignments(sampler)
        found = [v for v in made if isinstance(v, cst.Call) and self.module.qualified(v.func) in _WEIGHTED]
        if len(found) != 1 or argument(found[0], 3, "generator") is not None:
            return None
        others = (value for value in made if value is not found[0])
        return found[0] if all(exclusive(self.module, value, found[0]) for value in others) else None

    def _report_weighted(self, loader: cst.Call, sampler: cst.Call) -> None:
        """A sampler that draws by torch's generator, which has the same state on all ranks of a DDP program."""
        facts, project, made = self.module.facts, self.module.project, as_ast(self.module, sampler)
        if facts is None or project is None or made is None or self.module.file.is_test:
            return
        function = self.module.function_of(loader)
        code = self.module.code(function) if function is not None else facts.file.code
        if is_evaluation(assigned_name(self.module, loader)) or self._is_by_rank(code):
            return
        files = list(files_of_programs(self.module))
        if any(framework_loads(each) or not _OF_OTHERS.isdisjoint(each.imports.packages) for each in files):
            return
        if not any(project.texts.shows(each, "wraps") for each in files) or as_one_process(self.module, sampler):
            return
        if several_ranks(self.module, sampler) is None or is_made_by_rank(self.module, loader.args[0].value):
            return
        place = Place(facts, function_at(facts.tree, made.lineno))
        if is_alike(project, made, place, "torch", files):
            self.report(
                sampler,
                "all ranks draw the same samples: this sampler draws by torch's generator, seeded alike on all of them",
                notes=["rank 0 and rank 1 train on identical batches, and the second GPU adds nothing"],
                labels=[(loader, "gives each rank what it draws")],
                help="pass generator=torch.Generator().manual_seed(seed + rank), or seed torch by the rank",
            )

    def _shuffles(self, node: cst.Call) -> bool:
        """Whether a loader shuffles, as training data is: always, or by a parameter that is true by default."""
        if argument(node, 3, "sampler") is not None:  # a random one
            return True
        shuffle, function = argument(node, 2, "shuffle"), self.module.function_of(node)
        taken = parameters_of(function) if function is not None and isinstance(shuffle, cst.Name) else ()
        default = next((p.default for p in taken if p.name.value == dotted(shuffle)), None)
        return is_true(shuffle) or is_true(default)

    def _report_left_out(self, node: cst.Call, sampler: cst.Call) -> None:
        name = assigned_name(self.module, sampler)
        self.report(
            node,
            f"`{name}` is passed to no loader: every rank reads all of this data",
            notes=["rank 0 and rank 1 each read all of it, and an epoch takes world size times as long"],
            labels=[(sampler, "the sampler for it is created here")],
            help=f"pass sampler={name}, and shuffle only without a sampler",
        )

    def _sampler_left_out(self, node: cst.Call) -> cst.Call | None:
        """The sampler over the loader's dataset that is created next to it and used for nothing but its epoch."""
        function = self.module.function_of(node)
        scope = function.body if function is not None else self.module.tree
        for call in self._samplers_in(scope).get(self.module.code(node.args[0].value), ()):
            name = assigned_name(self.module, call)
            if name.isidentifier() and not exclusive(self.module, call, node) and not self._is_used(name, scope):
                return call
        return None

    def _samplers_in(self, scope: cst.CSTNode) -> dict[str, list[cst.Call]]:
        """The samplers of a function or of the module, by the code of the dataset: searched for once."""
        found = self._samplers.get(scope)
        if found is None:
            found = self._samplers[scope] = {}
            for call in calls_in(scope):
                over = argument(call, 0, "dataset")
                if over is not None and is_sampler(self.module, call):
                    found.setdefault(self.module.code(over), []).append(call)
        return found

    def _is_used(self, name: str, scope: cst.CSTNode) -> bool:
        """Whether the value of the name is used, except in ``name.set_epoch(n)`` and ``name is None``."""
        uses = [n for n in descendants(scope) if isinstance(n, cst.Name) and n.value == name]
        return any(not self._asks_little(self.module.parent(use), use) for use in uses)

    def _asks_little(self, parent: cst.CSTNode | None, use: cst.Name) -> bool:
        if isinstance(parent, cst.Attribute):
            return parent.attr is use or parent.attr.value == "set_epoch"
        if isinstance(parent, cst.Comparison):
            return isinstance(parent.comparisons[0].operator, (cst.Is, cst.IsNot))
        return isinstance(parent, (cst.AssignTarget, cst.AnnAssign, cst.If)) or (
            isinstance(parent, cst.Arg) and parent.keyword is use
        )

    def _report_whole(self, node: cst.Call) -> None:
        wrap = self._wrap_beside(node)
        place = wrap.place if wrap is not None else self._engine_beside(node) or self._wrapped_by_caller(node)
        if place is None:
            return
        self.report(
            node,
            "no sampler divides this data: every rank reads all of it",
            notes=["rank 0 and rank 1 each read all of it, and an epoch takes world size times as long"],
            labels=[(place, "the model that it feeds is wrapped here")],
            help="pass sampler=DistributedSampler(dataset) and call set_epoch in the epoch loop",
        )

    def _wrap_beside(self, node: cst.Call) -> Wrap | None:
        here = self.module.function_of(node)
        for wrap in self.module.wraps.all:
            there = self.module.function_of(wrap.call)
            if not wrap.tested and there is here and not exclusive(self.module, wrap.call, node):
                return wrap
            if not wrap.tested and here is not None and there is not None and self._belong_together(node, here, there):
                return wrap
        return None

    def _engine_beside(self, node: cst.Call) -> cst.Call | None:
        """The engine of DeepSpeed that a loader feeds, which is given no data to make a loader of itself."""
        here, facts = self.module.function_of(node), self.module.facts
        if facts is None or is_for_one_group(facts):
            return None
        for call in self.module.calls_to(_ENGINES):
            there = self.module.function_of(call)
            if argument(call, 4, "training_data") is not None or exclusive(self.module, call, node):
                continue
            together = here is not None and there is not None and self._belong_together(node, here, there)
            if there is here or together:
                return call
        return None

    def _wrapped_by_caller(self, node: cst.Call) -> Span | None:
        """Where another file wraps the model, in a function with a backward that calls the one around for training data
        whatever it is given, and divides nothing by ranks either."""
        here, project = self.module.function_of(node), self.module.project
        if here is None or project is None or self.module.class_of(here) is not None or is_evaluation(here.name.value):
            return None
        for site in call_sites(self.module, here):
            around, code = site.around, site.facts.file.code
            if around is None or _divides(code) or "backward" not in code or is_evaluation(ast.unparse(site.node)):
                continue
            if framework_loads(site.facts) or not _is_run_always(around, site.node) or self._is_ordered(node, site):
                continue
            for call in calls_below(around):
                name = project.meanings.of(site.facts, call.func)
                if name in wrappers() or (name in _ENGINES and not is_for_one_group(site.facts)):
                    return site.facts.file.span_of(call)
        return None

    def _is_ordered(self, node: cst.Call, site: CallSite) -> bool:
        """Whether a call of the function around a loader may give it no shuffling."""
        shuffle, function = argument(node, 2, "shuffle"), self.module.function_of(node)
        given = site.given(function, dotted(shuffle)) if function is not None else None
        return given is not None and not (isinstance(given, ast.Constant) and given.value is True)

    def _belong_together(self, node: cst.Call, here: cst.FunctionDef, there: cst.FunctionDef) -> bool:
        """Whether the loader is made, with any options, by another method of the class that wraps the model and
        trains it, or by a function of the file that the one with the wrap calls."""
        if any(True for _ in conditions(self.module, node)) or is_evaluation(here.name.value):
            return False
        owner = self.module.class_of(here)
        inside = descendants(owner.body if owner is not None else self.module.tree)
        if not any(isinstance(n, cst.Call) and called(n) == "backward" for n in inside):
            return False
        if owner is not None:
            return owner is self.module.class_of(there)
        calls = [c for c in calls_in(there.body) if dotted(c.func) == here.name.value]
        return any(not any(True for _ in conditions(self.module, c)) for c in calls)

    def _is_divided(self, node: cst.Call) -> bool:
        """Whether the rest of the file divides data: any of the words that do so, outside of the device set-up."""
        text = self.module.file.code
        if _divides(text):
            return True
        function = self.module.function_of(node)
        if function not in self._by_rank:
            self._by_rank[function] = self._is_by_rank(self.module.code(function) if function is not None else text)
        return self._by_rank[function] or is_made_by_rank(self.module, node.args[0].value)

    def _is_by_rank(self, code: str) -> bool:
        scope = re.sub(r"device_ids\s*=\s*\[[^\]]*\]", "", code)
        by_rank = re.search(
            r"(rank|world_size)\s*(::|\])|\brange\(\s*\w*rank\b|\[\s*[\w.]*rank|rank\s*\*|%\s*\w*world", scope
        )
        return by_rank is not None or mentions_own_rank(self.module, scope)


@functools.lru_cache(maxsize=8)
def _divides(code: str) -> bool:
    """Whether a file has a word that divides data; an import alone divides nothing."""
    text = re.sub(r"(?m)^(from|import) .*$", "", code)
    return _DIVIDES.search(text) is not None


def _is_run_always(around: FunctionNode, call: ast.Call) -> bool:
    """Whether a call is in no branch of a function."""
    branches = (n for n in walk(around) if isinstance(n, (ast.If, ast.IfExp)))
    return not any(n is call for branch in branches for n in walk(branch))
