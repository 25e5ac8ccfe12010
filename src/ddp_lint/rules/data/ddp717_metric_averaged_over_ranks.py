from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import libcst as cst

from ddp_lint.findings import Confidence
from ddp_lint.knowledge import table
from ddp_lint.knowledge.tensors import words_of
from ddp_lint.launch.by_rank import Place, called_function
from ddp_lint.launch.ranks import several_ranks
from ddp_lint.project import Project
from ddp_lint.project.facts import ModuleFacts
from ddp_lint.rules.base import Rule
from ddp_lint.rules.data.loading import files_of_programs
from ddp_lint.rules.triggers import Triggers
from ddp_lint.source.imports import dotted_ast, last_part
from ddp_lint.source.syntax import FunctionNode, argument_at, calls_below, function_at, statements, walk
from ddp_lint.view.as_ast import as_ast

_REDUCES = frozenset({"torch.distributed.all_reduce", "torch.distributed.reduce"})
#: Packages that divide the data of an evaluation by themselves.
_DIVIDING = frozenset({"accelerate", "lightning", "pytorch_lightning"})
#: A line that divides the data of an evaluation among the ranks.
_PART = re.compile(
    r"(?mi)^(?=.*(val|test|eval|dev)).*(DistributedSampler\(|DistributedEvalSampler\(|sampler=\w*(val|test|eval|dev)"
    r"|Subset\(.*rank|shard\(|rank\w*\s*::)"
)
_GATHERS = re.compile(r"gather|concat_all|collect_results")
_SIZE = re.compile(r"world|num_processes|n_gpus|num_gpus|nproc|num_replicas|get_size")
#: Names and functions that a metric is followed through.
_STEPS = 4


