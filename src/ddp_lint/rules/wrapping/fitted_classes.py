"""The module classes whose objects a project has Lightning wrap in DDP: by `ast`."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator

from ddp_lint.knowledge import canonical, frameworks
from ddp_lint.project import Project
from ddp_lint.project.facts import ModuleFacts, assigned_in
from ddp_lint.project.requirements import requires_older
from ddp_lint.rules.wrapping.wrapped_classes import kinds_of, may_search, with_parts
from ddp_lint.source.imports import dotted_ast, last_part
from ddp_lint.source.syntax import argument_at, calls_below, function_at

_TRAINER = "lightning.pytorch.Trainer"
_STRATEGY = "strategy"
#: The package that has left DDP to fail on parameters without a gradient from its first release of that number on; the
#: older `pytorch_lightning` searched for them by default. Source: strategies/ddp.py of 1.9 (pre_configure_ddp) and 2.0.
_PACKAGE, _SINCE = "lightning", "2.0"


def fitted_classes(project: Project) -> frozenset[str]:
    """The classes of which each object that ``trainer.fit(model)`` gets, with its parts, is wrapped in DDP without a
    search for unused parameters."""

    def found() -> frozenset[str]:
        given = tuple(dict.fromkeys(_fitted(project)))
        plain = with_parts(project, (kind for kind, searches in given if not searches))
        return plain - with_parts(project, (kind for kind, searches in given if searches))

    return project.remember(("fitted classes",), found)


def _fitted(project: Project) -> Iterator[tuple[str, bool]]:
    """What trainers fit, each with whether one of them may search."""
    for facts in project.modules.but_tests(project.contents.holding(".fit(")):
        if not facts.file.holds("Trainer"):
            continue
        for call in calls_below(facts.tree):
            if last_part(call.func) != "fit" or not isinstance(call.func, ast.Attribute):
                continue
            model = argument_at(call, 0, "model")
            trainer = _made(facts, call.func.value, call)
            if model is None or trainer is None or canonical(project.meanings.of(facts, trainer.func)) != _TRAINER:
                continue
            searches = _searches(project, facts, trainer)
            yield from ((kind, searches) for kind in kinds_of(project, facts, call, model))


def _made(facts: ModuleFacts, trainer: ast.expr, call: ast.Call) -> ast.Call | None:
    """The one call that makes an object."""
    if isinstance(trainer, ast.Call):
        return trainer
    around, name = function_at(facts.tree, call.lineno), dotted_ast(trainer)
    values = assigned_in(around, name) if around is not None else [facts.values[name]] if name in facts.values else []
    return values[0] if len(values) == 1 and isinstance(values[0], ast.Call) else None


def _searches(project: Project, facts: ModuleFacts, trainer: ast.Call) -> bool:
    """Whether a trainer may wrap a model otherwise than in plain DDP."""
    strategy = next((k.value for k in trainer.keywords if k.arg == _STRATEGY), None)
    hidden = any(keyword.arg is None for keyword in trainer.keywords)
    if hidden or _PACKAGE not in facts.imports.packages or requires_older(project, _PACKAGE, _SINCE):
        return True
    if isinstance(strategy, ast.Constant):
        return strategy.value not in _plain()
    if not isinstance(strategy, ast.Call) or canonical(project.meanings.of(facts, strategy.func)) not in _classes():
        return True
    return may_search(strategy)


@functools.cache
def _plain() -> frozenset[str]:
    """The names of strategies that wrap in DDP and search for nothing."""
    entries = frameworks.every(lambda each: each.searching)
    return frozenset(name for entry in entries if _TRAINER in entry.names for name in entry.strategies.values())


@functools.cache
def _classes() -> frozenset[str]:
    """The classes of strategies that hand on to DDP whether it is to search."""
    entries = frameworks.every(lambda each: each.searching)
    return frozenset(name for entry in entries if not entry.strategies for name in entry.names)
