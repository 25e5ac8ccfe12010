"""What the names of a function get: by assignments, unpacked, in loops, and what is put into what they hold."""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Iterator

from ddp_lint.project.facts import paired
from ddp_lint.project.parts import kept_by_node
from ddp_lint.source.syntax import FunctionNode, walk

#: An element by its place or its key; None for any of them.
Step = int | str | None
Path = tuple[Step, ...]


@dataclasses.dataclass(frozen=True)
class Bound:
    """A value that a name of a function gets, None for one that is not seen. `steps`: where in the value it is;
    `put_in`: it is put into what the name holds."""

    value: ast.expr | None
    steps: Path
    put_in: bool = False


#: Methods by which a container gets an element.
_ADDS = frozenset({"append", "add", "insert", "appendleft"})
#: Methods by which it gets several.
_EXTENDS = frozenset({"extend", "update", "setdefault", "put"})


@kept_by_node(256)
def bound_in(function: FunctionNode) -> dict[str, list[Bound]]:
    """By their names, the values that the names of a function get."""
    found: dict[str, list[Bound]] = {}
    for node in walk(function):
        for name, binding in _by_node(node):
            found.setdefault(name, []).append(binding)
    return found


def _by_node(node: ast.AST) -> Iterator[tuple[str, Bound]]:
    if isinstance(node, ast.Assign):
        for target in node.targets:
            for each, value in paired(target, node.value):
                yield from _to_target(each, value, ())
    elif isinstance(node, (ast.AnnAssign, ast.AugAssign, ast.NamedExpr)):
        if node.value is not None:
            yield from _to_target(node.target, node.value, ())
    elif isinstance(node, (ast.For, ast.AsyncFor, ast.comprehension)):
        yield from _to_target(node.target, node.iter, (None,))
    elif isinstance(node, ast.withitem):
        if node.optional_vars is not None:
            yield from _to_target(node.optional_vars, None, ())
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        if node.func.attr in _ADDS and node.args:
            yield from _put_in(node.func.value, node.args[-1])
        elif node.func.attr in _EXTENDS and isinstance(node.func.value, ast.Name):
            yield node.func.value.id, Bound(_extended_by(node, node.func.attr), ())


def _extended_by(node: ast.Call, method: str) -> ast.expr | None:
    """What a container gets by a method: of ``kwargs.update(size=4)`` the call, which writes out its keys."""
    if method == "extend":
        return node.args[-1] if node.args else None
    return node if method == "update" and not node.args else None


def _to_target(target: ast.expr, value: ast.expr | None, steps: Path) -> Iterator[tuple[str, Bound]]:
    """What a target gets, and the parts of one that unpacks."""
    if isinstance(target, ast.Name):
        yield target.id, Bound(value, steps)
    elif isinstance(target, ast.Subscript):
        yield from _put_in(target, value)
    elif isinstance(target, (ast.Tuple, ast.List)):
        starred = next((i for i, each in enumerate(target.elts) if isinstance(each, ast.Starred)), len(target.elts))
        for place, each in enumerate(target.elts):
            if isinstance(each, ast.Starred):
                yield from _to_target(each.value, value, steps)
            else:
                yield from _to_target(each, value, (*steps, place if place < starred else None))


def _put_in(target: ast.expr, value: ast.expr | None) -> Iterator[tuple[str, Bound]]:
    while isinstance(target, ast.Subscript):
        target = target.value
    if isinstance(target, ast.Name):
        yield target.id, Bound(value, (), put_in=True)


def unpacked_in(function: FunctionNode, name: str) -> Iterator[tuple[ast.Call, int]]:
    """The calls that give a name of a function one of several values, with its place among them."""
    for bound in bound_in(function).get(name, ()):
        place = bound.steps[0] if len(bound.steps) == 1 else None
        if isinstance(bound.value, ast.Call) and isinstance(place, int):
            yield bound.value, place
