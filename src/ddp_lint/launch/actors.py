"""Classes whose objects are actors, processes of a framework such as Ray: each has the GPUs it was started with."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator

import libcst as cst

from ddp_lint.knowledge import frameworks
from ddp_lint.launch.search import imports_any
from ddp_lint.project import Project
from ddp_lint.project.facts import ModuleFacts
from ddp_lint.project.uses import constructions
from ddp_lint.source.imports import dotted_ast, is_script
from ddp_lint.source.syntax import calls_below, statements
from ddp_lint.view import Module

#: Files that hold the name of a class; where more do, who makes objects of it is not looked for.
_FILES = 25


def is_made_by_actors(module: Module, node: cst.CSTNode) -> bool:
    """Whether a place is in a class of which the project makes objects in such actors alone: it runs where they do."""
    cls, facts, project = module.class_of(node), module.facts, module.project
    if cls is None or facts is None or project is None or not _gives_gpus(project):
        return False
    made = constructions(project, module.name_of(cls), _FILES)
    return bool(made) and all(
        use.owner is not None and use.owner.name in _actors_of(project, user) for user, use, _ in made
    )


def _actors_of(project: Project, facts: ModuleFacts) -> frozenset[str]:
    found: frozenset[str] = project.remember(("actors",), lambda: _actors(project, facts), facts.kept)
    return found


def has_own_gpus(module: Module, node: cst.CSTNode) -> bool:
    """Whether a place is in a class that a framework makes actors of, in a project that gives actors GPUs: each sees
    its own ones alone, as `cuda:0` and so on. A file that is started itself may have other ranks."""
    cls, facts, project = module.class_of(node), module.facts, module.project
    if cls is None or facts is None or project is None or is_script(facts.file.text):
        return False
    return _gives_gpus(project) and cls.name.value in _actors_of(project, facts)


def _gives_gpus(project: Project) -> bool:
    """Whether a file of the project that uses such a framework says how many GPUs an actor gets."""

    def found() -> bool:
        words = frameworks.every(lambda framework: framework.actor_gpus)
        gives = re.compile(rf"\b(?:{'|'.join(words)})\b")
        packages = frameworks.packages(lambda framework: bool(framework.actors))
        files = (project.modules.facts_of(path) for word in words for path in project.contents.holding(word))
        return any(each is not None and imports_any(each, packages) and each.file.shows(gives) for each in files)

    answer: bool = project.remember(("actors have GPUs",), found)
    return answer


def _actors(project: Project, facts: ModuleFacts) -> frozenset[str]:
    """The classes of a file that are made actors (``ray.remote(Worker)``), by their names: there, as a decorator, or by
    a file that imports them."""
    found = {
        node.name
        for node in facts.tree.body
        if isinstance(node, ast.ClassDef)
        and any(_is_remote(facts, d.func if isinstance(d, ast.Call) else d) for d in node.decorator_list)
    }
    users = [path for maker in _makers() for path in project.contents.holding(maker)]
    for user in (facts, *filter(None, map(project.modules.facts_of, users))):
        calls = (call for call in calls_below(user.tree) if call.args and _is_remote(user, call.func))
        given = {dotted_ast(call.args[0]) for call in calls} - {""}
        found |= {name for each in given for name in _meant(project, user, each, facts)}
    return frozenset(found)


def _meant(project: Project, user: ModuleFacts, given: str, facts: ModuleFacts) -> Iterator[str]:
    """The classes of a file that a name in another one may be. It may import classes of one name from several, each
    where the settings ask for it."""
    meant = project.meanings.canonical(user.imports.resolve(given) or f"{user.name}.{given}")
    if meant.startswith(f"{facts.name}."):
        yield meant.removeprefix(f"{facts.name}.")
    for node in statements(user.tree):
        if isinstance(node, ast.ImportFrom) and not node.level and node.module == facts.name:
            yield from (alias.name for alias in node.names if given == (alias.asname or alias.name))


def _is_remote(facts: ModuleFacts, function: ast.expr) -> bool:
    return facts.imports.resolve(dotted_ast(function)) in _makers()


@functools.cache
def _makers() -> frozenset[str]:
    return frozenset(frameworks.every(lambda framework: framework.actors))
