"""Dictionaries and lists that a module or an object keeps: the places at which keys and objects get into them."""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Iterator, Sequence

from ddp_lint.project import Project
from ddp_lint.project.facts import ModuleFacts, assigned_in
from ddp_lint.project.parts import inside, touch
from ddp_lint.project.uses import uses
from ddp_lint.source.imports import dotted_ast, last_part
from ddp_lint.source.syntax import (
    FunctionNode,
    argument_at,
    below,
    blocks_at,
    decorators,
    first_name,
    parameters,
    positional,
    statements,
)

#: Files with calls of one name; beyond it nothing is known of them.
_FILES = 4
#: Methods of an entry that change it: ``times["load"].append(t)`` adds the key to a `defaultdict`.
_CHANGING = frozenset({"append", "extend", "add", "update", "insert"})
_NAMES_OF_FUNCTIONS = frozenset({"__name__", "__qualname__"})


@dataclasses.dataclass(frozen=True)
class Entered:
    """A place that enters a key: the expression `at`, in a function and a class, or in none. `receiver` is what a
    method was called on that enters the key for its caller."""

    key: str
    facts: ModuleFacts
    at: ast.AST
    around: FunctionNode | None
    owner: ast.ClassDef | None
    receiver: ast.expr | None = None

    def tests(self) -> Iterator[tuple[ast.If, bool]]:
        """The tests around it in its function, each with whether it is where the test holds."""
        line = getattr(self.at, "lineno", 0)
        for block in blocks_at(self.around or self.facts.tree, line):
            if isinstance(block, FunctionNode):
                return
            if isinstance(block, ast.If) and (block.test.end_lineno or 0) < line:
                yield block, line < block.orelse[0].lineno if block.orelse else True


def by_key(project: Project, facts: ModuleFacts, name: str, of: ast.ClassDef | None) -> dict[str, list[Entered]]:
    """The places that enter keys into the dictionary that a variable of a module holds, or an attribute of a class, by
    the key. Keys that are only computed are not looked at."""

    def found() -> dict[str, list[Entered]]:
        touch(facts.tree)
        every: dict[str, list[Entered]] = {}
        for entry in _entering(of or facts.tree, name, of, ()):
            for place in _written(project, facts, entry):
                every.setdefault(place.key, []).append(place)
        return every

    return project.remember(("keys kept", facts.name, of.name if of else "", name), found)


@dataclasses.dataclass(frozen=True)
class _Entry:
    """The key that an expression enters, with the functions and the class around."""

    key: ast.expr
    at: ast.AST
    functions: tuple[FunctionNode, ...]
    owner: ast.ClassDef | None


def _entering(
    node: ast.AST, name: str, owner: ast.ClassDef | None, functions: tuple[FunctionNode, ...]
) -> Iterator[_Entry]:
    """The expressions below a node that enter a key into a dictionary."""
    for child in below(node):
        if (key := _key_of(child, name, functions, owner)) is not None:
            yield _Entry(key, child, functions, owner)
        if isinstance(child, FunctionNode):
            yield from _entering(child, name, owner, (*functions, child))
        elif not isinstance(child, ast.ClassDef) or owner is None:
            yield from _entering(child, name, child if isinstance(child, ast.ClassDef) else owner, functions)


def _key_of(node: ast.AST, name: str, functions: Sequence[FunctionNode], owner: ast.ClassDef | None) -> ast.expr | None:
    entry = node if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store) else None
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        of = node.func.value
        if node.func.attr == "setdefault" and node.args and _is_kept(of, name, functions, owner):
            return node.args[0]
        entry = of if isinstance(of, ast.Subscript) and node.func.attr in _CHANGING else None
    return entry.slice if entry is not None and _is_kept(entry.value, name, functions, owner) else None


def _is_kept(node: ast.expr, name: str, functions: Sequence[FunctionNode], owner: ast.ClassDef | None) -> bool:
    """Is it the variable of the module, or the attribute of the object that a method has?"""
    if isinstance(node, ast.Name):
        return node.id == name and not any(_is_local(function, name) for function in functions)
    this = first_name(functions[0]) if functions and owner is not None and positional(functions[0]) else ""
    return bool(this) and dotted_ast(node) == f"{this}.{name}"


def _is_local(function: FunctionNode, name: str) -> bool:
    return any(parameter.arg == name for parameter in parameters(function)) or bool(assigned_in(function, name))


