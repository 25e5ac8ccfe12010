"""From where code that is inside a function is run that is defined in the scope of what it uses."""

from __future__ import annotations

import bisect
import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

import libcst as cst

from ddp_lint.source.tree import called


class Scopes(Protocol):
    """What says where a name is bound: `view.scopes.Scopes`."""

    def scope_of(self, name: str, at: cst.CSTNode) -> cst.CSTNode | None: ...


class Code(Protocol):
    """What is asked of a file: `view.module.Module`."""

    @property
    def scopes(self) -> Scopes: ...

    @property
    def order(self) -> Mapping[cst.CSTNode, int]: ...

    def of_type(self, kind: type[cst.Name]) -> list[cst.Name]: ...

    def parent(self, node: cst.CSTNode) -> cst.CSTNode | None: ...

    def ancestors(self, node: cst.CSTNode) -> Iterator[cst.CSTNode]: ...


#: Calls that keep a function for later: what they are given does not run where they are.
_KEEPING = re.compile(r"(^|_)(register|hook|callback|handler)s?(_|$)")
#: Functions that call each other on the way to the scope.
_DEPTH = 4


class Closures:
    """The functions of one file that are defined in others, each looked up once in each scope."""

    def __init__(self, module: Code) -> None:
        self._module = module
        self._found: dict[tuple[cst.CSTNode, cst.CSTNode, int], tuple[cst.CSTNode, ...] | None] = {}

    def entries(self, at: cst.CSTNode, scope: cst.CSTNode) -> Sequence[cst.CSTNode] | None:
        """The places in a scope (a function, or the top level of a file) from which the function around `at`, which is
        defined in it, is called or handed out, in source order; one that is registered for later counts as run at the
        end of the scope. `at` itself where it is in no such function. None where the function is a method, or nothing
        in the scope mentions it."""
        return self._entries(at, scope, _DEPTH)

    def _entries(self, at: cst.CSTNode, scope: cst.CSTNode, depth: int) -> Sequence[cst.CSTNode] | None:
        function = _defined_in(self._module, at, scope)
        if function is scope:
            return [at]
        if not isinstance(function, cst.FunctionDef) or not depth:
            return None
        key = function, scope, depth
        if key not in self._found:
            self._found[key] = self._entries_of(function, scope, depth)
        return self._found[key]

    def _entries_of(self, function: cst.FunctionDef, scope: cst.CSTNode, depth: int) -> tuple[cst.CSTNode, ...] | None:
        name = function.name.value
        inside = {*self._mentions(name, function)}
        found: list[cst.CSTNode] = []
        for mention in self._mentions(name, scope):
            is_here = self._module.scopes.scope_of(name, mention) is scope
            if mention in inside or not is_here or not _is_read(self._module, mention):
                continue
            if _is_kept(self._module, mention):
                found.append(_last(scope))
                continue
            places = self._entries(mention, scope, depth - 1)
            if places is None:
                return None
            found += places
        return tuple(found) or None

    def _mentions(self, name: str, within: cst.CSTNode) -> Iterator[cst.Name]:
        """The places below a node that have a name, in source order: those that follow it, up to the first outside."""
        numbers, found = self._names.get(name, ((), ()))
        start = bisect.bisect_left(numbers, self._module.order.get(within, -1))
        for number in range(start, len(found)):
            if not any(up is within for up in self._module.ancestors(found[number])):
                return
            yield found[number]

    @functools.cached_property
    def _names(self) -> dict[str, tuple[list[int], list[cst.Name]]]:
        """By name: the places that have it, and their numbers in the file."""
        by_name: dict[str, tuple[list[int], list[cst.Name]]] = {}
        for each in self._module.of_type(cst.Name):
            numbers, found = by_name.setdefault(each.value, ([], []))
            numbers.append(self._module.order[each])
            found.append(each)
        return by_name


def _defined_in(module: Code, at: cst.CSTNode, scope: cst.CSTNode) -> cst.CSTNode | None:
    """The outermost function around `at` inside a scope; the scope where there is none; None in a class, or outside."""
    outermost: cst.CSTNode = scope
    for up in module.ancestors(at):
        if up is scope:
            return outermost
        if isinstance(up, cst.ClassDef):
            return None
        if isinstance(up, cst.FunctionDef):
            outermost = up
    return None


def _is_read(module: Code, name: cst.Name) -> bool:
    up = module.parent(name)
    if isinstance(up, (cst.FunctionDef, cst.Param, cst.AssignTarget)):
        return False
    if isinstance(up, cst.Attribute):
        return up.value is name
    return not (isinstance(up, cst.Arg) and up.keyword is name)


def _is_kept(module: Code, mention: cst.Name) -> bool:
    up = module.parent(mention)
    call = module.parent(up) if isinstance(up, cst.Arg) else None
    return isinstance(call, cst.Call) and _KEEPING.search(called(call)) is not None


def _last(scope: cst.CSTNode) -> cst.CSTNode:
    body: Sequence[cst.CSTNode] = scope.body if isinstance(scope, cst.Module) else ()
    if isinstance(scope, cst.FunctionDef):
        body = scope.body.body
    return body[-1] if body else scope
