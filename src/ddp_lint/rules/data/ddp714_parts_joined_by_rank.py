from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import libcst as cst

from ddp_lint.findings import Confidence, Span
from ddp_lint.launch.by_rank import Place, assigned_above
from ddp_lint.launch.ranks import several_ranks
from ddp_lint.project import Project
from ddp_lint.project.facts import ModuleFacts
from ddp_lint.rules.base import Rule
from ddp_lint.rules.data.loading import SAMPLER, files_of_programs
from ddp_lint.rules.triggers import Triggers
from ddp_lint.source.imports import dotted_ast, last_part
from ddp_lint.source.syntax import FunctionNode, argument_at, calls_below, function_at, statements, walk
from ddp_lint.view.as_ast import as_ast

#: Collectives that bring a list of parts, rank after rank, as their first argument.
_GATHERS = frozenset({"torch.distributed.all_gather", "torch.distributed.all_gather_object"})
#: What brings results into an order of its own, or makes one number of them, for which the order does not matter.
_ORDERS = re.compile(
    r"\bargsort\(|\bsort(ed)?\(|\bscatter_?\(|index_copy|\bind(ex|ice)s?\w* *=|\bids? *=|interleave"
    r"|\bmean\(|\.sum\(|\.std\(|\bcov\("
)
#: Own samplers, which may give each rank neighbouring samples.
_OWN_SAMPLER = re.compile(r"class \w+\([\w., ]*Sampler\)|SequentialDistributedSampler|InferenceSampler")


class PartsJoinedByRank(Rule):
    """Results of a DistributedSampler are joined rank after rank: item k is not the result for sample k.

    ## What it does

    Finds what all ranks have gathered (`all_gather`, `all_gather_object`), joined part after part (`torch.cat(parts)`,
    `sum(parts, [])`) and cut to the size of the data (`[:len(data)]`), in a program whose data a `DistributedSampler`
    with `shuffle=False` divides, where nothing else is gathered with it.

    ## Why it breaks

    The sampler deals the samples out in turn: of eight samples on two ranks rank 0 has 0, 2, 4, 6 and rank 1 has 1, 3,
    5, 7. Joined part after part the second result is that of sample 2. The cut does not help either: what the sampler
    repeats to fill up is at the end of several parts, so that on more than two ranks it may cut off results and keep
    repeated ones. There is no error, and the number of results is right.

    ## Example

    ```python
    import torch
    import torch.distributed as dist
    from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

    dist.init_process_group("gloo")

    data = TensorDataset(torch.arange(8.0))
    loader = DataLoader(data, batch_size=2, sampler=DistributedSampler(data, shuffle=False))
    found = torch.cat([10 * x for (x,) in loader])
    parts = [torch.empty_like(found) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, found)
    results = torch.cat(parts)[: len(data)]  # <- DDP714
    print(dict(enumerate(results.tolist())))

    dist.destroy_process_group()
    ```

    ## Use instead

    ```python
    import torch
    import torch.distributed as dist
    from torch.utils.data import DataLoader, Subset, TensorDataset

    dist.init_process_group("gloo")

    data = TensorDataset(torch.arange(8.0))
    share = len(data) // dist.get_world_size()
    mine = Subset(data, range(dist.get_rank() * share, (dist.get_rank() + 1) * share))
    found = torch.cat([10 * x for (x,) in DataLoader(mine, batch_size=2)])
    parts = [torch.empty_like(found) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, found)
    results = torch.cat(parts)
    print(dict(enumerate(results.tolist())))

    dist.destroy_process_group()
    ```

    With the sampler, bring the results into the order in which it deals: `torch.stack(parts, 1).flatten(0, 1)[:n]`, or
    gather the numbers of the samples with them.

    ## When it is silent

    Parts that are interleaved (`torch.stack(parts, 1)`, `zip(*parts)`); programs with a sampler of their own; functions
    that sort, take a mean or a sum, or gather anything besides, such as the labels or the numbers of the samples;
    results that are not cut to the size of the data; data that is shuffled.

    ## How to confirm

    `ddp-lint verify predict.py`: the samples of each rank are dealt out in turn.

    ## Fix safety

    No automatic fix.

    ## References

    - https://pytorch.org/docs/stable/data.html#torch.utils.data.distributed.DistributedSampler
    """

    triggers = Triggers("all_gather", "all_gather_object", tests=False)
    of_several = True
    oracles = ("dealt",)
    confidence = Confidence.MEDIUM

    def visit_Call(self, node: cst.Call) -> None:
        facts, project, call = self.module.facts, self.module.project, None
        if facts is not None and project is not None and self.module.qualified(node.func) in _GATHERS:
            call = as_ast(self.module, node)
        if facts is None or project is None or not isinstance(call, ast.Call) or not call.args:
            return
        around = function_at(facts.tree, call.lineno)
        place, scope = Place(facts, around), around or facts.tree
        if len(list(_gathers(facts, scope))) > 1 or _ORDERS.search(ast.unparse(scope)):
            return
        cut = next((c for c in _cuts(facts, scope, dotted_ast(call.args[0])) if _is_size(project, c, place)), None)
        if cut is None or self._is_ordered_elsewhere(project, place) or several_ranks(self.module, node) is None:
            return
        self._report(node, facts.file.span_of(cut))

    def _report(self, gather: cst.Call, cut: Span) -> None:
        self.report(
            cut,
            "these parts are joined rank after rank, but the sampler deals in turn: item k is not sample k's",
            notes=["of 8 samples on two ranks rank 0 has 0, 2, 4, 6 and rank 1 has 1, 3, 5, 7"],
            labels=[(gather, "brings one part of each rank")],
            help="interleave them as the sampler deals: torch.stack(parts, 1).flatten(0, 1)[:n]",
        )

    def _is_ordered_elsewhere(self, project: Project, place: Place) -> bool:
        """Whether the program does not deal its data in turn, or callers gather several things, or order them."""
        files = list(files_of_programs(self.module))
        if any(each.file.shows(_OWN_SAMPLER) for each in files) or not any(map(_deals, files)):
            return True
        callers = [at for _, at in place.callers(project)]
        scopes = [at.around or at.facts.tree for at in callers]
        return len(callers) > 1 or any(_ORDERS.search(ast.unparse(scope)) for scope in scopes)


