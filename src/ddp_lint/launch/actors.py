"""Classes whose objects are actors, processes of a framework such as Ray: each has the GPUs it was started with."""

from __future__ import annotations

import ast
import functools
import re

import libcst as cst

from ddp_lint.knowledge import frameworks
from ddp_lint.launch.search import importers, imports_any
from ddp_lint.project import Project
from ddp_lint.project.facts import ModuleFacts
from ddp_lint.source.imports import dotted_ast, is_script
from ddp_lint.source.syntax import calls_below
from ddp_lint.view import Module


def has_own_gpus(module: Module, node: cst.CSTNode) -> bool:
    """Whether a place is in a class that a framework makes actors of, in a project that gives actors GPUs: each sees
    its own ones alone, as `cuda:0` and so on. A file that is started itself may have other ranks."""
    cls, facts, project = module.class_of(node), module.facts, module.project
    if cls is None or facts is None or project is None or is_script(facts.file.text):
        return False
    return _gives_gpus(project) and cls.name.value in project.remember(
        ("actors",), lambda: _actors(project, facts), facts.kept
    )


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
    for user in (facts, *importers(project, facts.name, holding=tuple(_makers()))):
        for call in calls_below(user.tree):
            given = dotted_ast(call.args[0]) if call.args and _is_remote(user, call.func) else ""
            if given:
                meant = project.meanings.canonical(user.imports.resolve(given) or f"{user.name}.{given}")
                found.add(meant.removeprefix(f"{facts.name}."))
    return frozenset(found)


def _is_remote(facts: ModuleFacts, function: ast.expr) -> bool:
    return facts.imports.resolve(dotted_ast(function)) in _makers()


@functools.cache
def _makers() -> frozenset[str]:
    return frozenset(frameworks.every(lambda framework: framework.actors))
