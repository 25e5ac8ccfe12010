"""Calls of functions of the project whose result does not do for what it is used as: not as many values as are taken
from it, or an attribute that a tuple has not."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from ddp_lint.launch.undefined import called_definition
from ddp_lint.project import Project
from ddp_lint.project.facts import ModuleFacts, assigned_in
from ddp_lint.project.parts import inside, kept_by_node
from ddp_lint.source.syntax import FunctionNode, is_none, parameters

#: The length of None, from which no values can be taken.
_NONE = -1


def is_unpacked_wrongly(project: Project, facts: ModuleFacts, statement: ast.AST) -> bool:
    """``a, b = f()`` of a function whose every `return` has a tuple of another length, or which returns nothing."""
    if not isinstance(statement, ast.Assign) or not isinstance(statement.value, ast.Call):
        return False
    wanted = [target.elts for target in statement.targets if isinstance(target, (ast.Tuple, ast.List))]
    if not wanted or any(isinstance(element, ast.Starred) for elements in wanted for element in elements):
        return False
    lengths = _lengths(project, facts, statement.value)
    return bool(lengths) and any(len(elements) not in lengths for elements in wanted)


def is_no_member(project: Project, facts: ModuleFacts, around: FunctionNode | None, node: ast.Attribute) -> bool:
    """``loss.backward()`` where the function assigns `loss` once, from one whose every `return` has a tuple."""
    if around is None or not isinstance(node.value, ast.Name) or hasattr(tuple, node.attr):
        return False
    name = node.value.id
    values = assigned_in(around, name)
    if len(values) != 1 or not isinstance(values[0], ast.Call):
        return False
    if name in {each.arg for each in parameters(around)}:
        return False
    lengths = _lengths(project, facts, values[0])
    return bool(lengths) and _NONE not in lengths and _is_bound_once(around, name)


def _lengths(project: Project, facts: ModuleFacts, call: ast.Call) -> frozenset[int]:
    """How long the tuples are that the called function returns, none where one of them may be anything."""
    found = called_definition(project, facts, call)
    return _returned(found[1]) if found is not None and isinstance(found[1], ast.FunctionDef) else frozenset()


@kept_by_node(256)
def _returned(function: ast.FunctionDef) -> frozenset[int]:
    nodes = inside(function)
    if any(isinstance(node, (ast.Yield, ast.YieldFrom)) for node in nodes):
        return frozenset()
    values = [node.value for node in nodes if isinstance(node, ast.Return)]
    lengths = [_length(value) for value in values]
    if not values or not isinstance(function.body[-1], ast.Return):
        lengths.append(_NONE if _may_end(function.body) else None)
    known = [length for length in lengths if length is not None]
    return frozenset(known) if len(known) == len(lengths) else frozenset()


def _length(value: ast.expr | None) -> int | None:
    """The length of a tuple as it is written, `_NONE` for None; None for anything else."""
    if value is None or is_none(value):
        return _NONE
    if not isinstance(value, ast.Tuple) or any(isinstance(each, ast.Starred) for each in value.elts):
        return None
    return len(value.elts)


def _may_end(body: Sequence[ast.stmt]) -> bool:
    """Whether a function surely does something and comes to its end: not where it is left to others to write."""
    first = body[1:] if isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant) else body
    simple = bool(first) and not all(isinstance(each, (ast.Pass, ast.Raise, ast.Expr)) for each in first)
    return simple and not any(isinstance(each, (ast.Raise, ast.While)) for each in body[-1:])


def _is_bound_once(function: FunctionNode, name: str) -> bool:
    stores = [n for n in inside(function) if isinstance(n, ast.Name) and n.id == name and isinstance(n.ctx, ast.Store)]
    return len(stores) == 1
