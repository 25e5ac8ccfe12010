"""Parameters that all calls in one program give a number: ``Model(-1)``, where the parameter is a rank elsewhere."""

from __future__ import annotations

import ast

from ddp_lint.project import Project
from ddp_lint.project.facts import ModuleFacts
from ddp_lint.project.uses import uses
from ddp_lint.source.syntax import FunctionNode, argument_at, blocks_at, defaults, positional, walk

#: Calls of one function or class in a program that are looked at.
_CALLS = 20


def is_fixed(project: Project, facts: ModuleFacts, line: int, name: str, among: frozenset[str]) -> bool:
    """Whether a name at a line is a parameter of the function around, at the top of its file or the constructor of a
    class there, to which all calls in the modules of a program (`among`) give a number."""
    around = blocks_at(facts.tree, line)
    top = around[0] if around else None
    function = around[1] if isinstance(top, ast.ClassDef) and len(around) > 1 else top
    if not isinstance(top, (ast.ClassDef, FunctionNode)) or not isinstance(function, FunctionNode):
        return False
    if isinstance(top, ast.ClassDef) and function.name != "__init__":
        return False
    if facts.definitions.get(top.name) is not top or top.decorator_list:
        return False
    place = next((n for n, each in enumerate(positional(function)) if each.arg == name), None)
    if place is None or name in _stored(function):
        return False
    default = next((value for each, value in defaults(function.args) if each.arg == name), None)
    parameter = (place - isinstance(top, ast.ClassDef), name, default)
    key = ("fixed", top.name, name, among)
    fixed: bool = project.remember(key, lambda: _are_numbers(project, facts, top.name, parameter, among), facts.kept)
    return fixed


def _stored(function: FunctionNode) -> set[str]:
    """The names that a function gives another value."""
    return {node.id for node in walk(function) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}


def _are_numbers(
    project: Project,
    facts: ModuleFacts,
    called: str,
    parameter: tuple[int, str, ast.expr | None],
    among: frozenset[str],
) -> bool:
    place, name, default = parameter
    found = 0
    for path in project.contents.holding(called):
        user = project.modules.facts_of(path)
        if user is None or user.name not in among:
            continue
        for use in uses(user, called):
            if project.meanings.of(user, use.node) != f"{facts.name}.{called}":
                continue
            found += 1
            if use.call is None or found > _CALLS or any(keyword.arg is None for keyword in use.call.keywords):
                return False
            if not _is_number(argument_at(use.call, place, name) or default):
                return False
    return found > 0


def _is_number(value: ast.expr | None) -> bool:
    if isinstance(value, ast.UnaryOp) and isinstance(value.op, ast.USub):
        value = value.operand
    return isinstance(value, ast.Constant) and type(value.value) is int
