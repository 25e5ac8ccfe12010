from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import libcst as cst

from ddp_lint.findings import Confidence, Span
from ddp_lint.launch.callers import CallSite, call_sites
from ddp_lint.launch.ranks import several_ranks
from ddp_lint.project.parts import assigned_to
from ddp_lint.rules.base import Rule
from ddp_lint.rules.data.loading import LOADERS, SAMPLER, is_sampler
from ddp_lint.rules.triggers import Triggers
from ddp_lint.source import dotted
from ddp_lint.source.imports import dotted_ast
from ddp_lint.source.queries import calls_in, options
from ddp_lint.source.syntax import argument_at, calls_below, walk
from ddp_lint.source.tree import called, descendants, subtree
from ddp_lint.view.wraps import argument

#: Functions that may bring the sums of the ranks together; the division of one rank is right then.
_JOINS = re.compile(r"reduce|gather|sync(?!hronize$)|psum|across|world")
#: What a division that knows the number of ranks mentions.
_SIZE = re.compile(
    r"world|num_replicas|n_gpus|num_gpus|ngpus|nprocs?\b|num_processes|device_count|get_size", re.IGNORECASE
)


class PartOverWhole(Rule):
    """A sum over this rank's samples is divided by the number of all samples: the mean is n times too small.

    ## What it does

    Finds `correct / len(dataset)` and `total_loss / len(loader.dataset)`, where the sum is counted up in a loop over a
    loader whose `DistributedSampler` divides that dataset among the ranks, and neither the function nor those that
    call it or that it calls bring the sums of the ranks together.

    ## Why it breaks

    With n ranks the loop sees one n-th of the samples, and `len(dataset)` counts all of them: an accuracy of 90% is
    reported as 45% on two GPUs and as 11% on eight. It seems that training got worse by the number of GPUs. There is
    no error. Measured on two ranks with gloo: both report half of the accuracy that one process reports.

    ## Example

    ```python
    import torch
    import torch.distributed as dist
    from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

    dist.init_process_group("gloo")
    data = TensorDataset(torch.arange(8.0), torch.tensor([0, 1, 0, 0, 0, 1, 0, 0]))
    loader = DataLoader(data, batch_size=2, sampler=DistributedSampler(data, shuffle=False))
    correct = torch.zeros(())
    for x, y in loader:
        correct += (y == 0).sum()
    accuracy = correct.item() / len(data)  # <- DDP257
    print("accuracy", accuracy)
    dist.destroy_process_group()
    ```

    ## Use instead

    ```python
    import torch
    import torch.distributed as dist
    from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

    dist.init_process_group("gloo")
    data = TensorDataset(torch.arange(8.0), torch.tensor([0, 1, 0, 0, 0, 1, 0, 0]))
    loader = DataLoader(data, batch_size=2, sampler=DistributedSampler(data, shuffle=False))
    correct = torch.zeros(())
    for x, y in loader:
        correct += (y == 0).sum()
    dist.all_reduce(correct)
    accuracy = correct.item() / len(data)
    print("accuracy", accuracy)
    dist.destroy_process_group()
    ```

    ## When it is silent

    Functions that reduce or gather anything, themselves or in what they call, or whose callers do; divisions that
    mention the number of ranks; loaders of which not every caller gives one with such a sampler; samplers that are
    told their number of replicas; `len(loader)` and `len(sampler)`, which count this rank's part.

    ## How to confirm

    `ddp-lint verify train.py`: the value at the line is that of this rank's part alone.

    ## Fix safety

    No automatic fix: the sum has to be reduced, or divided by the number of samples that this rank has counted.

    ## References

    - https://docs.pytorch.org/docs/stable/data.html#torch.utils.data.distributed.DistributedSampler
    - https://github.com/ORNL/HydraGNN/pull/116
    """

    confidence = Confidence.MEDIUM
    triggers = Triggers("len", file=("DataLoader", "dataset"), tests=False)
    of_several = True
    oracles = ("metric",)

    def start(self) -> None:
        self._reported: set[tuple[cst.CSTNode | None, str]] = set()

    def visit_BinaryOperation(self, node: cst.BinaryOperation) -> None:
        data = self._counted(node.right) if isinstance(node.operator, cst.Divide) else ""
        function = self.module.function_of(node)
        if not data or self.module.file.is_test or not self._is_plain(node):
            return
        scope = function.body if function is not None else self.module.tree
        loops = [each for each in descendants(scope) if isinstance(each, cst.For)]
        terms = {dotted(part) for part in subtree(node.left) if isinstance(part, (cst.Name, cst.Attribute))}
        for loop in loops:
            total = next((name for name in _added(loop) if name in terms), "")
            made = self._divided(loop, data, function) if total else None
            if made is None or (function, total) in self._reported or self._joins(function):
                continue
            if several_ranks(self.module, node) is None:
                return
            self._reported.add((function, total))
            self.report(
                node,
                f"`{total}` counts this rank's part alone, and `{data}` is all of the data: n times too small",
                notes=["with two ranks each has seen half of the samples that it divides by"],
                labels=[(made, "each rank reads its own part"), (loop.iter, "counted up over that part")],
                help="all_reduce the sum first, or divide by the number of samples that this rank has counted",
            )
            return

    def _counted(self, node: cst.BaseExpression) -> str:
        """``data`` of ``len(data)``, also behind a name."""
        if isinstance(node, cst.Name):
            values = self.module.assignments(node)
            node = values[0] if len(values) == 1 else node
        is_length = isinstance(node, cst.Call) and dotted(node.func) == "len" and len(node.args) == 1
        return dotted(node.args[0].value) if is_length and isinstance(node, cst.Call) else ""

    def _is_plain(self, node: cst.BinaryOperation) -> bool:
        """Whether nothing around a division mentions the number of ranks, and no other division is part of it."""
        if any(
            isinstance(each, cst.BinaryOperation) and isinstance(each.operator, cst.Divide)
            for each in subtree(node.left)
        ):
            return False
        around = next((up for up in self.module.ancestors(node) if isinstance(up, cst.BaseSmallStatement)), node)
        return _SIZE.search(self.module.code(around)) is None

    def _joins(self, function: cst.FunctionDef | None) -> bool:
        """Whether the function around, what it calls by itself, or one that calls it, joins what the ranks have."""
        own = calls_in(function.body if function is not None else self.module.tree)
        project = self.module.project
        for call in own:
            if _JOINS.search(called(call)):
                return True
            found = project.meanings.definition(self.module.callee(call)) if project is not None else None
            if found is not None and any(_JOINS.search(dotted_ast(each.func)) for each in calls_below(found[1])):
                return True
        sites = call_sites(self.module, function) if function is not None else ()
        scopes = (site.around or site.facts.tree for site in sites)
        return any(_JOINS.search(dotted_ast(call.func)) for scope in scopes for call in calls_below(scope))

    # ---- the loader

    def _divided(self, loop: cst.For, data: str, function: cst.FunctionDef | None) -> cst.CSTNode | Span | None:
        """The making of the loader of a loop, if its sampler divides the data of that name among the ranks."""
        for part in subtree(loop.iter):
            loader = dotted(part) if isinstance(part, (cst.Name, cst.Attribute)) else ""
            if not loader:
                continue
            for made in self.module.assignments(loader, loop):
                given = self._data_of(made)
                if given and data in (given, f"{loader}.dataset"):
                    return made
            if isinstance(part, cst.Name) and function is not None and self._is_given(part, loop):
                sites = call_sites(self.module, function)
                spans = [self._divided_at(site, function, loader, data) for site in sites]
                if spans and all(spans):
                    return spans[0]
        return None

    def _data_of(self, made: cst.BaseExpression) -> str:
        """The dataset of a loader with a sampler that divides it among the ranks, '' of any other."""
        if not isinstance(made, cst.Call) or self.module.qualified(made.func) not in LOADERS:
            return ""
        sampler, given = argument(made, None, "sampler"), argument(made, 0, "dataset")
        values = options([sampler, *self.module.assignments(sampler)]) if sampler is not None else []
        samplers = [each for each in values if isinstance(each, cst.Call) and is_sampler(self.module, each)]
        told = any(argument(each, 1, "num_replicas") is not None for each in samplers)
        return dotted(given) if samplers and not told and given is not None else ""

    def _is_given(self, name: cst.Name, at: cst.CSTNode) -> bool:
        bindings = self.module.bindings(name, at)
        return bool(bindings) and all(binding.kind == "parameter" for binding in bindings)

    def _divided_at(self, site: CallSite, function: cst.FunctionDef, loader: str, data: str) -> Span | None:
        """Where a caller makes the loader that it gives, if that is of the data, and divided among the ranks."""
        project, given = self.module.project, site.given(function, loader)
        scope = site.around or site.facts.tree
        values = _values(given, scope)
        if project is None or not values:
            return None
        whole = site.given(function, data)
        for made in values:
            if not isinstance(made, ast.Call) or project.meanings.of(site.facts, made.func) not in LOADERS:
                return None
            read = argument_at(made, 0, "dataset")
            same = whole is not None and read is not None and ast.dump(whole) == ast.dump(read)
            samplers = [
                part
                for value in _values(argument_at(made, len(made.args), "sampler"), scope)
                for part in walk(value)
                if isinstance(part, ast.Call) and project.meanings.of(site.facts, part.func) == SAMPLER
            ]
            if not samplers or any(argument_at(each, 1, "num_replicas") is not None for each in samplers):
                return None
            if data != f"{loader}.dataset" and not same:
                return None
        return site.facts.file.span_of(values[0])


def _added(loop: cst.For) -> Iterator[str]:
    """What a loop counts up: ``correct += (out.argmax(1) == y).sum()``, and not a number that is the same for each."""
    for node in descendants(loop.body):
        is_sum = isinstance(node, cst.AugAssign) and isinstance(node.operator, cst.AddAssign)
        if isinstance(node, cst.AugAssign) and is_sum and not isinstance(node.value, (cst.Integer, cst.Float)):
            yield dotted(node.target)


def _values(given: ast.expr | None, scope: ast.AST) -> list[ast.expr]:
    if isinstance(given, ast.Name):
        return list(assigned_to(given.id, scope))
    return [given] if given is not None else []
