from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import libcst as cst

from ddp_lint.findings import Confidence
from ddp_lint.launch.by_rank import Place, assigned_above, called_function
from ddp_lint.launch.ranks import several_ranks
from ddp_lint.project import Project
from ddp_lint.rules.base import Rule
from ddp_lint.rules.data.loading import LOADERS, SAMPLER
from ddp_lint.rules.triggers import Triggers
from ddp_lint.rules.wrapping.preparing import prepares
from ddp_lint.source.imports import dotted_ast, last_part
from ddp_lint.source.syntax import argument_at, calls_below, function_at, walk
from ddp_lint.source.tree import called
from ddp_lint.view.as_ast import as_ast

#: Schedules that are told how many steps there will be.
_SCHEDULES = frozenset(
    {
        "OneCycleLR", "CosineAnnealingLR", "get_cosine_schedule_with_warmup", "get_linear_schedule_with_warmup",
        "get_polynomial_decay_schedule_with_warmup", "get_cosine_with_hard_restarts_schedule_with_warmup",
        "get_scheduler",
    }
)  # fmt: skip
_NAMED = re.compile(r"sched|warmup|LR$|cosine|anneal", re.IGNORECASE)
#: How code says that it has counted the ranks.
_RANKS = re.compile(r"world|num_(replicas|processes|gpus|devices|tasks)|n_?gpus?|nproc|num_gpu|device_count|get_size")
#: Arguments of an Accelerator by which its schedules step once for each step, or are left alone.
_STEPS_ONCE = ("split_batches", "step_scheduler_with_optimizer", "AcceleratorState", "adjust_scheduler")
_DEPTH = 4


class ScheduleCountsOtherSteps(Rule):
    """A schedule of the learning rate counts the steps of another number of ranks than those that step it.

    ## What it does

    Finds a schedule that accelerate prepares, and whose number of steps comes from `len(loader)` of a loader that is
    prepared already; and one of torch or transformers whose number of steps comes from `len(data) // batch_size`, where
    a `DistributedSampler` divides the data.

    ## Why it breaks

    The length of a prepared loader is the number of batches of one rank. But a prepared schedule steps once for each
    process in every step, as it expects the number of steps of one process that reads all data: on two ranks the
    learning rate has reached its end after half of the run, on eight after an eighth, and the rest trains with none.
    Measured with accelerate 1.15 on two ranks: of 16 steps the last 8 had a learning rate of 0. The other way round, a
    rank of two makes half as many steps as the whole data has batches, so that a cosine ends in its middle. No rank
    raises, rank 0 and rank 1 are equal, and with one process both are right.

    ## Example

    ```python
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel as DDP
    from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

    dist.init_process_group("gloo")
    epochs, batch_size = 2, 4
    data = TensorDataset(torch.randn(64, 4))
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=batch_size, sampler=sampler)
    model = DDP(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    total = epochs * len(data) // batch_size
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, total)  # <- DDP716
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        for (x,) in loader:
            model(x).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
    print(schedule.get_last_lr())
    dist.destroy_process_group()
    ```

    ## Use instead

    ```python
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel as DDP
    from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

    dist.init_process_group("gloo")
    epochs, batch_size = 2, 4
    data = TensorDataset(torch.randn(64, 4))
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=batch_size, sampler=sampler)
    model = DDP(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs * len(loader))
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        for (x,) in loader:
            model(x).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
    print(schedule.get_last_lr())
    dist.destroy_process_group()
    ```

    With accelerate: take `len(loader)` before `prepare`, or multiply by `accelerator.num_processes`.

    ## When it is silent

    Numbers of steps that the ranks or processes have part in; an Accelerator with `split_batches` or
    `step_scheduler_with_optimizer=False`; a schedule that is not prepared; `len(data)` divided by another batch size
    than that of the loader.

    ## How to confirm

    `ddp-lint verify train.py`: the schedule is made for other steps than the run has made.

    ## Fix safety

    No automatic fix: the learning rates of the run change.

    ## References

    - https://huggingface.co/docs/accelerate/concept_guides/performance#learning-rates
    - https://github.com/huggingface/accelerate/issues/2926
    """

    confidence = Confidence.MEDIUM
    triggers = Triggers("prepare", *sorted(_SCHEDULES), tests=False)
    of_several = True
    oracles = ("schedule",)

    def visit_Call(self, node: cst.Call) -> None:
        facts, project = self.module.facts, self.module.project
        if facts is None or project is None or self.module.file.is_test:
            return
        by_accelerate = called(node) == "prepare" and prepares(self.module, node)
        if not by_accelerate and called(node) not in _SCHEDULES:
            return
        call = as_ast(self.module, node)
        if not isinstance(call, ast.Call):
            return
        place = Place(facts, function_at(facts.tree, call.lineno))
        if by_accelerate:
            self._visit_prepared(project, call, place)
        elif (length := _length_of_data(place, call)) is not None and several_ranks(self.module, node) is not None:
            self.report(
                node,
                "the schedule is for all batches of the data, but each rank makes its share of the steps alone",
                notes=["on two ranks the run ends in the middle of the schedule"],
                labels=[(facts.file.span_of(length), "counts what all ranks read together")],
                help="take the length of the loader, which is that of one rank's share",
            )

    def _visit_prepared(self, project: Project, call: ast.Call, place: Place) -> None:
        span_of = place.facts.file.span_of
        if any(word in place.facts.file.code for word in _STEPS_ONCE):
            return
        for given in call.args:
            made = [given, *assigned_above(place, dotted_ast(given), call.lineno)[:1]]
            schedule = next((each for each in made if isinstance(each, ast.Call)), None)
            if schedule is None or not _is_schedule(project, schedule, place):
                continue
            length = _length_of_prepared(place, schedule)
            if length is not None:
                self.report(
                    span_of(schedule),
                    "this schedule ends early: it counts the steps of one rank, but steps once for each rank",
                    notes=["on two ranks the learning rate is at its end after half of the run"],
                    labels=[(span_of(length), "of a prepared loader: the batches of one rank")],
                    help="count the steps before the loader is prepared, or multiply by accelerator.num_processes",
                )


