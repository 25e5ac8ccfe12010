from __future__ import annotations

import ast
import re

import libcst as cst

from ddp_lint.findings import Confidence, Span
from ddp_lint.knowledge import table
from ddp_lint.launch.one_rank import mentions_own_rank, on_one_rank
from ddp_lint.launch.ranks import runs_alone, several_ranks
from ddp_lint.rules.base import Rule
from ddp_lint.rules.data.loading import (
    LOADERS,
    done_nearby,
    drawn_in_samples,
    files_of_programs,
    generator_has_rank,
    is_evaluation,
    is_sampler,
    mentioned_in_run,
    mentions_nearby,
    ranks_share,
    reads_alike,
    seeds_each_sample,
    seeds_workers_by_rank,
)
from ddp_lint.rules.data.shared_noise import shared_noise
from ddp_lint.rules.triggers import Triggers
from ddp_lint.source import dotted
from ddp_lint.source.imports import dotted_ast, last_part
from ddp_lint.source.queries import calls_in, options
from ddp_lint.source.syntax import calls_below, parameters, walk
from ddp_lint.source.tree import called, subtree
from ddp_lint.view.wraps import argument, assigned_name

#: The generators that augmentation draws from. Weights are initialised by torch's, for which one seed is right.
_SEEDERS = ("random.seed", "numpy.random.seed")
#: What a seed depends on that one for all ranks does not: the rank, or the epoch or item that an order is drawn for.
_OWN_SEED = re.compile(r"rank|process_index|worker|epoch|idx|index|step|iter", re.IGNORECASE)
#: What makes the seed of a worker differ between the ranks: the rank, torch's seed for the worker, the clock.
_BY_RANK = re.compile(r"rank|process_index|initial_seed|base_seed|get_worker_info|get_state|\btime", re.IGNORECASE)
_STARTS_RANKS = ("spawn", "Process", "start_processes")


_SEED_BY_RANK = "after building the model, seed random, numpy and torch by rank: workers seed from torch's generator"
_SEED_WORKERS = "seed_everything(seed, workers=True) seeds the workers of each rank by its number"


