"""The part of a text that is evidence that models are wrapped for several ranks: without its strings, and without tests
of a class that only take a model out of its wrapper, as libraries do that wrap none themselves.

What is no evidence becomes spaces, so that all else stays at its place.
"""

from __future__ import annotations

import ast
import collections
import itertools
import re
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from typing import Any, Final, TypeGuard

from ddp_lint.source.imports import dotted_ast
from ddp_lint.source.syntax import FunctionNode, below, statements, walk

_COMMENTS = re.compile(r"(?:^|(?<=\s))#.*", re.MULTILINE)
_TESTS = re.compile(r"\bisinstance\s*\(")
#: The attribute of a wrapper that is the model.
_MODEL = "module"
#: Builtins that only look at what they are given first.
_LOOKING: Final = frozenset({"isinstance", "hasattr", "getattr"})
#: A string that holds this is the name of a module.
_MODULE = "torch.distributed"
_NO_LINE_END = re.compile(rb"[^\r\n]")


def may_unwrap(text: str) -> bool:
    """Whether a text can have tests that `without_unwrapping` takes away."""
    return f".{_MODEL}" in text and _TESTS.search(text) is not None


def without_unwrapping(text: str, tree: ast.Module, wraps: re.Pattern[str]) -> str:
    """The text with ``isinstance(model, 0)`` where a test of a wrapper (`wraps`) only unwraps the model, and without
    imports that only such tests use."""
    edits: list[tuple[Any, str]] = []
    gone = collections.Counter[str]()
    for function in _outermost(tree):
        tests = [n for n in walk(function) if _is_test(n) and wraps.search(ast.unparse(n.args[1]))]
        if not tests or not _unwrapping(function).issuperset(tests):
            continue
        edits += [(test.args[1], "0") for test in tests]
        tested = collections.Counter(name for test in tests for name in _names(test.args[1]))
        gone += tested
        unused = tested.keys() - (collections.Counter(_names(function)) - tested).keys()
        edits += [(each, "pass") for each in statements(function) if _binds_only(each, unused)]
    if not edits:
        return text
    left = collections.Counter(_names(tree)) - gone
    unused = {name for node, _ in edits for name in _names(node)} - left.keys()
    edits += [(node, "pass") for node in tree.body if _binds_only(node, unused)]
    return _blanked(text, edits)


def evidence(text: str, tree: ast.Module, wraps: re.Pattern[str]) -> str:
    """The text without such tests, its strings blank, but those in f-strings and the names of modules."""
    return _blanked(without_unwrapping(text, tree, wraps), [(node, '""') for node in _strings(tree)])


def in_code(text: str, tree: ast.Module) -> str:
    """The text without docstrings, comments and what errors say: that a class "works with PyTorch DDP", or that an
    option "is not supported with DDP", wraps no model."""
    said = (string for statement in statements(tree) for string in _said(statement))
    return _COMMENTS.sub("", _blanked(text, [(node, '""') for node in said if isinstance(node.value, str)]))


def _said(statement: ast.AST) -> Iterator[ast.Constant]:
    """A docstring, the message of an assertion or of an exception that is raised."""
    told: list[ast.expr] = []
    if isinstance(statement, ast.Expr):
        told = [statement.value]
    elif isinstance(statement, ast.Assert) and statement.msg is not None:
        told = [statement.msg]
    elif isinstance(statement, ast.Raise) and isinstance(statement.exc, ast.Call):
        told = statement.exc.args
    return (each for each in told if isinstance(each, ast.Constant))


def _outermost(tree: ast.AST) -> Iterator[ast.AST]:
    """The functions that are in no other function."""
    stack = [tree]
    while stack:
        for node in below(stack.pop()):
            if isinstance(node, FunctionNode):
                yield node
            elif isinstance(node, ast.stmt):
                stack.append(node)


def _is_test(node: ast.AST) -> TypeGuard[ast.Call]:
    return isinstance(node, ast.Call) and dotted_ast(node.func) == "isinstance" and len(node.args) == 2


def _unwrapping(function: ast.AST) -> set[ast.AST]:
    """The tests of a function under which it takes what a model wraps and does nothing else with the model."""
    found: set[ast.AST] = set()
    for node in walk(function):
        if isinstance(node, (ast.If, ast.IfExp, ast.While)):
            parts = node.test.values if isinstance(node.test, ast.BoolOp) else [node.test]
            under: list[Any] = [node.test, *(node.body if isinstance(node.body, list) else [node.body])]
            found |= {test for test in parts if _is_test(test) and _only_unwraps(under, dotted_ast(test.args[0]))}
    return found


def _only_unwraps(under: list[ast.AST], model: str) -> bool:
    above = {child: node for part in under for node in walk(part) for child in below(node)}
    unwraps = False
    for child, node in above.items():
        if not isinstance(child, (ast.Name, ast.Attribute)) or dotted_ast(child) != model:
            continue
        taken = isinstance(node, ast.Attribute) and node.attr == _MODEL
        looked_at = isinstance(node, ast.Call) and dotted_ast(node.func) in _LOOKING and child is node.args[0]
        if not (taken or looked_at or isinstance(child.ctx, ast.Store)):
            return False
        unwraps = unwraps or taken
    return unwraps and bool(model)


def _binds_only(node: ast.AST, names: AbstractSet[str]) -> bool:
    """Whether it imports these names and nothing else."""
    return isinstance(node, ast.ImportFrom) and all((alias.asname or alias.name) in names for alias in node.names)


def _names(node: ast.AST) -> list[str]:
    return [child.id for child in walk(node) if isinstance(child, ast.Name)]


def _strings(tree: ast.AST) -> Iterator[ast.Constant]:
    stack = [tree]
    while stack:
        node = stack.pop()
        if isinstance(node, ast.Constant):
            if isinstance(node.value, str) and _MODULE not in node.value:
                yield node
        elif not isinstance(node, ast.JoinedStr):  # before Python 3.12 the places of its parts are those of the whole
            stack += below(node)


def _blanked(text: str, edits: list[tuple[Any, str]]) -> str:
    """The text with other words and spaces in place of nodes."""
    if not edits:
        return text
    content = bytearray(text, "utf-8", "surrogatepass")
    starts = [0, *itertools.accumulate(map(len, bytes(content).splitlines(keepends=True)))]
    for node, instead in edits:
        first = starts[node.lineno - 1] + node.col_offset
        end = starts[node.end_lineno - 1] + node.end_col_offset
        spaces = _NO_LINE_END.sub(b" ", content[first + len(instead) : end])
        content[first:end] = instead.encode() + spaces
    return content.decode("utf-8", "surrogatepass")


__all__ = ["evidence", "in_code", "may_unwrap", "without_unwrapping"]
