from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import libcst as cst

from ddp_lint.findings import Confidence, Span
from ddp_lint.knowledge import table
from ddp_lint.launch.by_rank import Place, assigned_above, is_by_rank
from ddp_lint.launch.callers import is_always_false, sites_that_run
from ddp_lint.launch.one_rank import is_on_first
from ddp_lint.launch.random_state import Apart, draws_apart
from ddp_lint.launch.ranks import several_ranks
from ddp_lint.project import Project
from ddp_lint.project.facts import ModuleFacts
from ddp_lint.rules.base import Rule
from ddp_lint.rules.data.loading import files_of_programs, is_sampler, ranks_share
from ddp_lint.rules.data.set_orders import numbered_by_set
from ddp_lint.rules.triggers import Triggers
from ddp_lint.source.imports import dotted_ast, last_part
from ddp_lint.source.syntax import FunctionNode, argument_at, calls_below, function_at, statements_in_order, walk
from ddp_lint.view.as_ast import as_ast
from ddp_lint.view.wraps import argument

#: What draws an order, and what brings a list into one.
_ORDERS = frozenset({"torch.randperm", "numpy.random.permutation"})
_SHUFFLE = "shuffle"
#: What gives all ranks the list of one.
_SHARING = frozenset({"broadcast", "broadcast_object_list"})
#: What makes a set; what a program has that gives all ranks one numbering, or each process one hash; how it is kept.
_SETS = re.compile(r"\bset\(|\{[^{}:]*\bfor\b")
_SAME = re.compile(r"broadcast_object_list|PYTHONHASHSEED[\s\S]*exec[vl]")
_KEEPS = re.compile(r"\bexists\(|is_file\(|\b(json|pickle|pkl|yaml)\.(dump|load)|open\([^)\n]*['\"]wb?['\"]")
#: Methods that a worker of a loader runs, whose generators the loader seeds.
_OF_WORKERS = frozenset({"__iter__", "__getitem__"})


