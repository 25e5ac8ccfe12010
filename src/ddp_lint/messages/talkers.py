"""Which functions of a project send or receive, by their names, and which of its files they are in."""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Sequence
from typing import Final

from ddp_lint.divergence.resolve import known
from ddp_lint.project import Project
from ddp_lint.project.facts import ModuleFacts
from ddp_lint.project.parts import kept_by_node
from ddp_lint.source.imports import last_part
from ddp_lint.source.syntax import calls_below, walk

#: Calls that every file has which sends or receives, as they are written.
WRITTEN: Final = (
    "isend", "irecv", "dist.send(", "dist.recv(", "distributed.send(", "distributed.recv(", "comm.send(", "comm.recv(",
    "send_object_list", "recv_object_list",
)  # fmt: skip
#: Files that are searched for them.
_MOST_FILES: Final = 60


@dataclasses.dataclass(frozen=True)
class Talkers:
    """`names` are those of the functions that send or receive, or call one that does, in a file that does; `files` the
    modules that hold such calls. `too_many`: there are more files than are searched."""

    project: Project
    names: frozenset[str]
    files: frozenset[str]
    too_many: bool

    def may_talk(self, facts: ModuleFacts, call: ast.Call) -> bool:
        return is_message(self.project, facts, call) or last_part(call.func) in self.names


def is_message(project: Project, facts: ModuleFacts, call: ast.Call) -> bool:
    """Is it a call of a library that sends or receives?"""
    if last_part(call.func) not in _names():
        return False
    entry = known().collectives.get(project.meaning(facts, call.func))
    return entry is not None and entry.kind == "p2p"


def _names() -> frozenset[str]:
    return frozenset(entry.op for entry in known().collectives.values() if entry.kind == "p2p")


def talkers_of(project: Project) -> Talkers:
    """Those of a project."""
    return project.remember(("talkers",), lambda: _talkers(project))


def _talkers(project: Project) -> Talkers:
    paths = dict.fromkeys(path for word in WRITTEN for path in project.holding(word))
    names: set[str] = set()
    files: set[str] = set()
    for path in list(paths)[:_MOST_FILES]:
        facts = project.facts_of(path)
        if facts is None or not any(is_message(project, facts, call) for call in calls_below(facts.tree)):
            continue
        files.add(facts.name)
        names |= _names_in(project, facts)
    return Talkers(project, frozenset(names), frozenset(files), len(paths) > _MOST_FILES)


def _names_in(project: Project, facts: ModuleFacts) -> frozenset[str]:
    """The functions of a file that send or receive, and those that call one of them by its name."""
    functions = [node for node in walk(facts.tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
    own = [node.name for node in functions if any(is_message(project, facts, call) for call in calls_below(node))]
    return _leading_to(frozenset(own), [facts])


def widened(talkers: Talkers, modules: Sequence[ModuleFacts]) -> Talkers:
    """With the functions of these modules that call one which sends or receives, directly or through others."""
    return dataclasses.replace(talkers, names=_leading_to(talkers.names, modules))


def _leading_to(names: frozenset[str], modules: Sequence[ModuleFacts]) -> frozenset[str]:
    calls = [each for facts in modules for each in _calls_by_function(facts.tree)]
    while more := {name for name, called in calls if name not in names and called & names}:
        names |= more
    return names


@kept_by_node(256)
def _calls_by_function(tree: ast.Module) -> list[tuple[str, frozenset[str]]]:
    """The functions of a file, each with the names of what it calls."""
    functions = [node for node in walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
    return [(node.name, frozenset(last_part(call.func) for call in calls_below(node))) for node in functions]
