from __future__ import annotations

import ast
import collections
import dataclasses
from collections.abc import Iterator

import libcst as cst

from ddp_lint.findings import Confidence
from ddp_lint.knowledge.tensors import words_of
from ddp_lint.launch.helpers import Helper, helper_of
from ddp_lint.launch.one_rank import on_one_rank
from ddp_lint.launch.ranks import several_ranks
from ddp_lint.project import Project
from ddp_lint.project.facts import ClassFacts, ModuleFacts, assigned_in
from ddp_lint.rules.base import Rule
from ddp_lint.rules.data.loading import LOADERS, SAMPLER, is_part_of_rank, is_sampler
from ddp_lint.rules.data.logged_alone import HOOKS, MODULE, is_watched_by_ranks, logged_alone, watched
from ddp_lint.rules.triggers import Triggers
from ddp_lint.source import dotted
from ddp_lint.source.imports import dotted_ast, last_part, of_self
from ddp_lint.source.queries import calls_in
from ddp_lint.source.syntax import FunctionNode, walk
from ddp_lint.source.tree import called, descendants, subtree
from ddp_lint.view.scopes import Binding
from ddp_lint.view.wraps import argument

#: Functions of torch.distributed that bring nothing together.
_ASKING = (
    "get_rank",
    "get_world_size",
    "is_initialized",
    "is_available",
    "init_process_group",
    "destroy_process_group",
    "barrier",
    "get_backend",
)
#: What a method that nothing resolves is called that brings the ranks' parts together.
_JOINING = frozenset({"reduce", "allreduce", "gather", "allgather", "synchronize", "sync", "broadcast", "across"})
_SAVING = frozenset({"save", "checkpoint"})
_ORDER = (cst.LessThan, cst.GreaterThan, cst.LessThanEqual, cst.GreaterThanEqual)
_DEPTH = 2  # calls that an evaluation is followed into


