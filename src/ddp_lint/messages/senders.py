"""Which functions of a project send or receive, by their names, and which of its files they are in."""

from __future__ import annotations

import ast
import dataclasses
import functools
import itertools
from collections.abc import Iterable
from typing import Final

from ddp_lint.divergence.resolve import known
from ddp_lint.project import Project
from ddp_lint.project.facts import ModuleFacts
from ddp_lint.source.imports import last_part
from ddp_lint.source.syntax import FunctionNode, calls_below, walk

#: Calls that every file has which sends or receives, as they are written.
WRITTEN: Final = (
    "isend", "irecv", "dist.send(", "dist.recv(", "distributed.send(", "distributed.recv(", "comm.send(", "comm.recv(",
    "send_object_list", "recv_object_list",
)  # fmt: skip
#: Files that are searched for them.
_MOST_FILES: Final = 60
#: The functions of files, each with the names of what it calls.
_Calls = tuple[tuple[str, frozenset[str]], ...]


@dataclasses.dataclass(frozen=True)
class Senders:
    """`names` are those of the functions that send or receive, or call one that does, in a file that does; `files` the
    modules that hold such calls. `too_many`: there are more files than are searched."""

    project: Project
    names: frozenset[str]
    files: frozenset[str]
    too_many: bool

    def may_send(self, facts: ModuleFacts, call: ast.Call) -> bool:
        return is_message(self.project, facts, call) or last_part(call.func) in self.names


def is_message(project: Project, facts: ModuleFacts, call: ast.Call) -> bool:
    """Is it a call of a library that sends or receives?"""
    if last_part(call.func) not in _names():
        return False
    entry = known().collectives.get(project.meanings.of(facts, call.func))
    return entry is not None and entry.kind == "p2p"


@functools.cache
def _names() -> frozenset[str]:
    return frozenset(entry.op for entry in known().collectives.values() if entry.kind == "p2p")


def senders_of(project: Project) -> Senders:
    """Those of a project."""
    return Senders(project, *project.remember(("senders",), lambda: _senders(project)))


def _senders(project: Project) -> tuple[frozenset[str], frozenset[str], bool]:
    paths = dict.fromkeys(path for word in WRITTEN for path in project.contents.holding(word))
    names: set[str] = set()
    files: set[str] = set()
    for path in list(paths)[:_MOST_FILES]:
        facts = project.modules.facts_of(path)
        if facts is None or not any(is_message(project, facts, call) for call in calls_below(facts.tree)):
            continue
        files.add(facts.name)
        names |= _names_in(project, facts)
    return frozenset(names), frozenset(files), len(paths) > _MOST_FILES


def _names_in(project: Project, facts: ModuleFacts) -> frozenset[str]:
    """The functions of a file that send or receive, and those that call one of them by its name."""
    functions = [node for node in walk(facts.tree) if isinstance(node, FunctionNode)]
    own = [node.name for node in functions if any(is_message(project, facts, call) for call in calls_below(node))]
    return _leading_to(frozenset(own), _calls_in(facts))


def widened(senders: Senders, modules: Iterable[str]) -> Senders:
    """With the functions of these modules that call one which sends or receives, directly or through others."""
    calls = tuple(itertools.chain.from_iterable(_calls_of(senders.project, name) for name in modules))
    return dataclasses.replace(senders, names=_leading_to(senders.names, calls))


def _leading_to(names: frozenset[str], calls: _Calls) -> frozenset[str]:
    while more := {name for name, called in calls if name not in names and called & names}:
        names |= more
    return names


def _calls_of(project: Project, name: str) -> _Calls:
    """Those of a module. A program leads to many files, whose syntax trees would not all stay in memory."""
    return project.remember(("calls of functions", name), lambda: _calls_in(project.modules.facts(name)))


def _calls_in(facts: ModuleFacts | None) -> _Calls:
    functions = [node for node in walk(facts.tree) if isinstance(node, FunctionNode)] if facts is not None else []
    return tuple((node.name, frozenset(last_part(call.func) for call in calls_below(node))) for node in functions)