class MetricAveragedOverRanks(Rule):
    """A metric of each rank's part is averaged over the ranks, though that of all samples is no average of parts.

    ## What it does

    Finds a metric that is no mean over the samples (average precision, ROC AUC, F1, a correlation, of scikit-learn,
    SciPy, NumPy, torch or `torchmetrics.functional`), which each rank computes over its part of the validation data,
    and which is then averaged over the ranks: by `all_reduce` and a division by the number of ranks, or
    `ReduceOp.AVG`, by a function of the project that does this, by `accelerator.reduce(.., "mean")`, or by
    `self.log(.., sync_dist=True)` at the end of an epoch.

    ## Why it breaks

    Accuracy is a mean: the accuracies of parts of equal size have that of the whole as their mean. Average precision
    ranks all samples by their scores, and F1 divides by counts that differ from part to part, so that with more ranks
    another number is reported for the same model. There is no error. Measured with 1000 random samples, of which 5% are
    positive: the average precision is 0.259, and the mean of those of eight parts 0.323.

    ## Example

    ```python
    import torch
    import torch.distributed as dist
    from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

    dist.init_process_group("gloo")
    torch.manual_seed(0)

    data = TensorDataset(torch.arange(16.0), torch.randn(16))
    val_loader = DataLoader(data, batch_size=4, sampler=DistributedSampler(data, shuffle=False))
    scores, truth = (torch.cat(parts) for parts in zip(*val_loader))
    corr = torch.corrcoef(torch.stack([scores, truth]))[0, 1].item()  # <- DDP717
    total = torch.tensor(corr)
    dist.all_reduce(total)
    print("correlation", total.item() / dist.get_world_size())

    dist.destroy_process_group()
    ```

    ## Use instead

    ```python
    import torch
    import torch.distributed as dist
    from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

    dist.init_process_group("gloo")
    torch.manual_seed(0)

    data = TensorDataset(torch.arange(16.0), torch.randn(16))
    val_loader = DataLoader(data, batch_size=4, sampler=DistributedSampler(data, shuffle=False))
    mine = torch.stack([torch.cat(parts) for parts in zip(*val_loader)])
    parts = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, mine)
    corr = torch.corrcoef(torch.cat(parts, 1))[0, 1].item()
    print("correlation", corr)

    dist.destroy_process_group()
    ```

    ## When it is silent

    Metrics in a function that gathers anything, itself or in what it calls, or whose callers do; metrics of single
    batches; F1, precision and recall that count all classes together (`average="micro"`); programs in which nothing
    shows that the validation data is divided; what is not averaged.

    ## How to confirm

    `ddp-lint verify train.py`: the value at the line differs between the ranks.

    ## Fix safety

    No automatic fix: the predictions have to be gathered, or counts to be summed.

    ## References

    - https://scikit-learn.org/stable/modules/generated/sklearn.metrics.average_precision_score.html
    """

    triggers = Triggers(*sorted({name.rpartition(".")[2] for name in table("data")["set_metrics"]}), tests=False)
    of_several = True
    oracles = ("metric",)
    confidence = Confidence.MEDIUM

    def visit_Call(self, node: cst.Call) -> None:
        facts, project = self.module.facts, self.module.project
        if facts is None or project is None or self.module.file.is_test:
            return
        name = self.module.qualified(node.func)
        if name not in table("data")["set_metrics"]:
            return
        call = as_ast(self.module, node)
        if not isinstance(call, ast.Call) or _is_mean(name, call):
            return
        place = Place(facts, function_at(facts.tree, call.lineno))
        if _is_of_batch(place, call) or _gathers(project, place, _STEPS // 2):
            return
        averaged = _averaged(project, place, call)
        if averaged is None or several_ranks(self.module, node) is None or not self._is_divided():
            return
        self.report(
            node,
            f"the mean of what the ranks get from `{last_part(call.func)}` is not that of all samples",
            notes=["each rank computes it over its own part, and the mean of these changes with their number"],
            labels=[(facts.file.span_of(averaged), "averaged over the ranks")],
            help="gather predictions and targets of all ranks, and compute the metric once over them",
        )

    def _is_divided(self) -> bool:
        """Whether the programs divide the data of their evaluation."""
        files = list(files_of_programs(self.module))
        if any(not _DIVIDING.isdisjoint(each.imports.packages) for each in files):
            return True
        return any(_PART.search(each.file.code) is not None for each in files)


def _is_mean(name: str, call: ast.Call) -> bool:
    given = {keyword.arg: keyword.value for keyword in call.keywords}.get("average")
    micro = isinstance(given, ast.Constant) and given.value == "micro"
    return name in table("data")["means_by_micro"] and micro


def _is_of_batch(place: Place, call: ast.Call) -> bool:
    """Whether a metric is computed for each batch: in a loop over a loader, or in a step of Lightning."""
    if place.around is not None and place.around.name.endswith("_step"):
        return True
    loops = (n for n in walk(place.around or place.facts.tree) if isinstance(n, (ast.For, ast.AsyncFor)))
    around = (n for n in loops if n.lineno < call.lineno <= (n.end_lineno or n.lineno))
    return any(re.search(r"load|batch|\bdl\b|_dl\b|prefetch|\bdata\b", ast.unparse(n.iter)) for n in around)


def _gathers(project: Project, place: Place, depth: int) -> bool:
    """Whether the function around, what it calls, or a function that calls it gathers anything."""
    scope = place.around
    if scope is None:
        return any(_GATHERS.search(last_part(call.func)) for call in calls_below(place.facts.tree))
    callers = [at.around or at.facts.tree for _, at in place.callers(project)]
    if any(_GATHERS.search(last_part(call.func)) for each in (scope, *callers) for call in calls_below(each)):
        return True
    inner = [called_function(project, call, place) for each in (scope,) for call in calls_below(each)] if depth else []
    return any(found is not None and _gathers_inside(project, *found, depth - 1) for found in inner)


def _gathers_inside(project: Project, facts: ModuleFacts, function: FunctionNode, depth: int) -> bool:
    def found() -> bool:
        if any(_GATHERS.search(last_part(call.func)) for call in calls_below(function)):
            return True
        inner = (called_function(project, c, Place(facts, function)) for c in calls_below(function)) if depth else ()
        return any(each is not None and _gathers_inside(project, *each, depth - 1) for each in inner)

    return bool(project.remember(("gathers inside", function.name, function.lineno, depth), found, facts.kept))


def _averaged(project: Project, place: Place, metric: ast.Call) -> ast.AST | None:
    """Where the value of a metric is averaged over the ranks in the function around."""
    scope = place.around or place.facts.tree
    names = set(_held(scope, metric))

    def holds(node: ast.AST) -> bool:
        return any(part is metric or (dotted_ast(part) in names) for part in walk(node))

    for call in (each for each in calls_below(scope) if each.lineno >= metric.lineno and each is not metric):
        given = [*call.args, *(keyword.value for keyword in call.keywords)]
        if not any(map(holds, given)):
            continue
        if place.facts.qualified(call.func) in _REDUCES:
            if _by_op(call) or any(_divides(n) and holds(n) for n in walk(scope)):
                return call
        elif _is_mean_over_ranks(project, place, call):
            return call
    return None


def _held(scope: ast.AST, metric: ast.Call) -> Iterator[str]:
    """The names that hold the value of a metric, alone or with others."""
    names: set[str] = set()
    assigns = [n for n in statements(scope) if isinstance(n, (ast.Assign, ast.AnnAssign)) and n.value is not None]
    below = [n for n in assigns if (n.end_lineno or n.lineno) >= metric.lineno]
    for _ in range(_STEPS):
        for node in below:
            value = node.value if node.value is not None else metric
            if any(part is metric or dotted_ast(part) in names for part in walk(value)):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                names |= {dotted_ast(target) for target in targets} - {"", "self"}
    yield from names


def _by_op(call: ast.Call) -> bool:
    op = argument_at(call, 1, "op")
    return op is not None and last_part(op) == "AVG"


def _divides(node: ast.AST) -> bool:
    """``total / world_size``, ``total /= dist.get_world_size()``."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
        return _SIZE.search(ast.unparse(node.right)) is not None
    return (
        isinstance(node, ast.AugAssign)
        and isinstance(node.op, ast.Div)
        and (_SIZE.search(ast.unparse(node.value)) is not None)
    )


def _is_mean_over_ranks(project: Project, place: Place, call: ast.Call) -> bool:
    """Whether a call averages what it is given over the ranks: by a framework, or in a function of the project."""
    name, given = last_part(call.func), {keyword.arg: keyword.value for keyword in call.keywords}
    if dotted_ast(call.func) == "self.log" or dotted_ast(call.func) == "self.log_dict":
        synced, how = given.get("sync_dist"), given.get("reduce_fx")
        return isinstance(synced, ast.Constant) and synced.value is True and how is None
    if name in ("reduce", "all_reduce") and not _DIVIDING.isdisjoint(place.facts.imports.packages):
        how = given.get("reduction") or given.get("reduce_op") or (call.args[1] if len(call.args) > 1 else None)
        return isinstance(how, ast.Constant) and how.value == "mean"
    if not words_of(name) & {"reduce", "average", "avg", "mean", "sync", "allreduce", "across"}:
        return False
    found = called_function(project, call, place)
    if found is None:
        return False
    reduces = [c for c in calls_below(found[1]) if found[0].qualified(c.func) in _REDUCES]
    divides = any(_divides(n) for n in walk(found[1]))
    return any(_by_op(each) or divides for each in reduces)