class BestOfOneRank(Rule):
    """The best checkpoint is chosen by the metric of one rank's part of the validation data.

    ## What it does

    Finds a metric that a rank computes over a loader with a `DistributedSampler` (made there or
    by a function of the project), or over a `Subset` whose indices the rank takes by its number, and that is compared
    with the best one so far to decide whether the model is saved, if the metrics of the ranks are never combined. Also
    `self.log("val_loss", loss)` without `sync_dist=True` in the validation of a `LightningModule`, where a callback or
    a scheduler of the project watches `val_loss`. Where it is not in the programs of that module, or their trainer does
    not say that it runs on several devices, that takes `--preview`.

    ## Why it breaks

    The sampler gives each rank its own part. With eight ranks rank 0 has seen an eighth of the validation data, and
    saves the model that is best on this part, which need not be the best one. There is no error, and the logged metric
    is that of the part. If each rank decides on its own, some ranks stop early or load different weights, and a
    `ReduceLROnPlateau` gives the ranks different learning rates. Lightning divides the validation data by itself, and
    hands each rank's callbacks the value that this rank has logged.

    ## Example

    ```python
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel as DDP
    from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

    dist.init_process_group("gloo")
    torch.manual_seed(0)


    def main(epochs=2):
        data = TensorDataset(torch.arange(16.0).unsqueeze(1))
        loader = DataLoader(data, batch_size=4, sampler=DistributedSampler(data, shuffle=False))
        model = DDP(torch.nn.Linear(1, 1))
        best = float("inf")
        for _ in range(epochs):
            total = torch.zeros(())
            with torch.no_grad():
                for (x,) in loader:
                    total += (model(x) - 2 * x).square().mean()
            error = total.item() / len(loader)  # <- DDP709
            if error < best and dist.get_rank() == 0:
                best = error
                print("saved", {name: p.shape for name, p in model.module.state_dict().items()})


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
    torch.manual_seed(0)


    def main(epochs=2):
        data = TensorDataset(torch.arange(16.0).unsqueeze(1))
        loader = DataLoader(data, batch_size=4, sampler=DistributedSampler(data, shuffle=False))
        model = DDP(torch.nn.Linear(1, 1))
        best = float("inf")
        for _ in range(epochs):
            total = torch.zeros(())
            with torch.no_grad():
                for (x,) in loader:
                    total += (model(x) - 2 * x).square().mean()
            dist.all_reduce(total)
            error = total.item() / len(loader) / dist.get_world_size()
            if error < best and dist.get_rank() == 0:
                best = error
                print("saved", {name: p.shape for name, p in model.module.state_dict().items()})


    main()
    dist.destroy_process_group()
    ```

    ## When it is silent

    Loaders that are not known to be divided; a function in which, or in whose evaluation, anything reduces, gathers or
    broadcasts, or counts with the number of ranks; metrics of torchmetrics, which synchronise themselves; comparisons
    that save nothing, or with a value that is never set to the metric; evaluations in another package. In Lightning:
    metrics that nothing in the project watches by a name in its code or settings, values
    that come from `compute()` or a reduction, and what a helper logs.

    ## How to confirm

    `ddp-lint verify train.py`: the value at the line differs between the ranks.

    ## Fix safety

    No automatic fix.

    ## References

    - https://pytorch.org/docs/stable/data.html#torch.utils.data.distributed.DistributedSampler
    """

    confidence = Confidence.MEDIUM
    triggers = Triggers(
        "DistributedSampler", "save", "state_dict", *HOOKS, file=("save", "state_dict", *HOOKS), tests=False
    )
    oracles = ("metric",)

    def start(self) -> None:
        self._branches: dict[cst.FunctionDef | None, list[cst.If]] = collections.defaultdict(list)
        for branch in self.module.of_type(cst.If):
            self._branches[self.module.function_of(branch)].append(branch)

    def visit_FunctionDef(self, node: cst.FunctionDef) -> None:
        if node.name.value in HOOKS:
            self._check_logged(node)
        for branch in self._branches[node]:
            if self._saves(branch):
                for metric in self._compared(branch):
                    made = self._made(metric, branch)
                    loader = self._read_by(made, node) if made is not None else None
                    if made is not None and loader is not None and not self._joins_itself(node):
                        self._report(metric, made, branch, loader)
                        return

    def _check_logged(self, hook: cst.FunctionDef) -> None:
        owner, project = self.module.class_of(hook), self.module.project
        if owner is None or project is None or not self.module.is_subclass(owner, MODULE):
            return
        for call, metric in logged_alone(self.module, hook):
            if metric in watched(project) and several_ranks(self.module, call) is not None:
                self.report(
                    call,
                    f"`{metric}` is that of this rank's part of the data, but decides which checkpoint is the best",
                    notes=["rank 0 and rank 1 each log their own value, and their callbacks watch that"],
                    help="self.log(.., sync_dist=True), or log an object of torchmetrics",
                    # on how many devices the trainer runs is often said on the command line
                    confidence=Confidence.MEDIUM if is_watched_by_ranks(self.module, metric) else Confidence.LOW,
                )
                return

    def _report(self, metric: str, made: cst.BaseExpression, branch: cst.CSTNode, loader: cst.CSTNode) -> None:
        who = "rank 0" if on_one_rank(self.module, branch) else "each rank"
        self.report(
            made,
            f"`{metric}` covers only this rank's part of the data, but decides which checkpoint is the best",
            notes=[f"{who} decides by its own part of the samples, not by all of them"],
            labels=[(loader, "each rank reads its own part"), (branch, "the best so far is decided here")],
            help="all_reduce the sums and counts before they are compared",
        )

    # ---- which metric decides

    def _saves(self, branch: cst.If) -> bool:
        names = [called(call) for call in calls_in(branch.body)]
        return any(name == "state_dict" or words_of(name) & _SAVING for name in names)

    def _compared(self, branch: cst.If) -> Iterator[str]:
        """The metrics that a test compares with the best so far, which takes their value: ``if metric > best``, or
        ``is_best = metric > best`` before."""
        names = [dotted(n) for n in subtree(branch.test) if dotted(n)]
        tests = [branch.test, *(value for name in names for value in self.module.assignments(name, branch))]
        for part in (n for test in tests for n in subtree(test)):
            if isinstance(part, cst.Comparison) and len(part.comparisons) == 1:
                sides = dotted(part.left), dotted(part.comparisons[0].comparator)
                for metric, best in (sides, sides[::-1]) if isinstance(part.comparisons[0].operator, _ORDER) else ():
                    if metric and best and any(_takes(b, metric, best) for b in self.module.bindings(best, branch)):
                        yield metric

    def _made(self, metric: str, branch: cst.If) -> cst.BaseExpression | None:
        """What a metric comes from: ``accuracy = evaluate(..)``, ``loss, accuracy = evaluate(..)``."""
        line = self.module.span(branch).line
        bindings = [b for b in self.module.bindings(metric, branch) if b.kind == "assign" and b.value is not None]
        return next((b.value for b in reversed(bindings) if self.module.span(b.node).line < line), None)

    # ---- what it is computed over

    def _divided(self, loader: cst.BaseExpression | str, at: cst.CSTNode) -> cst.Call | None:
        """The making of a loader whose sampler gives each rank its part."""
        for made in self.module.assignments(loader, at):
            if isinstance(made, cst.Call) and self.module.qualified(made.func) in LOADERS:
                sampler = argument(made, 3, "sampler")
                values = [sampler, *self.module.assignments(sampler)] if sampler is not None else []
                if any(isinstance(v, cst.Call) and is_sampler(self.module, v) for v in values):
                    return made
                if sampler is None and made.args and is_part_of_rank(self.module, made.args[0].value):
                    return made
        project = self.module.project
        for binding in self.module.bindings(loader, at) if project is not None else ():
            helper = helper_of(self.module, binding.value) if isinstance(binding.value, cst.Call) else None
            if project is None or helper is None or not isinstance(binding.value, cst.Call):
                continue
            if _returns_divided(project, helper, binding.index):
                return binding.value
        return None

    def _read_by(self, made: cst.BaseExpression, function: cst.FunctionDef) -> cst.Call | None:
        """The divided loader that a metric is computed over: what an evaluation of the project is given or reads from
        its object, or what the loop reads that adds up the metric's terms."""
        evaluation = self._evaluation(made)
        if evaluation is not None and isinstance(made, cst.Call):
            given = [a.value for a in made.args if dotted(a.value)]
            read = (
                [f"self.{name}" for name in _looped_over(evaluation)] if dotted(made.func).startswith("self.") else []
            )
            loaders: list[cst.BaseExpression | str] = [*given, *read]
            found = next((made_by for x in loaders if (made_by := self._divided(x, made)) is not None), None)
            return found if not evaluation.joins() else None
        terms = {dotted(n) for n in subtree(made)} - {""}
        for loop in descendants(function.body):
            added = descendants(loop.body) if isinstance(loop, cst.For) else ()
            if isinstance(loop, cst.For) and any(
                isinstance(n, cst.AugAssign) and dotted(n.target) in terms for n in added
            ):
                found = self._divided(loop.iter, loop)
                if found is not None:
                    return found
        return None

    # ---- whether anything brings the ranks' parts together

    def _evaluation(self, made: cst.BaseExpression) -> _Evaluation | None:
        """The function of the project that a metric comes from, None where it is another's, or trains."""
        project = self.module.project
        name = self.module.callee(made) if isinstance(made, cst.Call) and project is not None else ""
        if project is None or not name or words_of(name.rpartition(".")[2]) & {"train", "fit"}:
            return None
        return _named(project, name)

    def _joins_itself(self, function: cst.FunctionDef) -> bool:
        project, line = self.module.project, self.module.span(function.name).line
        name = self.module.name_of(function)
        around = _named(project, name) if project is not None else None
        same = around is not None and around.function.name == function.name.value and around.function.lineno == line
        return not same or around is None or around.joins(0)


