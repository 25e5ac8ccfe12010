"""Uses of what an object has on the first rank alone: ``self.writer = make() if rank == 0 else None``."""

from __future__ import annotations

import ast
import collections
import re
from collections.abc import Iterator

import libcst as cst

from ddp_lint.launch.helpers import Helper, helper_of
from ddp_lint.source import dotted
from ddp_lint.source.imports import dotted_ast
from ddp_lint.source.queries import calls_in
from ddp_lint.source.syntax import parameters, statements, walk
from ddp_lint.source.tree import called, descendants
from ddp_lint.view import Module

#: What a helper asks that may keep it to one rank.
_ASKS = re.compile(r"rank|main|master|primary|zero|NoneType", re.IGNORECASE)
#: Calls that all ranks make: the function with one runs on all of them.
_TOGETHER = frozenset({"backward", "all_reduce", "all_gather", "barrier"})


class UsedInTraining:
    """What the methods of a file's classes with a backward or a collective do with attributes."""

    def __init__(self, module: Module) -> None:
        self._module = module
        self._by_class: dict[cst.ClassDef, dict[str, list[cst.CSTNode]]] = {}

    def uses(self, made: cst.Assign, name: str) -> Iterator[cst.CSTNode]:
        """Where these methods, of the class around an assignment, read an attribute or an item of what it assigns, or
        hand it to a function of the project that does so whatever it has asked."""
        owner = self._module.class_of(made)
        if owner is None:
            return
        if owner not in self._by_class:
            self._by_class[owner] = _mentions(owner)
        for node in self._by_class[owner].get(name, ()):
            if not isinstance(node, cst.Call) or _is_used_by(self._module, node, name):
                yield node


def _mentions(owner: cst.ClassDef) -> dict[str, list[cst.CSTNode]]:
    """By name what reads a part of it, and the calls that get it, in the methods that all ranks run."""
    found = collections.defaultdict[str, list[cst.CSTNode]](list)
    for method in owner.body.body:
        if not isinstance(method, cst.FunctionDef) or method.decorators:
            continue
        if not any(called(call) in _TOGETHER for call in calls_in(method.body)):
            continue
        for node in descendants(method.body):
            if isinstance(node, (cst.Attribute, cst.Subscript)):
                found[dotted(node.value)].append(node)
            elif isinstance(node, cst.Call):
                for name in {dotted(arg.value) for arg in node.args}:
                    found[name].append(node)
    return found


def _is_used_by(module: Module, call: cst.Call, name: str) -> bool:
    """Whether the function that a call hands an object to uses it in every case."""
    given = [(i, arg) for i, arg in enumerate(call.args) if not arg.star and dotted(arg.value) == name]
    helper = helper_of(module, call) if given else None
    if helper is None or helper.function.decorator_list or isinstance(call.func, cst.Attribute):
        return False
    position, arg = given[0]
    taken = [each.arg for each in parameters(helper.function)]
    parameter = arg.keyword.value if arg.keyword is not None else taken[position] if position < len(taken) else ""
    return bool(parameter) and _uses(helper, parameter)


def _uses(helper: Helper, parameter: str) -> bool:
    """Whether a function reads attributes of a parameter, and asks neither about it nor about the rank."""
    for node in statements(helper.function):
        asked = ast.unparse(node.test) if isinstance(node, (ast.If, ast.While)) else ""
        if isinstance(node, ast.Try) or _ASKS.search(asked) or re.search(rf"\b{parameter}\b", asked):
            return False
    nodes = list(walk(helper.function))
    if any(isinstance(node, (ast.IfExp, ast.BoolOp)) and parameter in ast.unparse(node) for node in nodes):
        return False
    return any(isinstance(node, ast.Attribute) and dotted_ast(node.value) == parameter for node in nodes)
