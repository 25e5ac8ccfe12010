"""From where code that is inside a function is run that is defined in the scope of what it uses."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Protocol

import libcst as cst

from ddp_lint.source.tree import called


class Scopes(Protocol):
    """What says where a name is bound: `source.scopes.Scopes`."""

    def scope_of(self, name: str, at: cst.CSTNode) -> cst.CSTNode | None: ...


class Code(Protocol):
    """What is asked of a file: `source.module.Module`."""

    @property
    def scopes(self) -> Scopes: ...

    def parent(self, node: cst.CSTNode) -> cst.CSTNode | None: ...

    def ancestors(self, node: cst.CSTNode) -> Iterator[cst.CSTNode]: ...


#: Calls that keep a function for later: what they are given does not run where they are.
_KEEPING = re.compile(r"(^|_)(register|hook|callback|handler)s?(_|$)")
#: Functions that call each other on the way to the scope.
_DEPTH = 4


def entries(module: Code, at: cst.CSTNode, scope: cst.CSTNode) -> list[cst.CSTNode] | None:
    """The places in a scope (a function, or the top level of a file) from which the function around `at`, which is
    defined in it, is called or handed out, in source order; one that is registered for later counts as run at the end
    of the scope. `at` itself where it is in no such function. None where the function is a method, or nothing in the
    scope mentions it."""
    return _entries(module, at, scope, _DEPTH)


def _entries(module: Code, at: cst.CSTNode, scope: cst.CSTNode, depth: int) -> list[cst.CSTNode] | None:
    function = _defined_in(module, at, scope)
    if function is scope:
        return [at]
    if not isinstance(function, cst.FunctionDef) or not depth:
        return None
    name = function.name.value
    inside = {*_names(function, name)}
    found: list[cst.CSTNode] = []
    for mention in _names(scope, name):
        if mention in inside or not _is_read(module, mention) or module.scopes.scope_of(name, mention) is not scope:
            continue
        if _is_kept(module, mention):
            found.append(_last(scope))
            continue
        places = _entries(module, mention, scope, depth - 1)
        if places is None:
            return None
        found += places
    return found or None


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


def _names(within: cst.CSTNode, name: str) -> Iterator[cst.Name]:
    stack: list[cst.CSTNode] = [within]
    while stack:
        node = stack.pop()
        if type(node) is cst.Name:
            if node.value == name:
                yield node
        else:
            stack += reversed(node.children)


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
