"""Classes of which no program makes an object: what their methods do, no run comes to."""

from __future__ import annotations

import ast
import collections
import re
from typing import TypeAlias

from ddp_lint.launch.texts import is_installed, named_in_texts
from ddp_lint.launch.unused import is_found_by_name, is_in_use
from ddp_lint.project import Project
from ddp_lint.project.facts import ModuleFacts
from ddp_lint.source.imports import dotted_ast, last_part
from ddp_lint.source.syntax import FunctionNode, decorators, walk

#: Files that hold the name of a class which are looked at; of one that more files hold, an object counts as made.
_FILES = 25
#: Classes that inherit from one or make one, and so on, which are looked at.
_ABOVE = 50
#: Decorators after which a method needs an object as before, and nothing else gets hold of it.
_NEEDS_OBJECT = re.compile(r"torch\.(?!library)\w[\w.]*|property|functools\.(?:lru_)?cache|typing\.\w+")
#: Calls that ask whether something is an object of a class.
_ASKS = frozenset({"isinstance", "issubclass"})
_Classes: TypeAlias = tuple[tuple[ModuleFacts, ast.ClassDef], ...]


def is_never_made(project: Project, facts: ModuleFacts, line: int) -> bool:
    """Whether a line of a file is in a method of a class that nothing in the project makes an object of, nor of a class
    that inherits from it: they are only inherited from, asked for, or called for what needs no object
    (``Decoder.table()``, which counts as reached). False where others may make one: a package that is installed, names
    that settings give."""
    owner, method = facts.method_at(line) or (None, None)
    if owner is None or method is None or is_installed(project):
        return False
    kinds = {facts.qualified(each) or dotted_ast(each) for each in decorators(method)}
    if not all(map(_NEEDS_OBJECT.fullmatch, kinds - {"staticmethod"})):
        return False
    if "staticmethod" in kinds and _is_called_on(project, facts, owner.name, method.name, frozenset()):
        return False
    found: bool = project.remember(("never made", owner.name), lambda: _is_left(project, facts, owner), facts.kept)
    return found


def _is_left(project: Project, facts: ModuleFacts, owner: ast.ClassDef) -> bool:
    """Whether neither a class, nor those that inherit from it or whose methods make an object of it, are made by
    anything else."""
    seen, queue = {(facts.name, owner.name)}, [(facts, owner)]
    while queue:
        above = _by_which(project, *queue.pop())
        if above is None or len(seen) > _ABOVE:
            return False
        new = [(user, each) for user, each in above if (user.name, each.name) not in seen]
        seen.update((user.name, each.name) for user, each in new)
        queue += new
    return True


def _by_which(project: Project, facts: ModuleFacts, owner: ast.ClassDef) -> _Classes | None:
    """The classes that inherit from a class or make an object of it in their methods, each with its file; None where
    anything else may make one."""
    found: _Classes | None = project.remember(
        ("made by", owner.name), lambda: _find_by_which(project, facts, owner), facts.kept
    )
    return found


def _find_by_which(project: Project, facts: ModuleFacts, owner: ast.ClassDef) -> _Classes | None:
    name = owner.name
    paths = project.holding(name)
    if owner.decorator_list or owner.keywords or len(paths) > _FILES or not is_in_use(project, facts):
        return None
    static, above = _static(owner), []
    for path in paths:
        user = project.facts_of(path)
        if user is None or user.source.is_test or _is_of_another(project, user, facts, name):
            continue
        found = _mentions(project, user)
        if name in found.strings or not found.called_on[name] <= static:
            return None
        definitions = [user.definitions.get(each) for each in sorted(found.inherited[name] | found.made[name])]
        if not all(isinstance(each, ast.ClassDef) for each in definitions):
            return None
        above += [(user, each) for each in definitions if isinstance(each, ast.ClassDef)]
    # What the texts of a project hold is asked for last: a result that rests on it is not kept when one changes.
    return None if is_found_by_name(project, facts, name, None) or named_in_texts(project, name) else tuple(above)


