"""Which files a call writes or reads, itself or in functions of the project, by the expressions of their paths."""

from __future__ import annotations

import ast
import copy
import dataclasses
import re
from collections.abc import Iterator, Mapping

import libcst as cst

from ddp_lint.launch.helpers import Helper, helper_of
from ddp_lint.project.facts import ModuleFacts, assigned_in
from ddp_lint.project.parts import kept_by_node
from ddp_lint.source import dotted
from ddp_lint.source.imports import dotted_ast
from ddp_lint.source.parsing import parse_expression
from ddp_lint.source.syntax import FunctionNode, argument_at, calls_below, first_name, parameters, walk
from ddp_lint.view import Module
from ddp_lint.view.wraps import argument

#: A test, as text, that looks whether a file is there.
LOOKS = re.compile(r"(?:\.|\b)(?:exists|isfile|isdir|is_file|is_dir)\(")
#: What paths are made with.
_MODULES = frozenset({"os", "Path", "pathlib", "str"})
#: How many functions of the project are followed, one in the other.
_DEPTH = 2


@dataclasses.dataclass(frozen=True)
class Accesses:
    """Ways to access a file: functions and methods by their names, with the place and the name of the path's argument
    (a method without one is called on the path), and the modes of `open`."""

    functions: Mapping[str, tuple[int, str]]
    methods: Mapping[str, tuple[int, str] | None]
    modes: str

    def path(self, module: Module, call: cst.Call) -> cst.BaseExpression | None:
        """The path of the file that a call accesses itself."""
        place = self.functions.get(module.qualified(call.func))
        if place is not None:
            return argument(call, *place)
        if isinstance(call.func, cst.Attribute) and call.func.attr.value in self.methods:
            place = self.methods[call.func.attr.value]
            return argument(call, *place) if place is not None else call.func.value
        mode = argument(call, 1, "mode")
        opens = isinstance(call.func, cst.Name) and call.func.value == "open" and self._fits(_text(mode))
        return argument(call, 0, "file") if opens else None

    def paths(self, module: Module, call: cst.Call) -> set[str]:
        """The paths of the files that a call accesses, itself or by a function of the project, as the caller would
        write them."""
        path = self.path(module, call)
        if path is not None:
            return {plain_path(module.code(path))}
        helper = helper_of(module, call)
        if helper is None:
            return set()
        given = {name: plain_path(module.code(value)) for name, value in _arguments(helper.function, call)}
        on = dotted(call.func).rpartition(".")[0]
        return set(self._within(module, helper, given | ({first_name(helper.function): on} if on == "self" else {})))

    def _within(self, module: Module, helper: Helper, given: Mapping[str, str], depth: int = _DEPTH) -> Iterator[str]:
        names = {name: text for name, text in given.items() if not assigned_in(helper.function, name)}
        for node in _calls_of(helper.function):
            path = self._path_of(helper.facts, node)
            text = _rewritten(path, names) if path is not None else ""
            if text:
                yield text
            found = (
                module.project.meanings.definition(helper.facts.qualified(node.func))
                if module.project and depth
                else None
            )
            if path is None and found is not None and isinstance(found[1], ast.FunctionDef):
                inner = Helper(found[0], found[1])
                values = {p.arg: argument_at(node, n, p.arg) for n, p in enumerate(parameters(found[1]))}
                texts = {name: _rewritten(value, names) for name, value in values.items() if value is not None}
                yield from self._within(module, inner, {name: text for name, text in texts.items() if text}, depth - 1)

    def _path_of(self, facts: ModuleFacts, call: ast.Call) -> ast.expr | None:
        place = self.functions.get(facts.qualified(call.func))
        if place is None and isinstance(call.func, ast.Attribute) and call.func.attr in self.methods:
            place = self.methods[call.func.attr]
            if place is None:
                return call.func.value
        if place is None and dotted_ast(call.func) == "open":
            mode = argument_at(call, 1, "mode")
            text = mode.value if isinstance(mode, ast.Constant) else "r" if mode is None else ""
            place = (0, "file") if self._fits(str(text)) else None
        return argument_at(call, *place) if place is not None else None

    def _fits(self, mode: str) -> bool:
        return bool(set(mode) & set(self.modes))


def mode_of(call: cst.Call, *place: int | str) -> str:
    """The mode in which a call opens a file, '' where it is not written there."""
    mode = argument(call, *place)  # type: ignore[arg-type]
    return str(mode.evaluated_value) if isinstance(mode, cst.SimpleString) else ""


@kept_by_node(4096)
def _calls_of(function: ast.AST) -> tuple[ast.Call, ...]:
    return tuple(calls_below(function))


def _text(mode: cst.BaseExpression | None) -> str:
    return str(mode.evaluated_value) if isinstance(mode, cst.SimpleString) else "r" if mode is None else ""


def _arguments(function: FunctionNode, call: cst.Call) -> Iterator[tuple[str, cst.BaseExpression]]:
    """The parameters of a function that a call gives, without the object of a method."""
    names = [parameter.arg for parameter in parameters(function)]
    names = names[1:] if dotted(call.func).startswith("self.") else names
    for place, name in enumerate(names):
        value = argument(call, place, name)
        if value is not None:
            yield name, value


def plain_path(text: str) -> str:
    """An expression as `ast` writes it: "a" and 'a' are one path."""
    found = parse_expression(text)
    return ast.unparse(found) if found is not None else text


class _Rewrite(ast.NodeTransformer):
    def __init__(self, names: Mapping[str, str]) -> None:
        self._names = names

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return parse_expression(self._names.get(node.id, "")) or node


def _rewritten(path: ast.expr, names: Mapping[str, str]) -> str:
    """A path in the words of the caller; '' where it is made of more than parameters, constants and path functions."""
    if isinstance(path, ast.Name):
        return names.get(path.id, "")
    if any(isinstance(n, ast.Name) and n.id not in names and n.id not in _MODULES for n in walk(path)):
        return ""
    return ast.unparse(_Rewrite(names).visit(copy.deepcopy(path)))
