"""Which accesses to memory CUDA's streams order: pure bookkeeping, nothing here imports torch.

Work on one stream runs in the order of its launch. Between streams only events order: a stream that waits for an event
comes after all that the recording stream had launched, and had waited for itself, when the event was recorded. Two
accesses to one address, one of which writes, are a race where no chain of those leads from the first to the second,
whether or not the first happens to finish in time.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator

from ddp_lint.verify.trace import Frame

#: For each stream the number of its latest launch that is known to have finished.
Clock = dict[int, int]


@dataclasses.dataclass(frozen=True)
class Launch:
    """An operation on a stream, numbered in the order of launch."""

    number: int
    stream: int
    op: str
    frames: tuple[Frame, ...] = ()


@dataclasses.dataclass(frozen=True)
class Unordered:
    """Two accesses to one address that nothing orders; `writes` shows what the later one does, `freed` that the
    memory had been given back, and out again, in between."""

    earlier: Launch
    later: Launch
    writes: bool
    freed: bool = False


@dataclasses.dataclass
class _Memory:
    """The latest accesses to an address: the last write, and since then the last read of each stream."""

    write: Launch | None = None
    reads: dict[int, Launch] = dataclasses.field(default_factory=dict)
    #: Streams that the allocator waits for before it gives the memory out again (`record_stream`).
    kept: set[int] = dataclasses.field(default_factory=set)
    #: Accesses to what lay here before.
    ghosts: list[Launch] = dataclasses.field(default_factory=list)

    @property
    def accesses(self) -> Iterator[Launch]:
        if self.write is not None:
            yield self.write
        yield from self.reads.values()


class Ordering:
    """Follows launches, events, host waits and the allocator."""

    def __init__(self) -> None:
        self.launches = 0
        self._clocks: dict[int, Clock] = {}
        self._host: Clock = {}
        self._events: dict[int, Clock] = {}
        self._memory: dict[int, _Memory] = {}

    @property
    def streams(self) -> int:
        """Streams that have been seen."""
        return len(self._clocks)

    # ---- operations

    def launch(self, stream: int, op: str, frames: tuple[Frame, ...] = ()) -> Launch:
        self.launches += 1
        self._clock(stream)[stream] = self.launches
        return Launch(self.launches, stream, op, frames)

    def read(self, launch: Launch, addresses: Iterable[int]) -> Iterator[Unordered]:
        for address in addresses:
            memory = self._memory.setdefault(address, _Memory())
            if memory.write is not None and not self._ordered(memory.write, launch):
                yield Unordered(memory.write, launch, writes=False)
            memory.reads[launch.stream] = launch

    def write(self, launch: Launch, addresses: Iterable[int]) -> Iterator[Unordered]:
        for address in addresses:
            memory = self._memory.setdefault(address, _Memory())
            earlier = list(memory.reads.values()) or ([memory.write] if memory.write else [])
            yield from (Unordered(one, launch, writes=True) for one in earlier if not self._ordered(one, launch))
            ghosts = (one for one in memory.ghosts if not self._ordered(one, launch))
            yield from (Unordered(one, launch, writes=True, freed=True) for one in ghosts)
            self._memory[address] = _Memory(launch, kept=memory.kept)

    # ---- what orders

    def record(self, event: int, stream: int) -> None:
        self._events[event] = dict(self._clock(stream))

    def wait(self, event: int, stream: int) -> None:
        _join(self._clock(stream), self._events.get(event, {}))

    def host_waits_for_event(self, event: int) -> None:
        self._host_waits_for(self._events.get(event, {}))

    def host_waits_for_stream(self, stream: int) -> None:
        self._host_waits_for(dict(self._clock(stream)))

    def host_waits_for_all(self) -> None:
        for clock in list(self._clocks.values()):
            self._host_waits_for(dict(clock))

    # ---- the allocator

    def keep(self, address: int, stream: int) -> None:
        """`record_stream`: the memory stays taken until the stream has come this far."""
        self._memory.setdefault(address, _Memory()).kept.add(stream)

    def free(self, address: int) -> None:
        """The allocator orders what comes next only after the stream that the memory was made on, and after those
        that were recorded; what has no user frame was the work of torch, which records streams by itself."""
        memory = self._memory.pop(address, None)
        ghosts = [one for one in memory.accesses if one.frames and one.stream not in memory.kept] if memory else []
        if ghosts:
            self._memory[address] = _Memory(ghosts=ghosts)

    def allocate(self, address: int) -> None:
        """A tensor begins here; one that was not seen to end has ended."""
        memory = self._memory.get(address)
        if memory is not None and any(memory.accesses):
            self.free(address)
        elif memory is not None:
            memory.kept.clear()

    # ---- clocks

    def _clock(self, stream: int) -> Clock:
        return self._clocks.setdefault(stream, dict(self._host))

    def _host_waits_for(self, clock: Clock) -> None:
        _join(self._host, clock)
        for other in self._clocks.values():
            _join(other, clock)

    def _ordered(self, earlier: Launch, later: Launch) -> bool:
        return self._clock(later.stream).get(earlier.stream, 0) >= earlier.number


def _join(clock: Clock, other: Clock) -> None:
    for stream, number in other.items():
        clock[stream] = max(clock.get(stream, 0), number)