def _returns_divided(project: Project, helper: Helper, index: tuple[int, ...]) -> bool:
    """Whether all that a function of the project returns at a place are loaders with a sampler for ranks."""
    returned = [helper.part(value, index) for value in helper.returned]
    return bool(returned) and all(value is not None and _is_divided(project, helper, value) for value in returned)


def _is_divided(project: Project, helper: Helper, value: ast.expr) -> bool:
    made = _given_to(helper, value)
    if not isinstance(made, ast.Call) or project.meanings.of(helper.facts, made.func) not in LOADERS:
        return False
    given = [k.value for k in made.keywords if k.arg == "sampler"] or made.args[3:4]
    sampler = _given_to(helper, given[0]) if given else None
    return isinstance(sampler, ast.Call) and project.meanings.of(helper.facts, sampler.func) == SAMPLER


def _given_to(helper: Helper, value: ast.expr) -> ast.expr:
    """What a name of a function was given where it was given one thing alone; any other expression itself."""
    given = assigned_in(helper.function, value.id) if isinstance(value, ast.Name) else []
    return given[0] if len(given) == 1 else value


def _takes(binding: Binding, metric: str, best: str) -> bool:
    """``best = metric``, ``best = max(metric, best)``."""
    value = binding.value
    if isinstance(value, cst.Call) and dotted(value.func) in ("max", "min"):
        return {dotted(a.value) for a in value.args} == {metric, best}
    return binding.kind == "assign" and value is not None and not binding.index and dotted(value) == metric


