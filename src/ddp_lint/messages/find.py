"""The sends and receives of a file that no rank answers."""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from ddp_lint.divergence.frame import span_of
from ddp_lint.findings import Span
from ddp_lint.knowledge.project_names import last
from ddp_lint.launch.joining import spawned_functions
from ddp_lint.launch.search import imported_through
from ddp_lint.messages.calls import STARTING
from ddp_lint.messages.interpreter import Interpreter
from ddp_lint.messages.job import Place
from ddp_lint.messages.meet import Waiting, waiting
from ddp_lint.messages.senders import WRITTEN, Senders, senders_of, widened
from ddp_lint.messages.values import Exits, Function, GiveUp, Impossible, Message, Program, Scope, Steps, TooMuch
from ddp_lint.project import Project
from ddp_lint.project.facts import ModuleFacts
from ddp_lint.project.parts import children
from ddp_lint.source.imports import last_part
from ddp_lint.source.syntax import FunctionNode, calls_below, walk

#: The jobs that are tried: a program hangs that hangs in each of those which it is written for.
_SIZES: Final = (2, 3, 4)
#: Steps that the programs of one file may take, all ranks together: about a second.
_MOST: Final = 500_000
#: Why something is left out.
_MANY_STEPS: Final = "the programs of the file take too many steps"
_MANY_FILES: Final = "too many files send or receive, or are imported"
#: Files of the project that a program imports, which are looked at.
_MOST_IMPORTED: Final = 100
#: How what starts processes is called.
_STARTING: Final = frozenset(map(last, STARTING))
#: What a file has in which ranks start.
_BEGINNING: Final = ("__main__", "init_process_group")


@dataclasses.dataclass(frozen=True)
class Hang:
    """Ranks of a job of `size` that wait for ever, the one to be shown first."""

    size: int
    waiting: tuple[Waiting, ...]
    programs: tuple[Program, ...]

    @property
    def first(self) -> Waiting:
        return self.waiting[0]


@dataclasses.dataclass(frozen=True)
class _Start:
    """Where ranks start together: `run` carries it out on one of them. `whole`: nothing else of the program can be
    what answers its messages."""

    run: Callable[[Interpreter], None]
    node: ast.AST
    whole: bool


@dataclasses.dataclass(frozen=True)
class Result:
    """What the ranks wait for in a file, at one place each, in the order of the places; and what was not followed to
    its end because that would take too much work, as (line, name, reason). The name is '' for the module."""

    hangs: tuple[Hang, ...] = ()
    left_out: tuple[tuple[int, str, str], ...] = ()


@dataclasses.dataclass(frozen=True)
class _Run:
    """What comes of a start. `entered`: the functions that were run, None if not all of it could be; `is_too_much`: as
    that takes too much work."""

    hang: Hang | None = None
    entered: frozenset[FunctionNode] | None = None
    is_too_much: bool = False


def hangs(facts: ModuleFacts, project: Project, *, alone: bool = False) -> tuple[Hang, ...]:
    """What the ranks wait for in a file. Without `alone` also in what it leads to in other files, unless those show it
    by themselves."""
    return result_of(facts, project, alone=alone).hangs


def result_of(facts: ModuleFacts, project: Project, *, alone: bool = False) -> Result:
    """What is found in a file, likewise, and what had to be left out."""
    begins = not alone and any(map(facts.file.holds, _BEGINNING))
    if not begins and not any(map(facts.file.holds, WRITTEN)):
        return Result()
    senders = senders_of(project)
    searched = senders.files and not senders.too_many
    modules = imported_through(project, facts) if searched else frozenset[str]()
    if senders.too_many or len(modules) >= _MOST_IMPORTED:
        return Result(left_out=((1, "", _MANY_FILES),) if any(map(facts.file.holds, WRITTEN)) else ())
    if senders.files.isdisjoint(modules) or (facts.name not in senders.files and not begins):
        return Result()
    senders = widened(senders, modules)
    found: dict[Span, Hang] = {}
    left_out: list[tuple[int, str, str]] = []
    for hang in _hangs_in(facts, project, senders, left_out):
        assert hang.first.message is not None
        of, place = hang.first.message.facts, hang.first.message.seen_from(facts)
        if place is None or (of is not facts and (alone or hangs(of, project, alone=True))):
            continue
        found.setdefault(span_of(facts, place), hang)
    return Result(tuple(found[span] for span in sorted(found)), tuple(left_out))


def _hangs_in(
    facts: ModuleFacts, project: Project, senders: Senders, left_out: list[tuple[int, str, str]]
) -> Iterator[Hang]:
    """From wherever ranks start in a file; `left_out` gets the starts that take too much work."""
    entered: set[FunctionNode] = set()
    gave_up, steps = False, Steps(_MOST)
    for start in _starts(facts, project, senders):
        if start.node in entered:
            continue
        run = _run_of(dataclasses.replace(start, whole=start.whole and not gave_up), facts, senders, steps)
        if start.node is facts.tree and run.entered is None:  # what it starts, and with what, is not known
            gave_up = True
        if run.is_too_much:
            left_out.append((getattr(start.node, "lineno", 1), getattr(start.node, "name", ""), _MANY_STEPS))
        entered |= run.entered or frozenset()
        if run.hang is not None and run.hang.first.message is not None:
            yield run.hang


