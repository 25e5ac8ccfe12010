from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import libcst as cst

from ddp_lint.findings import Confidence
from ddp_lint.knowledge import table
from ddp_lint.knowledge.tensors import words_of
from ddp_lint.launch.callers import constructions
from ddp_lint.launch.loader_workers import makes_samples
from ddp_lint.launch.one_rank import mentions_own_rank
from ddp_lint.launch.ranks import several_ranks
from ddp_lint.project.parts import assigned_to
from ddp_lint.rules.base import Rule
from ddp_lint.rules.data.loading import is_evaluation, ranks_share, reads_alike
from ddp_lint.rules.triggers import Triggers
from ddp_lint.source import dotted
from ddp_lint.source.syntax import FunctionNode, walk
from ddp_lint.source.tree import called, descendants, subtree
from ddp_lint.view.scopes import Binding
from ddp_lint.view.wraps import argument, assigned_name

_SAMPLES = ("__getitem__", "__getitems__")
#: How many methods of the dataset are followed from the one that makes samples.
_DEPTH = 3
#: What makes a seed another one for each rank, or the order of a pass another one for each epoch.
_OWN_SEED = re.compile(r"rank|process_index|worker|epoch|time|urandom|getpid|uuid|secrets", re.IGNORECASE)
_SEEDS = frozenset({"seed", "manual_seed", "setstate", "set_state"})