def _written(project: Project, facts: ModuleFacts, entry: _Entry) -> Iterator[Entered]:
    """The places that say which key it is: the one that enters it, the calls that give it to its function, or those of
    the functions that it is named after."""
    around = entry.functions[-1] if entry.functions else None
    if isinstance(entry.key, ast.Constant):
        if isinstance(entry.key.value, str):
            yield Entered(entry.key.value, facts, entry.at, around, entry.owner)
    elif isinstance(entry.key, ast.Name) and around is not None and len(entry.functions) == 1:
        yield from _given(project, around, entry.key.id, is_method=entry.owner is not None)
    elif entry.owner is None and len(entry.functions) > 1 and _is_name_of_decorated(entry.key, entry.functions[:-1]):
        for function in _decorated(project, entry.functions[0].name):
            for place in _calls(project, function.name):
                yield dataclasses.replace(place, key=function.name, receiver=None)


def _given(project: Project, function: FunctionNode, name: str, *, is_method: bool) -> Iterator[Entered]:
    """The calls that give a parameter a text."""
    names = [parameter.arg for parameter in positional(function)][is_method:]
    if name not in (parameter.arg for parameter in parameters(function)):
        return
    for place in _calls(project, function.name):
        assert isinstance(place.at, ast.Call)
        given = argument_at(place.at, names.index(name) if name in names else len(place.at.args), name)
        if isinstance(given, ast.Constant) and isinstance(given.value, str):
            yield dataclasses.replace(place, key=given.value)


@dataclasses.dataclass(frozen=True)
class Added:
    """What a method is given that appends it to a list, or that makes the list longer by it if it `is_list`."""

    place: Entered
    given: ast.expr
    is_list: bool


def added_to(project: Project, facts: ModuleFacts, name: str, of: ast.ClassDef) -> list[Added]:
    """The calls that give a method of a class what it adds to a list of its object: ``trainer.register(Evaluator())``
    of ``self.hooks.append(hook)``."""

    def found() -> list[Added]:
        touch(facts.tree)
        added: list[Added] = []
        for method in (m for m in of.body if isinstance(m, FunctionNode) and len(positional(m)) > 1):
            names = [parameter.arg for parameter in positional(method)]
            for adding in ("append", "extend"):
                taken = _appended(method, f"{names[0]}.{name}.{adding}")
                for place in _calls(project, method.name) if taken in names[1:] else ():
                    assert isinstance(place.at, ast.Call)
                    given = argument_at(place.at, names.index(taken) - 1, taken)
                    if place.receiver is not None and given is not None:
                        added.append(Added(place, given, adding == "extend"))
        return added

    return project.remember(("added to", facts.name, of.name, name), found)


def _appended(method: FunctionNode, append: str) -> str:
    """The variable that a method adds to a list."""
    for call in (node for node in inside(method) if isinstance(node, ast.Call)):
        if dotted_ast(call.func) == append and len(call.args) == 1 and isinstance(call.args[0], ast.Name):
            return call.args[0].id
    return ""


def _calls(project: Project, name: str) -> Iterator[Entered]:
    """The calls of a name; none where too many files have some."""
    paths = project.contents.holding(f"{name}(")
    for facts in map(project.modules.facts_of, paths if len(paths) <= _FILES else ()):
        for use in uses(facts, name) if facts is not None and not facts.source.is_test else ():
            if facts is not None and use.call is not None:
                receiver = use.node.value if isinstance(use.node, ast.Attribute) else None
                yield Entered("", facts, use.call, use.around, use.owner, receiver)


def _is_name_of_decorated(key: ast.expr, functions: Sequence[FunctionNode]) -> bool:
    """``function.__name__`` of what one of the functions around is given, also in a variable."""
    for function in functions:
        values = assigned_in(function, key.id) if isinstance(key, ast.Name) else [key]
        given = {parameter.arg for parameter in parameters(function)}
        if len(values) == 1 and isinstance(value := values[0], ast.Attribute) and value.attr in _NAMES_OF_FUNCTIONS:
            return getattr(value.value, "id", "") in given
    return False


def _decorated(project: Project, name: str) -> Iterator[FunctionNode]:
    """The functions and methods that a function of this name decorates."""
    for facts in project.modules.but_tests(project.contents.holding(f"@{name}"), _FILES):
        touch(facts.tree)
        functions = (node for node in statements(facts.tree) if isinstance(node, FunctionNode))
        yield from (each for each in functions if name in map(last_part, decorators(each)))