@dataclasses.dataclass(frozen=True)
class _Evaluation:
    """A function of the project: whether it combines what the ranks have computed."""

    project: Project
    facts: ModuleFacts
    owner: ClassFacts | None
    function: FunctionNode

    def joins(self, depth: int = _DEPTH) -> bool:
        """Whether it calls a collective, a metric that synchronises itself, something that is named after it, or counts
        with the number of ranks; `depth`: the calls that are followed."""
        for node in walk(self.function):
            if isinstance(node, ast.BinOp) and any("world" in words_of(last_part(n)) for n in walk(node)):
                return True
            if isinstance(node, ast.Call) and self._is_joining(node, depth):
                return True
        return False

    def _is_joining(self, call: ast.Call, depth: int) -> bool:
        written = dotted_ast(call.func)
        name = self.project.meanings.of(self.facts, call.func)
        if name.startswith("torch.distributed."):
            return not name.endswith(_ASKING) and not name.rpartition(".")[2][:1].isupper()
        if name.startswith("torch."):  # ``convert_sync_batchnorm``, ``torch.cuda.synchronize``
            return False
        word = last_part(call.func)
        if words_of(word) & _JOINING or name.startswith("torchmetrics.") or word == "compute":
            return True
        if self.owner is not None and (method := of_self(written)):
            name = f"{self.owner.name}.{method}"
        inner = _named(self.project, name) if depth and name else None
        return inner is not None and inner.joins(depth - 1)


def _named(project: Project, name: str) -> _Evaluation | None:
    """A function of the project, or a method of a class of it, by its canonical name."""
    facts, function = project.meanings.definition(project.meanings.canonical(name)) or (None, None)
    if facts is not None and isinstance(function, FunctionNode):
        return _Evaluation(project, facts, None, function)
    owner, _, last = name.rpartition(".")
    method = project.classes.method(owner, last) if owner and project.classes.find(owner) is not None else None
    if method is None or not isinstance(method[1], FunctionNode):
        return None
    return _Evaluation(project, method[0].module, method[0], method[1])


def _looped_over(evaluation: _Evaluation) -> Iterator[str]:
    """The attributes of `self` that a method loops over: ``for x in tqdm(self.loader)``."""
    for loop in walk(evaluation.function):
        for node in walk(loop.iter) if isinstance(loop, ast.For) else ():
            if isinstance(node, ast.Attribute) and dotted_ast(node.value) == "self":
                yield node.attr