def _starts(facts: ModuleFacts, project: Project, senders: Senders) -> Iterator[_Start]:
    """The module, then its functions that send or receive, those that call others first."""
    yield _Start(lambda on: _of_module(on, facts), facts.tree, whole=True)
    started = _started(facts, project)
    spawned = spawned_functions(project)
    functions = [
        (node, None) for node in facts.definitions.values() if isinstance(node, ast.FunctionDef)
    ] + [
        (method, node) for node in facts.definitions.values() if isinstance(node, ast.ClassDef)
        for method in node.body if isinstance(method, ast.FunctionDef) and method.name != "__init__"
    ]  # fmt: skip
    sending = [(node, of) for node, of in functions if node.name in senders.names]
    called = {last_part(call.func) for node, _ in sending for call in calls_below(node)}
    for node, of in sorted(sending, key=lambda each: each[0].name in called):
        is_spawned = of is None and f"{facts.name}.{node.name}" in spawned
        whole = of is None and (is_spawned or node.name in started)
        yield _Start(_runner(node, of, facts, spawned=is_spawned), node, whole=whole)


def _runner(
    node: ast.FunctionDef, of: ast.ClassDef | None, facts: ModuleFacts, *, spawned: bool
) -> Callable[[Interpreter], None]:
    def run(on: Interpreter) -> None:
        receiver = on.made_unseen(of, facts) if of is not None else None
        on.start(Function(node, facts, receiver), spawned=spawned)

    return run


def _of_module(on: Interpreter, facts: ModuleFacts) -> None:
    scope: Scope = on.module(facts)
    scope.names["__name__"] = "__main__"
    on.block(facts.tree.body, scope)


def _started(facts: ModuleFacts, project: Project) -> frozenset[str]:
    """Functions that processes are started with, by name: ``Process(target=start, args=(rank, size, run))``."""
    calls = (call for call in calls_below(facts.tree) if last_part(call.func) in _STARTING)
    given = (node for call in calls if project.meanings.of(facts, call.func) in STARTING for node in walk(call))
    return frozenset(node.id for node in given if isinstance(node, ast.Name))


def _run_of(start: _Start, facts: ModuleFacts, senders: Senders, steps: Steps) -> _Run:
    """With the hang of a program, if it hangs in each job that it is written for."""
    found: list[Hang] = []
    entered: set[FunctionNode] = set()
    for size in _SIZES:
        try:
            programs = [_program(start, Place(rank, size), senders, steps) for rank in range(size)]
        except GiveUp as e:
            return _Run(is_too_much=isinstance(e, TooMuch))
        except Impossible:
            continue
        entered |= {node for program in programs for node in program.entered}
        if not any(program.messages for program in programs):
            return _Run(entered=frozenset(entered))
        if not _agree(programs):
            return _Run()
        left = waiting([program.operations for program in programs])
        if not left or not _is_shown(start, programs, facts, senders):
            return _Run(entered=frozenset(entered))
        found.append(Hang(size, tuple(_telling_first(left)), tuple(programs)))
    return _Run(found[0] if found else None, frozenset(entered))


def _program(start: _Start, place: Place, senders: Senders, steps: Steps) -> Program:
    on = Interpreter(place, senders, steps)
    try:
        start.run(on)
    except Exits:
        pass
    except RecursionError:
        raise TooMuch from None
    return on.program


def _agree(programs: Sequence[Program]) -> bool:
    """Have all ranks that communicate asked the same of what only the run knows?"""
    sending = [program.asked for program in programs if program.operations]
    return all(asked == sending[0] for asked in sending)


def _is_shown(start: _Start, programs: Sequence[Program], facts: ModuleFacts, senders: Senders) -> bool:
    """Can nothing else answer the messages: it is the whole program, or both ends of each channel are in it?"""
    ways = {(rank, m.peer, m.sends) for rank, program in enumerate(programs) for m in program.messages}
    both = all(peer is not None and (peer, rank, not sends) in ways for rank, peer, sends in ways)
    if both and not any(rank == peer for rank, peer, _ in ways):
        return True
    whole = start.whole or all(program.joined for program in programs)
    if not whole or not _is_all_of(start, programs, facts, senders):
        return False
    run = {facts.name, *(message.facts.name for program in programs for message in program.messages)}
    return not senders.files.intersection(imported_through(senders.project, facts)) - run


def _is_all_of(start: _Start, programs: Sequence[Program], facts: ModuleFacts, senders: Senders) -> bool:
    """Is all that sends or receives in the file part of what was run?"""
    entered = {node for program in programs for node in program.entered}
    if start.node is not facts.tree and any(senders.may_send(facts, call) for call in _outside_functions(facts)):
        return False
    functions = (node for node in walk(facts.tree) if isinstance(node, ast.FunctionDef) and node.name in senders.names)
    return all(node in entered for node in functions)


def _outside_functions(facts: ModuleFacts) -> Iterator[ast.Call]:
    """The calls of a file that are in no function."""
    return (node for node in children(facts.tree) if isinstance(node, ast.Call))


def _telling_first(left: list[Waiting]) -> list[Waiting]:
    """The ranks that wait for a message, first the one whose peer has ended, and a receive before a send."""

    def order(each: Waiting) -> tuple[bool, bool, bool, int]:
        message = each.message
        return (message is None, each.meanwhile is not None, message is not None and message.sends, each.rank)

    return sorted(left, key=order)


__all__ = ["Hang", "Message", "Result", "hangs", "result_of"]
