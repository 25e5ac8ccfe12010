"""Would these ranks end together? A pure function of what each would call.

Ranks block where a real run blocks: in a collective until all members that are known are there, in a receive until the
message is sent, in a plain send until it is received. Ranks that were not run, and what a rank does after its trace
ends without its end being known, are assumed to do what the others wait for.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Mapping, Sequence

from ddp_lint.verify.trace import Collective


@dataclasses.dataclass(frozen=True)
class Waits:
    """A rank that waits for ever: in which call, and for which ranks, that never reach it."""

    rank: int
    call: Collective
    missing: tuple[int, ...]


def stuck(streams: Mapping[int, Sequence[Collective]], unknown: frozenset[int]) -> list[Waits]:
    """The ranks that never end, none when all do. `unknown` are ranks whose trace is cut off."""
    job = _Job(streams, unknown)
    while job.advance():
        pass
    return job.waiting()


class _Job:
    def __init__(self, streams: Mapping[int, Sequence[Collective]], unknown: frozenset[int]) -> None:
        self._streams = {rank: list(calls) for rank, calls in streams.items()}
        self._unknown = unknown
        self._at = dict.fromkeys(streams, 0)
        #: How many collectives of a group, or messages to (or awaited from) a peer, a rank has reached.
        self._reached: collections.Counter[tuple[object, ...]] = collections.Counter()
        self._posted: set[int] = set()

    def advance(self) -> bool:
        """Let each rank run until it blocks; whether any of them moved."""
        moved = False
        for rank in self._streams:
            while self._call(rank) is not None and self._step(rank):
                moved = True
        return moved

    def waiting(self) -> list[Waits]:
        found = []
        for rank in self._streams:
            call = self._call(rank)
            if call is not None:
                found.append(Waits(rank, call, self._missing(rank, call)))
        if found:
            return found
        return self._never_received()

    def _call(self, rank: int) -> Collective | None:
        calls = self._streams[rank]
        return calls[self._at[rank]] if self._at[rank] < len(calls) else None

    def _step(self, rank: int) -> bool:
        """Advance the rank past its current call, if possible."""
        call = self._call(rank)
        assert call is not None
        key = _key(rank, call)
        if rank not in self._posted:
            self._posted.add(rank)
            self._reached[key] += 1
        if not _returns_at_once(call) and self._missing(rank, call):
            return False
        self._posted.discard(rank)
        self._at[rank] += 1
        return True

    def _missing(self, rank: int, call: Collective) -> tuple[int, ...]:
        """The ranks that have not reached their part of the current call of `rank`."""
        number = self._reached[_key(rank, call)]
        if call.peer is not None:
            other = ("recv" if call.op == "send" else "send", call.peer, rank)
            return () if self._free(call.peer) or self._reached[other] >= number else (call.peer,)
        members = (member for member in call.ranks if member != rank)
        return tuple(m for m in members if not self._free(m) and self._reached["group", call.group, m] < number)

    def _free(self, rank: int) -> bool:
        """The rank is not known, or not any more."""
        return rank not in self._streams or (rank in self._unknown and self._call(rank) is None)

    def _never_received(self) -> list[Waits]:
        """Receives that returned at once, whose message no rank sends: a wait for them never ends."""
        found = []
        for rank, calls in self._streams.items():
            numbers: collections.Counter[int] = collections.Counter()
            for call in calls:
                if call.op != "recv" or call.peer is None:
                    continue
                numbers[call.peer] += 1
                sent = self._reached["send", call.peer, rank]
                if not self._free(call.peer) and call.peer != rank and sent < numbers[call.peer]:
                    found.append(Waits(rank, call, (call.peer,)))
                    break
        return found


def _key(rank: int, call: Collective) -> tuple[object, ...]:
    return (call.op, rank, call.peer) if call.peer is not None else ("group", call.group, rank)


def _returns_at_once(call: Collective) -> bool:
    """The rank goes on without its partners: an asynchronous call, or one that the reducer or FSDP queues."""
    return call.asynchronous or call.functional or call.issued_by in ("ddp", "fsdp")