def _is_of_another(project: Project, user: ModuleFacts, facts: ModuleFacts, name: str) -> bool:
    """Whether a file has a class of that name of its own, or from elsewhere (``from collections import Counter``), and
    takes nothing from the other file."""
    if user.name == facts.name:
        return False
    imported = user.imports.names.get(name)
    if imported is None and not isinstance(user.definitions.get(name), ast.ClassDef):
        return False
    targets = (*user.imports.names.values(), *user.imports.stars)
    if any(f"{target}.".startswith(f"{facts.name}.") for target in targets):
        return False
    return imported is None or project.canonical(imported) != f"{facts.name}.{name}"


def _is_called_on(
    project: Project, facts: ModuleFacts, name: str, method: str, above: frozenset[tuple[str, str]]
) -> bool:
    """Whether a method is called on a class, or on one that inherits from it, and so without an object. `above`: the
    classes that are being looked at, each with its file."""
    paths = project.holding(name)
    if len(paths) > _FILES:
        return True
    above |= {(facts.name, name)}
    users = [user for path in paths if (user := project.facts_of(path)) is not None]
    for user in (u for u in users if not _is_of_another(project, u, facts, name)):
        found = _mentions(project, user)
        if method in found.called_on[name]:
            return True
        below = (each for each in found.inherited[name] if (user.name, each) not in above)
        if any(_is_called_on(project, user, each, method, above) for each in below):
            return True
    return False


def _static(owner: ast.ClassDef) -> set[str]:
    """The methods of a class that need no object and make none."""
    functions = [n for n in owner.body if isinstance(n, FunctionNode)]
    without = [f for f in functions if any(last_part(d) == "staticmethod" for d in f.decorator_list)]
    return {f.name for f in without if not any(last_part(n) == owner.name for n in walk(f))}


def _mentions(project: Project, facts: ModuleFacts) -> _Mentions:
    found: _Mentions = project.remember(("mentions of classes",), lambda: _Mentions(facts.tree), facts.kept)
    return found


def _in_methods(tree: ast.Module) -> dict[int, str]:
    """By node, the class at the top of a file in a method of which it is: what needs an object of the class to run."""
    found = dict[int, str]()
    for owner in (each for each in tree.body if isinstance(each, ast.ClassDef)):
        for method in (each for each in owner.body if isinstance(each, FunctionNode) and not each.decorator_list):
            found.update((id(node), owner.name) for statement in method.body for node in walk(statement))
    return found


class _Mentions:
    """How a file uses names that may be of classes: to inherit from (by which class), to call something on, and in any
    other way, by which an object may be made (in methods of which class, "" for elsewhere); and its strings."""

    def __init__(self, tree: ast.Module) -> None:
        self.inherited = collections.defaultdict[str, set[str]](set)
        self.called_on = collections.defaultdict[str, set[str]](set)
        self.made = collections.defaultdict[str, set[str]](set)
        self.strings = set[str]()
        harmless = set[int]()
        for node in walk(tree):
            harmless.update(map(id, self._only_named(node)))
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                self.strings.add(node.value.rpartition(".")[2])
            if isinstance(node, (ast.Import, ast.ImportFrom)):  # by another name it may be used in any way
                for alias in node.names:
                    if alias.asname not in (None, alias.name):
                        self.made[alias.name.rpartition(".")[2]].add("")
        inside = _in_methods(tree)
        uses = (n for n in walk(tree) if isinstance(n, (ast.Name, ast.Attribute)) and id(n) not in harmless)
        for node in uses:
            self.made[last_part(node)].add(inside.get(id(node), ""))

    def _only_named(self, node: ast.AST) -> list[ast.AST]:
        """The nodes below one that name a class and make nothing of it."""
        if isinstance(node, ast.ClassDef):
            for base in node.bases:
                self.inherited[last_part(base)].add(node.name)
            return list(node.bases)
        if isinstance(node, ast.Attribute):
            self.called_on[last_part(node.value)].add(node.attr)
            return [node.value]
        if isinstance(node, ast.Call) and last_part(node.func) in _ASKS and len(node.args) > 1:
            return list(walk(node.args[1]))
        if isinstance(node, ast.Call) and last_part(node.func) == "super" and node.args:
            return [node.args[0]]
        if isinstance(node, (ast.arg, ast.AnnAssign)) and node.annotation is not None:
            return list(walk(node.annotation))
        if isinstance(node, FunctionNode) and node.returns is not None:
            return list(walk(node.returns))
        return []
