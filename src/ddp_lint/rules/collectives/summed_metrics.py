"""Results of metrics that combine the ranks' counts themselves, and that a program sums over the ranks again."""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Iterator, Sequence
from typing import Final

from ddp_lint.divergence.resolve import known
from ddp_lint.project import Project
from ddp_lint.project.facts import ClassFacts, ModuleFacts, assigned_in
from ddp_lint.rules.collectives.running_sums import changes, passed, summing
from ddp_lint.source.imports import dotted_ast, of_self
from ddp_lint.source.syntax import FunctionNode, calls_below, names_in, statements, walk

_COMPUTE: Final = "compute"
_STEPS: Final = 4  # by which the class of an object is looked for
#: Arguments of a metric by which it leaves the ranks' counts apart, or combines them in another way.
_APART: Final = frozenset({"sync_on_compute", "dist_sync_fn", "compute_on_cpu", "process_group"})
_SCALING: Final = (ast.Div, ast.FloorDiv, ast.Mult)


@dataclasses.dataclass(frozen=True)
class SummedMetric:
    """`computed` gives `name` a result over all ranks, which `call` sums over them again."""

    name: str
    call: ast.Call
    computed: ast.Call


def summed_metrics(facts: ModuleFacts, project: Project) -> Iterator[SummedMetric]:
    """The results of metrics that a file sums over the ranks again."""
    if f".{_COMPUTE}(" not in facts.file.code:
        return
    for function in statements(facts.tree):
        if isinstance(function, FunctionNode):
            owner = _owner(facts, project, function)
            for call in calls_below(function):
                computed = _computed(facts, project, function, call)
                if computed is not None and _is_over_all(facts, project, function, owner, computed):
                    yield SummedMetric(dotted_ast(call.args[0]), call, computed)


def _owner(facts: ModuleFacts, project: Project, function: FunctionNode) -> ClassFacts | None:
    method = facts.method_at(function.lineno)
    return project.classes.of(facts, method[0]) if method is not None else None


def _computed(facts: ModuleFacts, project: Project, function: FunctionNode, call: ast.Call) -> ast.Call | None:
    """The `compute` that gives a name what a call sums over the ranks, where nothing else gives it anything and nothing
    scales it."""
    if not call.args or not isinstance(call.args[0], ast.Name):
        return None
    found = summing(facts, project, call)
    name = call.args[0].id
    if found is None or dotted_ast(found[0]) != name:
        return None
    values = [value for value in assigned_in(function, name) if value is not call]
    made = passed(values[0]) if len(values) == 1 else None
    if not isinstance(made, ast.Call) or not isinstance(made.func, ast.Attribute) or made.func.attr != _COMPUTE:
        return None
    between = (n for n in walk(function) if made.lineno < getattr(n, "lineno", 0) < call.lineno)
    touched = any(changes(node, name) for node in between)
    return None if touched or made.lineno >= call.lineno or _is_scaled(function, name) else made


def _is_scaled(function: FunctionNode, name: str) -> bool:
    """Whether a function divides or multiplies what a name holds: the average of equal numbers is the number."""
    for node in walk(function):
        if isinstance(node, (ast.BinOp, ast.AugAssign)) and isinstance(node.op, _SCALING) and name in names_in(node):
            return True
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            scales = node.func.attr.rstrip("_") in ("div", "mul", "true_divide", "mean")
            if scales and name in names_in(node):
                return True
    return False


def _is_over_all(
    facts: ModuleFacts, project: Project, function: FunctionNode, owner: ClassFacts | None, computed: ast.Call
) -> bool:
    """Whether a `compute` is that of a metric of a library which combines what the ranks have counted."""
    metric = computed.func.value if isinstance(computed.func, ast.Attribute) else computed
    of = known().type_of(project.types.of(metric, facts, function, owner, _STEPS))
    makers = _makers(metric, function, owner)
    return bool(of) and known().is_metric(of) and bool(makers) and not any(map(_leaves_apart, makers))


def _makers(metric: ast.expr, function: FunctionNode, owner: ClassFacts | None) -> Sequence[ast.expr]:
    """The expressions that give a metric to its name or attribute."""
    attribute = of_self(dotted_ast(metric))
    if attribute:
        return [value for value, _ in owner.attribute(attribute)] if owner is not None else []
    return assigned_in(function, metric.id) if isinstance(metric, ast.Name) else []


def _leaves_apart(maker: ast.expr) -> bool:
    keywords = maker.keywords if isinstance(maker, ast.Call) else None
    return keywords is None or any(keyword.arg is None or keyword.arg in _APART for keyword in keywords)