def _is_schedule(project: Project, call: ast.Call, place: Place) -> bool:
    """Whether a call makes a schedule: one of torch or transformers, or a function of the project that makes one."""
    if last_part(call.func) in _SCHEDULES:
        return True
    found = called_function(project, call, place)
    if found is None:
        return last_part(call.func) == "LambdaLR"
    return any(_NAMED.search(last_part(each.func)) for each in calls_below(found[1]))


def _terms(place: Place, call: ast.Call) -> Iterator[ast.expr]:
    """What the arguments of a schedule are computed from, also by names above."""
    todo = [(each, _DEPTH) for each in (*call.args, *(k.value for k in call.keywords))]
    while todo:
        value, depth = todo.pop()
        yield value
        for part in walk(value) if depth else ():
            if isinstance(part, (ast.Name, ast.Attribute)) and dotted_ast(part):
                above = assigned_above(place, dotted_ast(part), part.lineno)
                todo += [(each, depth - 1) for each in above]


def _length_of_prepared(place: Place, schedule: ast.Call) -> ast.Call | None:
    """The length of a loader, taken behind its preparation, that a schedule counts by."""
    terms = list(_terms(place, schedule))
    if any(_RANKS.search(ast.unparse(term)) for term in terms):
        return None
    lengths = (n for term in terms for n in walk(term) if isinstance(n, ast.Call) and dotted_ast(n.func) == "len")
    for length in lengths:
        name = dotted_ast(length.args[0]) if length.args else ""
        made = assigned_above(place, name, length.lineno) if name else []
        if any(isinstance(each, ast.Call) and last_part(each.func) == "prepare" for each in made):
            return length
        if name and _is_unpacked_from_prepare(place, name, length.lineno):
            return length
    return None


def _is_unpacked_from_prepare(place: Place, name: str, line: int) -> bool:
    """``model, loader = accelerator.prepare(model, loader)`` above a line."""
    for node in walk(place.around or place.facts.tree):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and (node.end_lineno or 0) < line:
            targets = [part for target in node.targets if isinstance(target, ast.Tuple) for part in target.elts]
            if last_part(node.value.func) == "prepare" and any(dotted_ast(each) == name for each in targets):
                return True
    return False


def _length_of_data(place: Place, schedule: ast.Call) -> ast.BinOp | None:
    """The number of batches of all data, by the data and the batch size of a loader that has a share of it."""
    terms = list(_terms(place, schedule))
    if any(_RANKS.search(ast.unparse(term)) for term in terms):
        return None
    for node in (n for term in terms for n in walk(term) if isinstance(n, ast.BinOp)):
        data, size = _data_in(node.left), dotted_ast(node.right)
        if isinstance(node.op, (ast.Div, ast.FloorDiv)) and data and size and _is_divided(place, data, size):
            return node
    return None


def _data_in(value: ast.expr) -> str:
    """What the length is taken of: ``len(data)``, ``epochs * len(data)``."""
    for node in (value, *((value.left, value.right) if isinstance(value, ast.BinOp) else ())):
        if isinstance(node, ast.Call) and dotted_ast(node.func) == "len" and node.args:
            return dotted_ast(node.args[0])
    return ""


def _is_divided(place: Place, data: str, size: str) -> bool:
    """Whether a loader with this batch size has a share of the data, by a DistributedSampler."""
    scope = place.around or place.facts.tree
    written = [n.value for n in walk(scope) if isinstance(n, (ast.Assign, ast.AugAssign)) and _gives(n, size)]
    if any(_RANKS.search(ast.unparse(value)) for value in written):
        return False
    for call in calls_below(scope):
        sampler = argument_at(call, 3, "sampler")
        of_data = bool(call.args) and dotted_ast(call.args[0]) == data
        if place.facts.qualified(call.func) not in LOADERS or sampler is None or not of_data:
            continue
        by = argument_at(call, 1, "batch_size")
        held = [sampler, *assigned_above(place, dotted_ast(sampler), call.lineno)]
        made = (n for value in held for n in walk(value) if isinstance(n, ast.Call))
        if dotted_ast(by) == size and any(place.facts.qualified(n.func) == SAMPLER for n in made):
            return True
    return False


def _gives(node: ast.Assign | ast.AugAssign, name: str) -> bool:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    return any(dotted_ast(target) == name for target in targets)
