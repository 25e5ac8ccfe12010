"""Methods of a base class that no object has: every class of the project that is used overrides them."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator

from ddp_lint.launch.texts import is_installed, named_in_texts
from ddp_lint.launch.unused import is_found_by_name
from ddp_lint.project import Project
from ddp_lint.project.facts import ModuleFacts, methods_of
from ddp_lint.project.uses import uses
from ddp_lint.source.imports import dotted_ast
from ddp_lint.source.syntax import FunctionNode, calls_below, walk

#: Files that hold the name of a class, and classes that inherit from one, which are looked at.
_FILES = 25
_CLASSES = 25


def is_overridden(project: Project, facts: ModuleFacts, line: int) -> bool:
    """Whether a line is in a method that every used class overrides which inherits it, without calling it: the base
    class itself is only inherited from."""
    owner, method = facts.method_at(line) or (None, None)
    if owner is None or method is None or owner.decorator_list or facts.source.is_test or is_installed(project):
        return False
    key = ("overridden", owner.name, method.name)
    found: bool = project.remember(key, lambda: _is_overridden(project, facts, owner, method.name), facts.kept)
    return found


def _is_overridden(project: Project, facts: ModuleFacts, owner: ast.ClassDef, method: str) -> bool:
    whole = f"{facts.name}.{owner.name}"
    below = _inheriting(project, facts, owner)
    if not below or _is_used(project, facts, owner):
        return False
    used = [(home, node) for home, node in below if _is_used(project, home, node)]
    if not used:
        return False
    for home, node in below:
        own = methods_of(node).get(method)
        if own is not None and _asks_base(own, owner.name, method):
            return False
        if (home, node) in used and _first_with(project, f"{home.name}.{node.name}", method) in ("", whole):
            return False
    return True


def _inheriting(project: Project, facts: ModuleFacts, owner: ast.ClassDef) -> list[tuple[ModuleFacts, ast.ClassDef]]:
    """The classes of the project that inherit from one, none where there are too many to look at."""
    found: dict[str, tuple[ModuleFacts, ast.ClassDef]] = {}
    queue = [(facts, owner)]
    while queue:
        home, node = queue.pop()
        paths = project.holding(node.name)
        if len(paths) > _FILES or len(found) > _CLASSES:
            return []
        for each in map(project.facts_of, paths):
            for definition in each.definitions.values() if each is not None else ():
                if each is None or not isinstance(definition, ast.ClassDef):
                    continue
                name = f"{each.name}.{definition.name}"
                bases = {project.meaning(each, base) for base in definition.bases}
                if f"{home.name}.{node.name}" in bases and name not in found:
                    found[name] = (each, definition)
                    queue.append((each, definition))
    return list(found.values())


def _is_used(project: Project, facts: ModuleFacts, owner: ast.ClassDef) -> bool:
    """Whether anything does more with a class than inherit from it or name it as a type."""
    name, whole = owner.name, f"{facts.name}.{owner.name}"
    if owner.decorator_list or named_in_texts(project, name) or is_found_by_name(project, facts, name, None):
        return True
    paths = project.holding(name)
    for user in map(project.facts_of, paths if len(paths) <= _FILES else ()):
        if user is None or user.source.is_test:
            continue
        idle: frozenset[ast.AST] = project.remember(("types",), functools.partial(_types_of, user), user.kept)
        for use in uses(user, name):
            if use.node not in idle and project.meaning(user, use.node) == whole:
                return True
    return len(paths) > _FILES


def _types_of(facts: ModuleFacts) -> frozenset[ast.AST]:
    return frozenset(_types(facts))


def _types(facts: ModuleFacts) -> Iterator[ast.AST]:
    """The nodes of a file that are base classes, annotations, or bounds of type variables."""
    for node in walk(facts.tree):
        parts = [getattr(node, "annotation", None), getattr(node, "returns", None)]
        if isinstance(node, ast.ClassDef):
            parts += node.bases
        elif isinstance(node, ast.Call) and dotted_ast(node.func).rpartition(".")[2] == "TypeVar":
            parts += [*node.args, *(keyword.value for keyword in node.keywords)]
        for part in parts:
            if isinstance(part, ast.AST):
                yield from walk(part)


def _first_with(project: Project, name: str, method: str) -> str:
    """The class that an object of another one has a method from, '' where it is not of the project."""
    for each in project.lineage(name):
        found = project.class_facts(each)
        if found is None:
            return ""
        if method in found.methods:
            return each
    return ""


def _asks_base(method: FunctionNode, owner: str, name: str) -> bool:
    """Whether a method calls the one that it overrides."""
    for call in calls_below(method):
        if isinstance(call.func, ast.Attribute) and call.func.attr == name:
            of = call.func.value
            if isinstance(of, ast.Call) or dotted_ast(of).rpartition(".")[2] == owner:
                return True
    return False