class OrdersDifferByRank(Rule):
    """Each rank takes its share of another order, so the shares overlap and some samples are left out.

    ## What it does

    Finds a shuffling `DistributedSampler` whose `seed` is another number on each rank: it has the rank in it, also
    through names, settings and functions of the project, or each process draws it for itself. Also a list that is
    shuffled and then divided by the rank (`order[rank::world_size]`), if the generator that it is shuffled by is in
    another state on each rank: seeded by the rank, or by nothing in the program. Also words that are numbered in the
    order of a set, for a model that the ranks share (`stoi = {w: i for i, w in enumerate(list(set(words)))}`).

    ## Why it breaks

    Rank 0 and rank 1 divide the data by taking every second index of one order. That works if both have drawn the same
    order. With another seed on each rank about half of the samples of an epoch come twice, or not at all, in every
    epoch others. There is no error, and the lengths are right. Measured on gloo (two ranks, torch 2.13) with
    `seed=rank`: 8 of 9 samples were seen.

    Python salts the hash of a text by another number in each process, and with it the order of a set of texts. Where
    that order numbers the words, rank 0 and rank 1 look up different rows of one embedding for the same word, and each
    step averages their gradients. Only the numbering of the rank that saves it fits the checkpoint, and not that well.

    ## Example

    ```python
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel as DDP
    from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

    dist.init_process_group("gloo")
    data = TensorDataset(torch.arange(64.0).unsqueeze(1))
    sampler = DistributedSampler(data, seed=dist.get_rank())  # <- DDP712
    model = DDP(torch.nn.Linear(1, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for (x,) in DataLoader(data, batch_size=8, sampler=sampler):
            model(x).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    dist.destroy_process_group()
    ```

    ## Use instead

    ```python
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel as DDP
    from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

    dist.init_process_group("gloo")
    data = TensorDataset(torch.arange(64.0).unsqueeze(1))
    sampler = DistributedSampler(data, seed=0)
    model = DDP(torch.nn.Linear(1, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for (x,) in DataLoader(data, batch_size=8, sampler=sampler):
            model(x).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    dist.destroy_process_group()
    ```

    Augmentation has to differ between the ranks, the order must not: keep one seed for the sampler, and seed the
    generators that augment by the rank.

    ## When it is silent

    `shuffle=False`; samplers of one replica (`num_replicas=1`), by which each rank goes through all of the data; own
    classes of samplers; a seed in which the rank is only tested, or that a function makes without it; lists that a
    generator of one seed has shuffled, and those that one rank hands to all (`broadcast_object_list`); programs that
    call or import anything that may seed, unless the last seed above the shuffle is seen to have the rank in it; what
    the workers of a loader shuffle. Sorted words, sets of what may be no texts, numberings that are loaded or handed to
    all ranks, and dictionaries whose names do not say that they number words, labels or classes.

    ## How to confirm

    `ddp-lint verify train.py`: samples that rank 0 drew are among those of rank 1.

    ## Fix safety

    No automatic fix: the order of the samples changes, as it should.

    ## References

    - https://pytorch.org/docs/stable/data.html#torch.utils.data.distributed.DistributedSampler
    """

    triggers = Triggers(
        "DistributedSampler", "shuffle", "randperm", "permutation", *table("data")["numberings"], tests=False
    )
    of_several = True
    oracles = ("overlap",)
    confidence = Confidence.MEDIUM

    def visit_Call(self, node: cst.Call) -> None:
        if not is_sampler(self.module, node) or is_always_false(self.module, argument(node, 3, "shuffle"), node):
            return
        facts, call = self.module.facts, as_ast(self.module, node)
        seed = argument_at(call, 4, "seed") if isinstance(call, ast.Call) else None
        replicas = argument_at(call, 1, "num_replicas") if isinstance(call, ast.Call) else None
        if facts is None or seed is None or (isinstance(replicas, ast.Constant) and replicas.value == 1):
            return
        apart = self._seed_apart(facts, seed)
        if apart is not None and several_ranks(self.module, node) is not None:
            self._report(node, apart, (facts.file.span_of(seed), "another number on each rank"))

    def _seed_apart(self, facts: ModuleFacts, seed: ast.expr) -> Apart | None:
        """How a seed differs between the ranks: by the rank, or as a number that each process draws."""
        project, around = self.module.project, function_at(facts.tree, seed.lineno)
        assert project is not None
        place = Place(facts, around)
        if is_by_rank(project, seed, place):
            return Apart(facts.file.span_of(seed))
        values = [seed, *assigned_above(place, dotted_ast(seed), seed.lineno)]
        calls = [call for value in values for call in calls_below(value)]
        if any(facts.qualified(call.func) in table("data")["drawn_anew"] for call in calls):
            return Apart(facts.file.span_of(seed))
        drawn = (call for call in calls if facts.qualified(call.func) in table("data")["drawn_on"])
        files = list(files_of_programs(self.module))
        return next(filter(None, (draws_apart(project, call, place, files) for call in drawn)), None)

    def visit_Subscript(self, node: cst.Subscript) -> None:
        facts, project = self.module.facts, self.module.project
        index = node.slice[0].slice if len(node.slice) == 1 else None
        if facts is None or project is None or not isinstance(index, cst.Slice) or index.step is None:
            return
        share = as_ast(self.module, node)
        if not isinstance(share, ast.Subscript) or not isinstance(share.slice, ast.Slice) or share.slice.lower is None:
            return
        around = function_at(facts.tree, share.lineno)
        place = Place(facts, around)
        if around is None or around.name in _OF_WORKERS or not is_by_rank(project, share.slice.lower, place):
            return
        for draw in _orders(facts, around, share):
            apart = draws_apart(project, draw, place, list(files_of_programs(self.module)))
            if apart is not None and several_ranks(self.module, node) is not None and ranks_share(self.module):
                self._report(node, apart, (facts.file.span_of(draw), "each rank draws an order of its own"))
            return

    def finish(self) -> None:
        """Words that are numbered in the order of a set."""
        facts, project = self.module.facts, self.module.project
        if facts is None or project is None or _SETS.search(facts.file.code) is None:
            return
        for found in numbered_by_set(project, facts):
            if self._is_kept(project, facts, found.function) or several_ranks(self.module) is None:
                continue
            files = list(files_of_programs(self.module))
            if any(each.file.shows(_SAME) for each in files) or not any(project.texts.shows(e, "wraps") for e in files):
                return
            self.report(
                facts.file.span_of(found.order),
                f"`{found.name}` numbers in the order of a set of texts, which is another one in each process",
                notes=["rank 0 and rank 1 give the same word another number: they train different rows for it"],
                labels=[(facts.file.span_of(found.set), "Python salts the hash of a text in each process")],
                help="sort the set: words = sorted(words)",
            )

    def _is_kept(self, project: Project, facts: ModuleFacts, function: FunctionNode) -> bool:
        """Whether a numbering is written to a file or loaded from one, here or where it is made, or made on one rank,
        which may hand it to the others."""
        sites = sites_that_run(project, facts, function)
        around = [function, *(site.around for site in sites if site.around is not None)]
        if any(_KEEPS.search(ast.unparse(each)) for each in around):
            return True
        return any(is_on_first(self.module, site.facts, site.node) for site in sites)

    def _report(self, node: cst.CSTNode, apart: Apart, first: tuple[Span, str]) -> None:
        labels = [first]
        if apart.seeded is not None and apart.seeded != first[0]:
            labels.append((apart.seeded, "seeded by the rank"))
        why = "nothing in the program seeds what it draws from: each process starts with a state of its own"
        self.report(
            node,
            "each rank takes its share of another order: the shares overlap, and some samples are left out",
            notes=["rank 0 and rank 1 train on some samples both, and on others neither", *[why] * (not apart.seeded)],
            labels=labels,
            help="shuffle by one seed on all ranks, and seed by the rank only what augments",
        )


def _orders(facts: ModuleFacts, around: ast.AST, share: ast.Subscript) -> Iterator[ast.Call]:
    """What draws the order of a list that is divided, the last one first: what it is assigned, or what shuffles it."""
    name = dotted_ast(share.value)
    found = [c for c in calls_below(share.value) if _is_order(facts, c)] if not name else []
    for node in statements_in_order(around) if name else ():
        if not isinstance(node, (ast.Assign, ast.Expr)) or node.lineno >= share.lineno:
            continue
        if isinstance(node, ast.Assign) and any(name in map(dotted_ast, _parts(one)) for one in node.targets):
            calls = [c for c in walk(node.value) if isinstance(c, ast.Call)]
            found = [c for c in calls if _is_order(facts, c)]
        elif isinstance(node.value, ast.Call) and last_part(node.value.func) == _SHUFFLE and node.value.args:
            found = [node.value] if dotted_ast(node.value.args[0]) == name else found
        elif isinstance(node.value, ast.Call) and last_part(node.value.func) in _SHARING:
            found = [] if name in map(dotted_ast, node.value.args) else found
    yield from reversed(found)


def _parts(target: ast.expr) -> list[ast.expr]:
    return target.elts if isinstance(target, ast.Tuple | ast.List) else [target]


def _is_order(facts: ModuleFacts, call: ast.Call) -> bool:
    return facts.qualified(call.func) in _ORDERS or last_part(call.func) == "permutation"
