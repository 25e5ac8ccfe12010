"""Whether a worker puts one result into a list of its parent."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from ddp_lint.source.imports import dotted_ast
from ddp_lint.source.syntax import calls_below

_MANY = 2


def puts_one(function: ast.FunctionDef | ast.AsyncFunctionDef, name: str) -> bool:
    """Whether it appends to the list once at most, and somewhere: not in a loop, and not twice on one way."""
    return _most(function.body, name) == 1


def _most(body: Sequence[ast.stmt], name: str) -> int:
    return sum(_most_in(statement, name) for statement in body)


def _most_in(statement: ast.stmt, name: str) -> int:
    """How often one statement appends at most; a loop counts as many."""
    if isinstance(statement, ast.If):
        return max(_most(statement.body, name), _most(statement.orelse, name))
    if isinstance(statement, ast.Try):
        handled = max((_most(handler.body, name) for handler in statement.handlers), default=0)
        return max(_most([*statement.body, *statement.orelse], name), handled) + _most(statement.finalbody, name)
    if isinstance(statement, (ast.With, ast.AsyncWith)):
        return _most(statement.body, name)
    found = sum(dotted_ast(call.func) == f"{name}.append" for call in calls_below(statement))
    return found * _MANY if isinstance(statement, (ast.For, ast.AsyncFor, ast.While)) else found
