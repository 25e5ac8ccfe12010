"""What an oracle is given, and what it says."""

from __future__ import annotations

import dataclasses
import functools
import os
import pathlib
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

from ddp_lint.verify.branches import in_one_round, rounds_apart
from ddp_lint.verify.finding_context import Situation
from ddp_lint.verify.match import present
from ddp_lint.verify.options import RunResult
from ddp_lint.verify.results import Evidence, Examined
from ddp_lint.verify.trace import Call, Event, Frame, Hashes, Lines, Trace

AnyEvent = TypeVar("AnyEvent", bound=Event)


@dataclasses.dataclass(frozen=True)
class Opinion:
    """`fired`: what proves the hazard. Else `silent` says what was looked at and found in order, `blind` why the oracle
    could not look, `backend` why this backend cannot decide it, `doubt` what indicates the hazard without proof
    it: neither of the last two is refuted by what the others say."""

    fired: tuple[Evidence, ...] = ()
    silent: str = ""
    blind: str = ""
    backend: str = ""
    doubt: str = ""


@dataclasses.dataclass(frozen=True)
class Case:
    """One finding before one run."""

    situation: Situation
    examined: Examined

    @property
    def run(self) -> RunResult:
        return self.examined.run

    @functools.cached_property
    def traces(self) -> tuple[Trace, ...]:
        return self.examined.traces

    @functools.cached_property
    def sharded(self) -> bool:
        """Some model of this run is wrapped with FSDP."""
        return self.run.wrap.startswith("fsdp") or any(
            event.wrap.startswith("fsdp") for trace in self.traces for event in trace.of(Hashes)
        )

    @functools.cached_property
    def counts(self) -> dict[int, int]:
        """How often each rank ran the finding."""
        return {trace.rank: max(self.line_counts(trace, self.situation.ran), default=0) for trace in self.traces}

    @property
    def ran(self) -> bool:
        return any(self.counts.values())

    @property
    def ran_unequally(self) -> bool:
        return len(set(self.counts.values())) > 1

    @functools.cached_property
    def went_round_together(self) -> str:
        """The ranks diverge in the loop whose rounds the finding is about, and none has left it: '' unless so."""
        loop, path = self.situation.loop, self.situation.path
        first = next(iter(self.examined.mismatches), None)
        if loop is None or first is None:
            return ""
        apart = rounds_apart(first, self.examined.before(first))
        if apart is not None and (real(apart.path), apart.line) == (path, loop.header):
            return f"the ranks were in different rounds of this loop before one of them left it: {apart.text}"
        for call in first.calls.values():
            if call is None or not any(frame.line in loop.body and real(frame.path) == path for frame in call.frames):
                return ""
        known = all(any(one.line == loop.header for one in call.rounds) for _, call in present(first.calls))
        if known and in_one_round(first):
            return (
                f"the ranks are in the same round of the loop of line {loop.header} when they diverge in it ({first})"
            )
        counts = [tuple(self.line_counts(trace, (loop.header, loop.each))) for trace in self.traces]
        if any(headers != rounds for headers, rounds in counts):
            return ""
        return f"no rank has left the loop of line {loop.header} when they diverge in it ({first})"

    def recorded(self, trace: Trace, what: str) -> Any:
        """What a rank has recorded (a field of Lines) for the finding's file, {} for nothing."""
        last = trace.last(Lines)
        tables = getattr(last, what) if last is not None else {}
        return next((found for path, found in tables.items() if real(path) == self.situation.path), {})

    def line_counts(self, trace: Trace, lines: Iterable[int]) -> list[int]:
        """How often each of these lines ran on a rank."""
        counts = self.recorded(trace, "counts")
        return [counts.get(line, 0) for line in lines]

    def hit(self, event: Event) -> Frame | None:
        """The frame of the event that is on the finding's lines."""
        at = self.situation
        return next((frame for frame in event.frames if frame.line in at.lines and real(frame.path) == at.path), None)

    def named(self, event: Event) -> Frame | None:
        """The frame of the event that is on any line that the finding names, once its own lines ran."""
        if not self.ran:
            return None
        return next((frame for frame in event.frames if (real(frame.path), frame.line) in self.situation.named), None)

    def events(self, kind: type[AnyEvent]) -> list[tuple[int, AnyEvent]]:
        """All events of one class, each with its rank."""
        return [(trace.rank, event) for trace in self.traces for event in trace.of(kind)]

    def called(self, name: str) -> bool:
        """A rank called a function that the oracles care for."""
        return any(any(trace.calls(name)) for trace in self.traces)

    def hits(self, kind: type[AnyEvent]) -> Iterator[tuple[int, AnyEvent, Frame]]:
        """(rank, event, frame) of all events of one class that happened on the finding's lines."""
        for rank, event in self.events(kind):
            frame = self.hit(event)
            if frame is not None:
                yield rank, event, frame

    def calls(self, name: str) -> list[tuple[int, Call, Frame]]:
        """(rank, event, frame) of all calls of one function on the finding's lines."""
        return [hit for hit in self.hits(Call) if hit[1].name == name]

    def speaks_of(self, names: Iterable[str]) -> bool:
        """The finding's statement holds a word of one of these qualified names: `self.head = ...` and `head.weight`."""
        return any(part in self.situation.words for name in names for part in name.split(".") if not part.isdigit())

    def evidence(
        self, kind: str, message: str, *, rank: int | None = None, frame: Frame | None = None, linked: bool = True
    ) -> Evidence:
        """Evidence at a frame, which ties it to the finding by place; else `linked` says that a name does."""
        path, line = (frame.path, frame.line) if frame else (self.situation.path, self.situation.finding.span.line)
        tie = "" if not linked else "place" if frame else "name"
        return Evidence(self.run.wrap, rank, kind, message, shown(path), line, tie)

    def fires(
        self, kind: str, message: str, *, rank: int | None = None, frame: Frame | None = None, linked: bool = True
    ) -> Opinion:
        """One piece of evidence proves the hazard."""
        return Opinion((self.evidence(kind, message, rank=rank, frame=frame, linked=linked),))


@functools.lru_cache(maxsize=4096)
def real(path: str) -> str:
    return os.path.realpath(path)


def shown(path: str) -> str:
    """A path as findings show it: relative to the working directory when below it."""
    try:
        return pathlib.Path(real(path)).relative_to(os.path.realpath(pathlib.Path.cwd())).as_posix()
    except ValueError:
        return path
