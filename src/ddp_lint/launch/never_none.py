"""Names that are None in no run of a program: ``args.gpu`` with a default, or the number that `spawn` gives a rank."""

from __future__ import annotations

import ast
import pathlib
from collections.abc import Sequence
from typing import Final

import libcst as cst

from ddp_lint.launch.options import has_value, options_of
from ddp_lint.launch.texts import is_installed, named_in_texts
from ddp_lint.project import Project
from ddp_lint.project.facts import ModuleFacts, assigned_in
from ddp_lint.project.uses import Use, uses
from ddp_lint.source.control_flow import asks_for_none, conditions
from ddp_lint.source.imports import dotted_ast, last_part
from ddp_lint.source.syntax import FunctionNode, argument_at, function_at, positional, walk
from ddp_lint.view import Module

_SPAWNS: Final = frozenset({"spawn", "start_processes"})
_FILES: Final = 25
#: What never returns None, and what never is.
_MADE: Final = ("int", "str", "float", "bool")
_PATHS: Final = frozenset({"os.path.join", "os.path.abspath", "os.getcwd", "pathlib.Path"})
_DISPLAYS: Final = (ast.JoinedStr, ast.List, ast.Tuple, ast.Dict, ast.Set, ast.Compare)
#: Functions that hand a value on which are gone through.
_DEPTH: Final = 3


def needs_none(module: Module, node: cst.CSTNode) -> bool:
    """Whether a place is reached only where a name is None that never is: the `else` of ``if args.gpu is not None``."""
    facts, project = module.facts, module.project
    if facts is None or project is None or is_installed(project, facts):
        return False
    around = function_at(facts.tree, module.span(node).line)
    for test, taken in conditions(module, node):
        name, outcome = asks_for_none(test)
        if outcome is not taken or around is None or not name:
            continue
        if _is_never_none(project, facts, around, name, _DEPTH):
            return True
        if _is_as_given(module, around, name, test) and _is_given_something(project, facts, around, name, _DEPTH - 1):
            return True
    return False


def _is_as_given(module: Module, around: FunctionNode, name: str, test: cst.CSTNode) -> bool:
    """Whether a test asks for a parameter before anything else is given to that."""
    line = module.span(test).line
    if any(isinstance(up, (cst.For, cst.While)) for up in module.ancestors(test)):
        return False
    stores = (n for n in walk(around) if isinstance(n, ast.Name) and n.id == name and isinstance(n.ctx, ast.Store))
    return all(each.lineno > line for each in stores)


def _is_never_none(project: Project, facts: ModuleFacts, around: FunctionNode | None, name: str, depth: int) -> bool:
    values = assigned_in(around, name) if around is not None else []
    if values:
        return all(_is_something(project, facts, around, value, depth) for value in values)
    of, _, option = name.partition(".")
    if option and "." not in option:
        options = options_of(project, facts, around, of)
        return options is not None and has_value(project, options, option)
    if around is None or not depth:
        return False
    return _is_given_something(project, facts, around, name, depth - 1)


def _is_something(
    project: Project, facts: ModuleFacts, around: FunctionNode | None, value: ast.expr | None, depth: int
) -> bool:
    if isinstance(value, ast.Constant):
        return value.value is not None
    if isinstance(value, ast.Call):
        return dotted_ast(value.func) in _MADE or facts.qualified(value.func) in _PATHS
    if isinstance(value, _DISPLAYS):
        return True
    name = dotted_ast(value)
    return bool(name) and _is_never_none(project, facts, around, name, depth)


def _is_given_something(project: Project, facts: ModuleFacts, function: FunctionNode, name: str, depth: int) -> bool:
    """Whether all that calls a function at the top of a file, or starts ranks in it, gives a parameter a value."""
    places = [each.arg for each in positional(function)]
    word = function.name
    if name not in places or facts.definitions.get(word) is not function or function.decorator_list:
        return False
    paths = project.contents.holding(word)
    if len(paths) > _FILES or named_in_texts(project, word):
        return False
    found = list(_users(project, paths, f"{facts.name}.{word}", word))
    return bool(found) and all(
        _gives_something(project, user, use, function, places.index(name), depth) for user, use in found
    )


def _users(project: Project, paths: Sequence[pathlib.Path], whole: str, word: str) -> list[tuple[ModuleFacts, Use]]:
    files = [user for user in map(project.modules.facts_of, paths) if user is not None and not user.source.is_test]
    return [(user, use) for user in files for use in uses(user, word) if project.meanings.of(user, use.node) == whole]


def _gives_something(
    project: Project, user: ModuleFacts, use: Use, function: FunctionNode, place: int, depth: int
) -> bool:
    if use.call is None:  # a rank gets its number first
        started = use.given is not None and last_part(use.given.func) in _SPAWNS and use.given.args[:1] == [use.node]
        return started and place == 0
    if any(isinstance(each, ast.Starred) for each in use.call.args) or any(k.arg is None for k in use.call.keywords):
        return False
    value = argument_at(use.call, place, positional(function)[place].arg)
    return _is_something(project, user, use.around, value, depth)
