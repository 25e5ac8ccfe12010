"""Samplers that functions of the project return together with their loaders."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ddp_lint.project import Project
from ddp_lint.project.facts import ModuleFacts
from ddp_lint.project.parts import inside
from ddp_lint.rules.data.loading import SAMPLER
from ddp_lint.source.imports import dotted_ast
from ddp_lint.source.syntax import FunctionNode, argument_at, either_of

#: Functions that pass on what the next one returns.
_DEPTH = 4


def places_of_samplers(project: Project, name: str, depth: int = _DEPTH) -> frozenset[int]:
    """At which places of the tuples that a function of the project returns a shuffling DistributedSampler is.

    `name` is its canonical dotted name; empty for what is no function of the project, or returns no tuple.
    """
    found = project.meanings.definition(name) if depth and name else None
    if found is None or not isinstance(found[1], FunctionNode):
        return frozenset()
    facts, function = found
    return project.remember(
        ("places of samplers", name, depth), lambda: frozenset(_places(project, facts, function, depth))
    )


def _places(project: Project, facts: ModuleFacts, function: ast.AST, depth: int) -> Iterator[int]:
    nodes = list(inside(function))
    samplers = set(_samplers(project, facts, nodes, depth))
    for node in nodes:
        value = node.value if isinstance(node, ast.Return) else None
        if isinstance(value, ast.Call):
            yield from places_of_samplers(project, project.meanings.of(facts, dotted_ast(value.func)), depth - 1)
        for place, each in enumerate(value.elts if isinstance(value, ast.Tuple) else ()):
            if dotted_ast(each) in samplers:
                yield place


def _samplers(project: Project, facts: ModuleFacts, nodes: list[ast.AST], depth: int) -> Iterator[str]:
    """The names of a function that hold a sampler."""
    for node in nodes:
        if not isinstance(node, ast.Assign) or len(node.targets) != 1:
            continue
        target, value = node.targets[0], node.value
        calls = [each for each in either_of(value) if isinstance(each, ast.Call)]
        if isinstance(target, ast.Name) and any(_is_sampler(project, facts, call) for call in calls):
            yield target.id
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Call):
            handed = places_of_samplers(project, project.meanings.of(facts, dotted_ast(value.func)), depth - 1)
            yield from (dotted_ast(each) for place, each in enumerate(target.elts) if place in handed)


def _is_sampler(project: Project, facts: ModuleFacts, call: ast.Call) -> bool:
    shuffle = argument_at(call, 3, "shuffle")
    ordered = isinstance(shuffle, ast.Constant) and shuffle.value is False
    return not ordered and project.meanings.of(facts, dotted_ast(call.func)) == SAMPLER