class OneAugmentationSeed(Rule):
    """All ranks use the same augmentation seed, so they draw the same crops and flips.

    ## What it does

    Finds code that several ranks run where Python's or NumPy's generator gets a seed that does not depend on the rank,
    directly, through a helper of the project, or by Lightning's `seed_everything(seed)` without `workers=True`, next to
    a data loader, in a program that augments its data at random,
    or whose dataset draws from `random` or NumPy in `__getitem__`: in the file, in what it imports, or in a file that
    imports it.
    Also a `torch.Generator` that gets such a seed and goes into a loader with workers and a DistributedSampler, and a
    `worker_init_fn` of such a loader that seeds by the number of the worker alone (`random.seed(seed + worker_id)`).
    Also a model in DDP that draws noise in its `forward` (`noise = torch.randn_like(x)`), where the last seed of torch
    above the wrap is one for all ranks, and no seed of the program has the rank in it.

    ## Why it breaks

    Random crops, flips and noise come from these generators. With one seed rank 0 and rank 1 draw the same numbers for
    their different samples: half the variety at twice the cost, without an error. The same applies to a loader's
    workers: they seed random, NumPy and torch with a number that the loader draws from torch's generator in the
    process of its rank. So with workers torch's seed has to differ: with `num_workers=2` and the same torch seed, the
    draws of all three are equal on both ranks even if random and NumPy are seeded by rank (measured on gloo, torch
    2.13). The same torch seed is correct until the initial weights are created. With Lightning 2.6 the workers of both
    ranks drew the same numbers after `seed_everything(1)`, and other ones with `workers=True`.

    ## Example

    ```python
    import random

    import torch
    import torch.distributed as dist
    from torch.utils.data import DataLoader, Dataset, DistributedSampler


    class Noisy(Dataset):
        def __len__(self):
            return 16

        def __getitem__(self, index):
            augmented = index + random.random()
            return torch.tensor(augmented)


    dist.init_process_group("gloo")
    torch.manual_seed(0)
    random.seed(0)  # <- DDP708
    for x in DataLoader(Noisy(), batch_size=4, sampler=DistributedSampler(Noisy(), shuffle=False), num_workers=2):
        print(dist.get_rank(), x.tolist())
    dist.destroy_process_group()
    ```

    ## Use instead

    ```python
    import random

    import torch
    import torch.distributed as dist
    from torch.utils.data import DataLoader, Dataset, DistributedSampler


    class Noisy(Dataset):
        def __len__(self):
            return 16

        def __getitem__(self, index):
            augmented = index + random.random()
            return torch.tensor(augmented)


    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())  # what the workers' seeds are drawn from
    random.seed(dist.get_rank())
    for x in DataLoader(Noisy(), batch_size=4, sampler=DistributedSampler(Noisy(), shuffle=False), num_workers=2):
        print(dist.get_rank(), x.tolist())
    dist.destroy_process_group()
    ```

    If the weights must start equal without DDP's broadcast (FSDP), use the same torch seed, build the model, and then
    seed by rank. For the workers only, a `worker_init_fn`, or a `generator` of the loader that is seeded by rank, is
    enough.

    ## When it is silent

    Seeds that mention the rank on the way, or are followed by one that does; seeds that each process draws for itself
    (`uuid.uuid4`, `os.urandom`, `secrets`, `time.time_ns`), or draws from a generator that another seed decides
    (`np.random.seed(np.random.randint(500))`); seeds of random and NumPy where nothing seeds torch and all loaders have
    workers, which are then seeded by what each process has drawn; programs without augmentation (a sampler needs the
    same order of file names on all ranks); seeds for one epoch or item, and datasets whose `__getitem__` seeds the
    generators by the number of the sample; a `worker_init_fn` that uses the rank, `torch.initial_seed()` or the clock,
    and seeds of the main process where the project has one; augmentation that is mentioned only in comments and
    docstrings, and functions `augment` of the project in which nothing is of chance; albumentations, which since 1.4.21
    draws from its own generators, where the project pins no older one; a loader with workers and a `generator` that is
    seeded by rank; a seed that is restored afterwards, or that a shuffle or a permutation follows; seeds before the
    ranks are spawned (they do not inherit it); samplers that all have `num_replicas=1`, so that all ranks read the same
    samples, or loaders that shuffle by the seed of torch that the file sets, where nothing divides the data or wraps a
    model and no rank chooses samples; augmentation that the program does not import, or imports and does not use;
    programs that divide no data between ranks and form no group, also where they have the settings (`args.distributed`)
    of one that does; Lightning's `seed_everything(seed, workers=True)`; tests and evaluation.

    ## How to confirm

    `ddp-lint verify train.py`: both ranks draw the same random numbers at the line.

    ## Fix safety

    No automatic fix.

    ## References

    - https://pytorch.org/docs/stable/notes/randomness.html
    - https://pytorch.org/docs/stable/data.html#randomness-in-multi-process-data-loading
    """

    triggers = Triggers(
        "seed", "manual_seed", "worker_init_fn", *table("data")["seed_helpers"], file=(*table("data")["loader_words"],)
    )
    of_several = True
    oracles = ("seeds",)
    confidence = Confidence.MEDIUM

    def start(self) -> None:
        self._reported: set[cst.CSTNode | None] = set()
        self._helpers: dict[str, bool] = {}

    def visit_Call(self, node: cst.Call) -> None:
        if node.args and called(node) == "manual_seed":
            self._visit_generator(node)
        if self.module.qualified(node.func) in LOADERS:
            self._visit_loader(node)
        if not node.args or not self._seeds(node) or self._differs_by_rank(node) or self._is_drawn(node.args[0].value):
            return
        function = self.module.function_of(node)
        if function in self._reported or self._is_elsewhere(node, function) or self._draws_in_workers(node):
            return
        drawn = self._drawn_on_ranks()
        if drawn is None or runs_alone(self.module, node):
            return
        self._reported.add(function)
        self.report(
            node,
            "all ranks seed `random` or NumPy alike: they draw the same augmentations for different samples",
            notes=[f"rank 0 and rank 1 draw the same numbers, also those of `{drawn[0]}`"],
            labels=[(drawn[1], "draws at random")],
            help=_SEED_WORKERS if self._is_of_framework(node) else _SEED_BY_RANK,
        )

    def finish(self) -> None:
        """Noise that a model draws in its forward."""
        facts, project = self.module.facts, self.module.project
        if facts is None or project is None or self.module.file.is_test or several_ranks(self.module) is None:
            return
        for found in shared_noise(project, facts, files_of_programs(self.module)):
            if not ranks_share(self.module) or reads_alike(self.module):
                return
            self.report(
                facts.file.span_of(found.wrap),
                "all ranks seed torch alike: the model draws the same noise on each of them, for different samples",
                notes=["rank 0 and rank 1 have the same generator, and draw from it as often"],
                labels=[(found.seeded, "one seed for all ranks"), (found.draw, "draws the noise of a batch")],
                help="seed torch by the rank behind the wrap, which has given all ranks the same weights",
            )

    # ---- what workers start with

    def _visit_loader(self, loader: cst.Call) -> None:
        """``worker_init_fn`` that seeds by the number of the worker alone: each rank has a worker of that number."""
        start = argument(loader, None, "worker_init_fn")
        if start is None or not self._is_divided(loader) or is_evaluation(assigned_name(self.module, loader)):
            return
        seeding = self._seeding(start)
        drawn = self._drawn_on_ranks(with_workers=True) if seeding is not None else None
        if seeding is None or drawn is None or self.module.file.is_test:
            return
        self.report(
            loader,
            "the workers of all ranks are seeded alike: they draw the same augmentations for different samples",
            notes=[f"worker 0 of rank 0 and of rank 1 draws the same numbers, also those of `{drawn[0]}`"],
            labels=[(seeding, "knows no rank"), (drawn[1], "draws at random")],
            help="seed with torch.initial_seed() % 2**32, after torch was seeded by rank; or add rank * num_workers",
        )

    def _seeding(self, start: cst.BaseExpression) -> cst.CSTNode | Span | None:
        """The seed that a function for workers sets for `random` or NumPy, if it is the same on all ranks."""
        bound = (b.node for b in self.module.bindings(start) if b.kind == "function")
        function = start if isinstance(start, cst.Lambda) else next(bound, None)
        if function is None:
            return self._seeding_elsewhere(start)
        if not isinstance(function, (cst.FunctionDef, cst.Lambda)) or self._draws_anew(function):
            return None
        if _BY_RANK.search(self.module.code(function)):
            return None
        calls = [n for n in subtree(function.body) if isinstance(n, cst.Call) and n.args]
        seeds = [call for call in calls if self.module.qualified(call.func) in _SEEDERS]
        return seeds[0] if seeds and not mentions_own_rank(self.module, self.module.code(function)) else None

    def _seeding_elsewhere(self, start: cst.BaseExpression) -> Span | None:
        """The seed of a function for workers that another file of the project defines."""
        project, name = self.module.project, self.module.qualified(start)
        found = project.meanings.definition(project.meanings.canonical(name)) if project is not None and name else None
        if found is None or not isinstance(found[1], ast.FunctionDef):
            return None
        facts, text = found[0], ast.unparse(found[1])
        calls = {call: facts.qualified(call.func) for call in calls_below(found[1])}
        anew = any(name in table("data")["drawn_anew"] for name in calls.values())
        if anew or _BY_RANK.search(text) or mentions_own_rank(self.module, text):
            return None
        return next((facts.file.span_of(c) for c, name in calls.items() if c.args and name in _SEEDERS), None)

    # ---- the generator of a loader

    def _visit_generator(self, node: cst.Call) -> None:
        """A loader draws the seeds of its workers from the generator that it is given."""
        seed, function = node.args[0].value, self.module.function_of(node)
        parameter = isinstance(seed, cst.Name) and any(b.kind == "parameter" for b in self.module.bindings(seed, node))
        name = self._generator(node)
        if parameter or self._are_own([seed]) or self._is_of_process(seed):
            return
        if not name or self._is_elsewhere(node, function):
            return
        around = calls_in(function.body if function is not None else self.module.tree)
        loader = next((call for call in around if self._starts_workers_with(call, node, name)), None)
        drawn = self._drawn_on_ranks(with_workers=True) if loader is not None else None
        if loader is not None and drawn is not None:
            self.report(
                node,
                "all ranks seed this loader's generator alike: their workers draw the same augmentations",
                notes=[f"rank 0 and rank 1 draw the same numbers, also those of `{drawn[0]}`"],
                labels=[(loader, "seeds its workers from it"), (drawn[1], "draws at random")],
                help="add the rank to the seed: the sampler decides the order of the samples",
            )

    def _starts_workers_with(self, loader: cst.Call, seeded: cst.Call, name: str) -> bool:
        """Whether a loader of a part of the data seeds its workers from a generator that is seeded here."""
        given = argument(loader, None, "generator")
        is_it = given is not None and (given is seeded or dotted(given) == name)
        return is_it and self._is_divided(loader) and self._has_plain_workers(loader)

    def _is_of_process(self, seed: cst.BaseExpression) -> bool:
        """Whether it is the seed that torch has chosen, for each process another one where nobody sets it."""
        chosen = isinstance(seed, cst.Call) and self.module.qualified(seed.func) in ("torch.initial_seed", "torch.seed")
        return chosen and "torch.manual_seed(" not in self.module.file.code

    def _generator(self, call: cst.Call) -> str:
        """The name of the `torch.Generator` that is seeded, or that a seeded one gets."""
        seeded = call.func.value if isinstance(call.func, cst.Attribute) else None
        values = self.module.assignments(seeded) if isinstance(seeded, (cst.Name, cst.Attribute)) else [seeded]
        made = any(isinstance(v, cst.Call) and self.module.qualified(v.func) == "torch.Generator" for v in values)
        return (dotted(seeded) or assigned_name(self.module, call) or "generator") if made else ""

    def _is_divided(self, loader: cst.Call) -> bool:
        sampler = argument(loader, None, "sampler")
        values = [sampler, *self.module.assignments(sampler)] if sampler is not None else []
        arms = options(values)
        return any(isinstance(arm, cst.Call) and is_sampler(self.module, arm) for arm in arms)

    def _has_plain_workers(self, loader: cst.Call) -> bool:
        """Whether the loader may have workers, and what they start with knows no rank."""
        number, start = argument(loader, None, "num_workers"), argument(loader, None, "worker_init_fn")
        if number is None or (isinstance(number, cst.Integer) and number.value == "0"):
            return False
        functions = self.module.facts.definitions if self.module.facts is not None else {}
        seen = functions.get(dotted(start)) if start is not None else None
        return start is None or (seen is not None and "rank" not in ast.unparse(seen).lower())

    # ---- what seeds

    def _seeds(self, call: cst.Call) -> bool:
        """A seed for random or numpy that is decided here: not in a helper, whose caller decides it."""
        name = self.module.qualified(call.func)
        seed = call.args[0].value
        if isinstance(seed, cst.Name) and any(b.kind == "parameter" for b in self.module.bindings(seed, call)):
            return False
        return name in _SEEDERS or self._is_of_framework(call) or self._is_known_helper(self.module.callee(call))

    def _is_of_framework(self, call: cst.Call) -> bool:
        name, project = self.module.callee(call), self.module.project
        return (project.meanings.canonical(name) if project is not None else name) in table("data")["framework_seeds"]

    def _is_known_helper(self, name: str) -> bool:
        if name not in self._helpers:
            self._helpers[name] = self._is_helper(name)
        return self._helpers[name]

    def _is_helper(self, name: str) -> bool:
        """A function of the project that seeds random or numpy with its first parameter as it is."""
        project = self.module.project
        if project is None or not name:
            return False
        facts, function = project.meanings.definition(project.meanings.canonical(name)) or (None, None)
        if facts is None or not isinstance(function, ast.FunctionDef) or not parameters(function):
            return False
        first = parameters(function)[0].arg
        return any(
            facts.qualified(call.func) in _SEEDERS and any(dotted_ast(arg) == first for arg in call.args)
            for call in calls_below(function)
        )

    # ---- where it does no harm

    def _differs_by_rank(self, call: cst.Call) -> bool:
        """The rank (or an epoch) takes part in this seed, or in one that the function sets later."""
        function = self.module.function_of(call)
        later = calls_in(function.body) if function is not None else iter(())
        seeds = [a.value for c in (call, *later) if c is call or "seed" in dotted(c.func) for a in c.args]
        return self._are_own(seeds)

    def _are_own(self, seeds: list[cst.BaseExpression]) -> bool:
        """Whether the rank (or an epoch) takes part in a seed, or in what it is assigned, or each process draws it."""
        names = (n for seed in seeds for n in subtree(seed) if isinstance(n, (cst.Name, cst.Attribute)))
        bound = (b.value for name in names for b in self.module.bindings(name) if b.kind in ("assign", "augment"))
        values = [value for value in (*seeds, *bound) if value is not None]
        if any(map(self._draws_anew, values)):
            return True
        texts = map(self.module.code, values)
        return any(_OWN_SEED.search(text) or mentions_own_rank(self.module, text) for text in texts)

    def _draws_anew(self, node: cst.CSTNode) -> bool:
        """Whether a node draws a number that is another one in each process."""
        return self._calls_one_of(node, "drawn_anew")

    def _is_drawn(self, seed: cst.BaseExpression) -> bool:
        """Whether a seed is drawn from a generator, on every way to it: ranks that draw alike from it have seeded that
        one alike."""
        given = self.module.assignments(seed) if dotted(seed) else ()
        return all(self._calls_one_of(value, "drawn_on") for value in given or [seed])

    def _calls_one_of(self, node: cst.CSTNode, names: str) -> bool:
        calls = (call for call in subtree(node) if isinstance(call, cst.Call))
        return any(self.module.qualified(call.func) in table("data")[names] for call in calls)

    def _drawn_on_ranks(self, *, with_workers: bool = False) -> tuple[str, Span] | None:
        """What changes samples at random in code that several ranks run, and where."""
        if several_ranks(self.module) is None or reads_alike(self.module):
            return None
        if not with_workers and (mentions_nearby(self.module, "worker_init_fn") or generator_has_rank(self.module)):
            return None
        found = ((word.rstrip("("), done_nearby(self.module, word)) for word in table("data")["augmentation"])
        first = next(((word, place) for word, place in found if place is not None), None)
        drawn = first or drawn_in_samples(self.module)
        if drawn is None or not ranks_share(self.module) or seeds_workers_by_rank(self.module):
            return None
        return None if first is not None and seeds_each_sample(self.module) else drawn

    def _draws_in_workers(self, seed: cst.Call) -> bool:
        """Whether the seed is none of torch's, which nothing seeds, and all loaders of the file have workers: these
        seed `random` and NumPy by what torch has drawn, which is another number on each rank."""
        if self.module.qualified(seed.func) not in _SEEDERS:
            return False
        loaders = self.module.calls_to(LOADERS)
        numbers = [argument(loader, 5, "num_workers") for loader in loaders]
        without = (number is None or (isinstance(number, cst.Integer) and number.value == "0") for number in numbers)
        if not loaders or any(without):
            return False
        return not any(mentioned_in_run(self.module, w) for w in ("manual_seed", *table("data")["seed_helpers"]))

    def _is_elsewhere(self, call: cst.Call, function: cst.FunctionDef | None) -> bool:
        """Not what the ranks train with: a test, an evaluation, a seed for a moment, or the parent of the ranks."""
        place = self.module.file.place if function is None else f"{self.module.file.place} {function.name.value}"
        if self.module.file.is_test or is_evaluation(place) or on_one_rank(self.module, call):
            return True
        calls = list(calls_in(function.body if function else self.module.tree))
        names = {dotted(c.func).rpartition(".")[2] for c in calls}
        kept = not names.isdisjoint((*_STARTS_RANKS, "getstate", "get_state", "shuffle", "permutation"))
        return kept or any(map(self._launches, calls))

    def _launches(self, call: cst.Call) -> bool:
        """Whether a call gives a function of this file to one of the project that starts processes:
        ``launch(main, gpus)``."""
        facts, project = self.module.facts, self.module.project
        if facts is None or project is None or not any(dotted(arg.value) in facts.definitions for arg in call.args):
            return False
        found = project.meanings.definition(project.meanings.canonical(self.module.callee(call)))
        inside = walk(found[1]) if found is not None else ()
        return any(isinstance(n, ast.Call) and last_part(n.func) in _STARTS_RANKS for n in inside)
