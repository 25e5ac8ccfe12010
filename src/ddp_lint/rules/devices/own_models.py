"""Classes that train a model of their own which nothing wraps, beside others that wrap theirs."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ddp_lint.knowledge.tensors import words_of
from ddp_lint.launch.joining import joins_otherwise
from ddp_lint.project import Project
from ddp_lint.project.facts import ClassFacts, ModuleFacts
from ddp_lint.source.imports import dotted_ast, last_part
from ddp_lint.source.syntax import calls_below, walk

_WRAPS = ("DistributedDataParallel", "FullyShardedDataParallel", "fully_shard")
#: How a project may average the gradients of several ranks itself.
_AVERAGES = ("DistributedOptimizer(", "average_gradients")
_PLAIN_BASES = frozenset({"object", "abc.ABC", "ABC"})
_MODELS = frozenset({"model", "models", "net", "network", "module"})


def trains_unwrapped(project: Project, facts: ModuleFacts, line: int, attribute: str) -> bool:
    """Whether the class around a line makes the model that it holds as an attribute and trains it, while all wraps of
    the project are in other classes that train theirs: ranks, of which each would train a model for itself, are not
    meant to come to it."""
    found = facts.method_at(line)
    if found is None or not attribute or joins_otherwise(project) or any(map(project.contents.holding, _AVERAGES)):
        return False
    own = project.classes.of(facts, found[0])
    classes = _lineage(project, own)
    if not classes or not any(map(_trains, classes)) or not _makes(classes, attribute):
        return False
    wraps = project.remember(("owners of wraps",), lambda: tuple(_owners_of_wraps(project)))
    return bool(wraps) and all(
        owner is not None
        and _trains(owner)
        and not project.classes.subclass_of(own.name, owner.name)
        and not project.classes.subclass_of(owner.name, own.name)
        for owner in wraps
    )


def _lineage(project: Project, cls: ClassFacts) -> list[ClassFacts]:
    """A class and its bases; none where one of them is not of the project."""
    found: list[ClassFacts] = []
    for name in project.classes.lineage(cls.name):
        each = project.classes.find(name)
        if each is None and name not in _PLAIN_BASES:
            return []
        if each is not None:
            found.append(each)
    named = all(
        base or dotted_ast(node) in _PLAIN_BASES
        for each in found
        for base, node in zip(each.bases, each.node.bases, strict=True)
    )
    return found if named else []


def _trains(cls: ClassFacts) -> bool:
    return any(last_part(call.func) == "backward" for call in calls_below(cls.node))


def _makes(classes: list[ClassFacts], attribute: str) -> bool:
    """Whether classes set an attribute to what they make, and not to a model that they were given."""
    given = [
        node.value
        for cls in classes
        for node in walk(cls.node)
        if isinstance(node, ast.Assign) and any(dotted_ast(t) == f"self.{attribute}" for t in node.targets)
    ]
    return bool(given) and all(isinstance(value, ast.Call) and not _takes_model(value) for value in given)


def _takes_model(call: ast.Call) -> bool:
    values = (*call.args, *(keyword.value for keyword in call.keywords))
    return any(words_of(last_part(value)) & _MODELS for value in values if isinstance(value, (ast.Name, ast.Attribute)))


def _owners_of_wraps(project: Project) -> Iterator[ClassFacts | None]:
    """The class around each wrap of the project; None for one that is in no class."""
    paths = (path for word in _WRAPS for path in project.contents.holding(word))
    for facts in project.modules.but_tests(paths):
        for call in calls_below(facts.tree):
            if facts.qualified(call.func).rpartition(".")[2] in _WRAPS:
                around = facts.method_at(call.lineno)
                yield project.classes.of(facts, around[0]) if around is not None else None