class GeneratorKeptByDataset(Rule):
    """A dataset keeps a random generator of one seed, so all ranks and workers draw the same numbers from it.

    ## What it does

    Finds `random.Random(seed)`, `numpy.random.RandomState(seed)`, `numpy.random.default_rng(seed)` and a seeded
    `torch.Generator` that a dataset makes in its constructor and draws from where it makes a sample (`__getitem__`, and
    the methods that this calls), in code that several ranks run, if the seed does not depend on the rank.

    ## Why it breaks

    Rank 0 and rank 1 make the same generator, so the n-th sample of each is cropped, flipped or disturbed with the same
    numbers: half the variety at twice the cost, without an error. A loader's workers make it worse. Each has a copy of
    the generator as it was when the worker started, and a new epoch starts new workers: with `num_workers=2` both
    workers of both ranks drew the same sequence, and the same again in every epoch (measured on gloo, torch 2.13).
    What the loader seeds in its workers are the generators of `random`, NumPy and torch alone.

    ## Example

    ```python
    import random

    import torch
    import torch.distributed as dist
    from torch.utils.data import DataLoader, Dataset, DistributedSampler


    class Noisy(Dataset):
        def __init__(self, seed=0):
            self.rng = random.Random(seed)  # <- DDP711

        def __len__(self):
            return 16

        def __getitem__(self, index):
            return torch.tensor(index + self.rng.random())


    dist.init_process_group("gloo")
    data = Noisy()
    for x in DataLoader(data, batch_size=4, sampler=DistributedSampler(data, shuffle=False), num_workers=2):
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
            return torch.tensor(index + random.random())  # the loader seeds it in each worker


    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())  # what the workers' seeds are drawn from
    data = Noisy()
    for x in DataLoader(data, batch_size=4, sampler=DistributedSampler(data, shuffle=False), num_workers=2):
        print(dist.get_rank(), x.tolist())
    dist.destroy_process_group()
    ```

    To have numbers that can be repeated, make the generator where the sample is made, from the seed, the epoch and the
    index: `random.Random(hash((self.seed, self.epoch, index)))`.

    ## When it is silent

    A seed that the rank, the worker, the epoch or the clock takes part in, also where the dataset is made; no seed; a
    generator that another method makes or seeds anew, or a `worker_init_fn` that does; datasets for validation, tests
    and inference, where the same numbers are wanted; draws of another index for a sample that cannot be read; iterable
    datasets, whose ranks have to draw one order to divide it; programs that divide no data between ranks and form no
    group.

    ## How to confirm

    `ddp-lint verify train.py`: both ranks seed the generator at the line with the same number.

    ## Fix safety

    No automatic fix.

    ## References

    - https://pytorch.org/docs/stable/data.html#randomness-in-multi-process-data-loading
    """

    triggers = Triggers("Random", "RandomState", "default_rng", "Generator", file=("__getitem__",))
    of_several = True
    oracles = ("seeds",)
    confidence = Confidence.MEDIUM

    def visit_FunctionDef(self, node: cst.FunctionDef) -> None:
        if node.name.value not in _SAMPLES or self.module.file.is_test or not makes_samples(self.module, node):
            return
        owner = self.module.class_of(node)
        if owner is None or is_evaluation(f"{self.module.file.place} {' '.join(words_of(owner.name.value))}"):
            return
        methods = {m.name.value: m for m in owner.body.body if isinstance(m, cst.FunctionDef)}
        constructor = methods.get("__init__")
        made = dict(self._made(constructor)) if constructor is not None else {}
        if constructor is None or not made:
            return
        draws = {name: draw for name, draw in self._draws(node, methods, _DEPTH) if name in made}
        for name, draw in draws.items():
            maker, seed = made[name]
            if not self._is_made_anew(owner, constructor, name) and self._is_alike(owner, constructor, seed):
                self._report(maker, name, draw)

    def _report(self, maker: cst.Call, name: str, draw: cst.CSTNode) -> None:
        if several_ranks(self.module) is None or not ranks_share(self.module) or reads_alike(self.module):
            return
        self.report(
            maker,
            f"all ranks and workers start `{name}` alike: they draw the same numbers for different samples",
            notes=["rank 0 and rank 1 draw the same numbers, and workers draw them again in every epoch"],
            labels=[(draw, "draws for a sample")],
            help="draw from `random` or NumPy, which the loader seeds in each worker, or seed by rank and worker",
        )

    def _made(self, constructor: cst.FunctionDef) -> Iterator[tuple[str, tuple[cst.Call, cst.BaseExpression]]]:
        """The generators that a constructor keeps, with what makes each and its seed."""
        for node in descendants(constructor.body):
            if not isinstance(node, cst.Call):
                continue
            if self.module.qualified(node.func) in table("data")["generators"]:
                name, seed = assigned_name(self.module, node), argument(node, 0, "seed") or argument(node, 0, "x")
            elif called(node) == "manual_seed" and isinstance(node.func, cst.Attribute):
                name, seed = dotted(node.func.value) or assigned_name(self.module, node), argument(node, 0, "seed")
                if not self._is_generator(node.func.value):
                    continue
            else:
                continue
            if name.startswith("self.") and seed is not None and dotted(seed) != "None":
                yield name, (node, seed)

    def _is_generator(self, owner: cst.BaseExpression) -> bool:
        values = self.module.assignments(owner) if dotted(owner) else [owner]
        return any(isinstance(v, cst.Call) and self.module.qualified(v.func) == "torch.Generator" for v in values)

    def _draws(
        self, method: cst.FunctionDef, methods: dict[str, cst.FunctionDef], depth: int
    ) -> Iterator[tuple[str, cst.CSTNode]]:
        """The attributes of the dataset from which a method draws, itself or in the methods of the class it calls."""
        for node in descendants(method.body):
            if not isinstance(node, cst.Call):
                continue
            name = dotted(node.func)
            owner, _, last = name.rpartition(".")
            generator = argument(node, None, "generator")
            drawn_from = dotted(generator) if generator else owner if last in table("data")["draw_methods"] else ""
            if drawn_from.startswith("self.") and not self._picks_another(node):
                yield drawn_from, node
            helper = methods.get(last) if owner == "self" and depth else None
            if helper is not None and helper is not method:
                yield from self._draws(helper, methods, depth - 1)

    def _picks_another(self, draw: cst.Call) -> bool:
        """Whether a draw chooses the sample that takes the place of one which cannot be had: in a loop of attempts,
        behind an error, or as the index itself."""
        function = self.module.function_of(draw)
        indices = {p.name.value for p in function.params.params} if function is not None else set()
        for up in self.module.ancestors(draw):
            if isinstance(up, (cst.While, cst.ExceptHandler)):
                return True
            if isinstance(up, cst.Assign) and any(dotted(target.target) in indices for target in up.targets):
                return True
            if isinstance(up, cst.FunctionDef):
                break
        return False

    def _is_made_anew(self, owner: cst.ClassDef, constructor: cst.FunctionDef, name: str) -> bool:
        """Whether anything but the constructor makes the generator or seeds it: another method, a function for the
        workers of a loader."""
        for method in owner.body.body:
            if not isinstance(method, cst.FunctionDef) or method is constructor:
                continue
            for node in descendants(method.body):
                if isinstance(node, cst.Assign) and any(dotted(t.target) == name for t in node.targets):
                    return True
                if isinstance(node, cst.Call) and called(node) in _SEEDS and dotted(node.func).startswith(f"{name}."):
                    return True
        project, attribute = self.module.project, name.removeprefix("self.")
        paths = project.contents.holding("worker_init_fn") if project is not None else ()
        files = (project.modules.facts_of(path) for path in paths) if project is not None else ()
        return any(f is not None and f.file.holds(f"dataset.{attribute}") for f in files)

    def _is_alike(self, owner: cst.ClassDef, constructor: cst.FunctionDef, seed: cst.BaseExpression) -> bool:
        """Whether a seed is the same number on all ranks, wherever the dataset is made."""
        bound = self._bound(seed)
        values = [seed, *(b.value for b in bound if b.value is not None)]
        bound += [b for value in values[1:] for b in self._bound(value)]
        texts = map(self.module.code, values)
        if any(_OWN_SEED.search(text) or mentions_own_rank(self.module, text) for text in texts):
            return False
        given = {b.name for b in bound if b.kind == "parameter" and b.name != "self"}
        return all(self._is_given_alike(owner, constructor, name) for name in given)

    def _bound(self, value: cst.BaseExpression) -> list[Binding]:
        """What the names and attributes in an expression are bound to."""
        names = (n for n in subtree(value) if isinstance(n, (cst.Name, cst.Attribute)))
        return [binding for name in names for binding in self.module.bindings(name)]

    def _is_given_alike(self, owner: cst.ClassDef, constructor: cst.FunctionDef, name: str) -> bool:
        """Whether a parameter of the constructor holds a seed, and none that is of one rank."""
        default = next((p.default for p in constructor.params.params if p.name.value == name), None)
        seeded = default is not None and dotted(default) != "None"
        given = [(site, site.given(constructor, name)) for site in constructions(self.module, owner)]
        texts = [text for site, value in given if value is not None for text in _texts(value, site.around)]
        if any(map(_OWN_SEED.search, texts)):
            return False
        passed = [value for _, value in given if value is not None and ast.unparse(value) != "None"]
        return bool(passed) or (seeded and all(value is None for _, value in given))


def _texts(value: ast.expr, around: FunctionNode | None) -> Iterator[str]:
    """What a call passes, and what the function around it gives the names in that."""
    yield ast.unparse(value)
    names = {n.id for n in walk(value) if isinstance(n, ast.Name)} if around is not None else set()
    yield from (ast.unparse(each) for name in names if around is not None for each in assigned_to(name, around))