def _deals(facts: ModuleFacts) -> bool:
    """Whether a file makes a DistributedSampler that keeps the order."""
    calls = (c for c in calls_below(facts.tree) if facts.qualified(c.func) == SAMPLER)
    shuffles = (argument_at(call, 3, "shuffle") for call in calls)
    return any(isinstance(each, ast.Constant) and each.value is False for each in shuffles)


def _gathers(facts: ModuleFacts, scope: ast.AST) -> Iterator[ast.Call]:
    yield from (c for c in calls_below(scope) if "gather" in last_part(c.func))


def _cuts(facts: ModuleFacts, scope: ast.AST, parts: str) -> Iterator[ast.Subscript]:
    """Where what is joined of some parts is cut at its end: ``torch.cat(parts)[:n]``, also by its name."""
    joined = [c for c in calls_below(scope) if parts and _joins(facts, c, parts)]
    named = {dotted_ast(n.targets[0]) for n in statements(scope) if isinstance(n, ast.Assign) and n.value in joined} - {
        ""
    }
    for node in walk(scope):
        if not isinstance(node, ast.Subscript) or not isinstance(node.slice, ast.Slice):
            continue
        at_end = node.slice.lower is None and node.slice.step is None and node.slice.upper is not None
        if at_end and (node.value in joined or dotted_ast(node.value) in named):
            yield node


def _joins(facts: ModuleFacts, call: ast.Call, parts: str) -> bool:
    """Whether a call joins a list part after part."""
    name, first = facts.qualified(call.func) or dotted_ast(call.func), call.args[0] if call.args else None
    if first is None or dotted_ast(first) != parts:
        return False
    if name in ("torch.cat", "torch.concat", "torch.vstack", "numpy.concatenate"):
        along = argument_at(call, 1, "dim") or argument_at(call, 1, "axis")
        return along is None or (isinstance(along, ast.Constant) and along.value == 0)
    return name == "sum" and len(call.args) > 1 and isinstance(call.args[1], ast.List)


def _is_size(project: Project, cut: ast.Subscript, place: Place) -> bool:
    """Whether a list is cut to the length of something, here or as the callers give it."""
    upper = cut.slice.upper if isinstance(cut.slice, ast.Slice) else None
    if upper is None:
        return False
    values = [upper, *assigned_above(place, dotted_ast(upper), upper.lineno)]
    around: FunctionNode | None = place.around
    if around is not None and isinstance(upper, ast.Name):
        values += [v for site, _ in place.callers(project) if (v := site.given(around, upper.id)) is not None]
    return any(isinstance(value, ast.Call) and dotted_ast(value.func) == "len" for value in values)
