"""Where the ranks' streams of collectives part: pure functions of what each rank recorded.

Collectives of one process group meet in the order in which each member calls them, whatever the call sites. So the
streams of one group are zipped: the first position at which op, shape, dtype, root, reduce op or buffer differ, or at
which a member has nothing left to offer, is where the group parts. What follows a broken order in that group is its
consequence and is not reported.

The place where a group parts is not always the cause: an extra all_reduce on rank 0 pairs with rank 1's next one when
the shapes agree, and only the last one hangs. So the streams are aligned once more, on (op, shape, call site): the
`culprits` are the calls that some members made and others did not. Call sites are a hint, never a mismatch: two arms
of a rank branch that call the same sequence are legal.
"""

from __future__ import annotations

import collections
import dataclasses
import difflib
import enum
from collections.abc import Iterator, Mapping, Sequence

#: Collectives whose members may hand in tensors of different size: a root's list, explicit split sizes.
_RAGGED = ("scatter", "gather", "alltoall")
_EVEN = ("allgather", "reduce_scatter", "reducescatter")
#: A cause is looked for this many calls before the mismatch: the alignment is quadratic.
_LOOK_BACK = 400


class Kind(str, enum.Enum):
    """What differs where a group parts."""

    ORDER = "order"
    MISSING = "missing rank"
    SHAPE = "shape"
    DTYPE = "dtype"
    REDUCE_OP = "reduce op"
    ROOT = "root"
    BUFFER = "buffer"

    @property
    def breaks_the_order(self) -> bool:
        """Nothing after it in the group lines up any more."""
        return self in (Kind.ORDER, Kind.MISSING)


class Ending(str, enum.Enum):
    """How a rank's stream ended, which says what the absence of a further call means."""

    COMPLETED = "completed"
    FAILED = "failed"
    STALLED = "stalled"
    KILLED = "killed"  # by the launcher, because of another rank: what it would have called is unknown


@dataclasses.dataclass(frozen=True)
class Call:
    """One collective as one rank called it.

    `index` is its position in the rank's whole stream, over all groups; `root` a global rank; `site` the user's
    (path, line), ("", 0) where none is known, as on autograd threads; `buffer` the parameter or buffer handed in,
    where its name is known.
    """

    rank: int
    index: int
    op: str
    group: str
    members: tuple[int, ...]
    shapes: tuple[tuple[int, ...], ...] = ()
    dtypes: tuple[str, ...] = ()
    reduce_op: str = ""
    root: int | None = None
    buffer: str = ""
    site: tuple[str, int] = ("", 0)

    @property
    def identity(self) -> tuple[str, tuple[tuple[int, ...], ...], tuple[str, int]]:
        """What makes two ranks' calls the same step of one program."""
        return self.op, self.shapes, self.site

    def __str__(self) -> str:
        words = [self.op]
        if self.shapes:
            words.append(", ".join(str(list(shape)) for shape in self.shapes[:2]) + (" ..." * (len(self.shapes) > 2)))
        words += [dtype for dtype in sorted(set(self.dtypes)) if dtype != "float32"]
        if self.reduce_op and self.reduce_op != "SUM":
            words.append(self.reduce_op)
        if self.root is not None:
            words.append(f"root {self.root}")
        return " ".join(words)


@dataclasses.dataclass(frozen=True)
class Mismatch:
    """One position of one group at which its members do not do the same.

    `calls` holds each member's call there, None for a member that has none left.
    """

    kind: Kind
    group: str
    members: tuple[int, ...]
    position: int
    calls: Mapping[int, Call | None]
    culprits: tuple[Call, ...] = ()

    @property
    def order(self) -> int:
        return min(call.index for call in self.calls.values() if call is not None)

    def __str__(self) -> str:
        parts = []
        for rank, call in sorted(self.calls.items()):
            at = f" ({call.site[0]}:{call.site[1]})" if call and call.site[1] else ""
            parts.append(f"rank {rank}: {call or 'nothing'}{at}")
        return f"{self.kind.value}: " + ", ".join(parts)


@dataclasses.dataclass(frozen=True)
class Row:
    """One position of one group, for display: what each member calls there."""

    group: str
    position: int
    calls: Mapping[int, Call | None]
    mismatch: Mismatch | None = None


Streams = Mapping[int, Sequence[Call]]


def mismatches(streams: Streams, endings: Mapping[int, Ending]) -> list[Mismatch]:
    """All mismatches, the first one (the root cause) first. A rank without an entry in `endings` counts as killed."""
    found = [mismatch for group in _groups(streams).values() for mismatch in _mismatches_of(group, endings)]
    return sorted(found, key=lambda mismatch: mismatch.order)


def rows(streams: Streams, endings: Mapping[int, Ending]) -> list[Row]:
    """The streams of all groups zipped into rows, in the order in which the ranks called them."""
    at: dict[tuple[str, int], Mismatch] = {}
    for mismatch in mismatches(streams, endings):
        at.setdefault((mismatch.group, mismatch.position), mismatch)
    table = [
        Row(name, position, cells, at.get((name, position)))
        for name, group in _groups(streams).items()
        for position, cells in enumerate(group.cells())
    ]
    return sorted(table, key=lambda row: min(call.index for call in row.calls.values() if call is not None))


@dataclasses.dataclass
class _Group:
    name: str
    members: tuple[int, ...]
    streams: dict[int, list[Call]]

    def cells(self) -> Iterator[dict[int, Call | None]]:
        for position in range(max(map(len, self.streams.values()))):
            yield {rank: stream[position] if position < len(stream) else None for rank, stream in self.streams.items()}


def _groups(streams: Streams) -> dict[str, _Group]:
    members: dict[str, set[int]] = collections.defaultdict(set)
    for calls in streams.values():
        for call in calls:
            members[call.group] |= set(call.members)
    groups = {}
    for name, ranks in members.items():
        here = sorted(ranks & set(streams))
        mine = {rank: [call for call in streams[rank] if call.group == name] for rank in here}
        groups[name] = _Group(name, tuple(sorted(ranks)), mine)
    return groups


def _mismatches_of(group: _Group, endings: Mapping[int, Ending]) -> Iterator[Mismatch]:
    seen: set[tuple[Kind, tuple[tuple[str, int], ...]]] = set()
    for position, cells in enumerate(group.cells()):
        for kind in _differences(cells, endings):
            key = (kind, tuple(call.site for call in cells.values() if call))
            if key not in seen:
                seen.add(key)
                yield _mismatch(kind, group, position, cells)
            if kind.breaks_the_order:
                return
        if None in cells.values():
            return


def _mismatch(kind: Kind, group: _Group, position: int, cells: Mapping[int, Call | None]) -> Mismatch:
    culprits = _culprits(group, position) if kind.breaks_the_order else ()
    return Mismatch(kind, group.name, group.members, position, cells, culprits)


def _differences(cells: Mapping[int, Call | None], endings: Mapping[int, Ending]) -> Iterator[Kind]:
    """What differs at one position; a broken order comes alone."""
    present = [call for call in cells.values() if call is not None]
    if len({call.op for call in present}) > 1:
        yield Kind.ORDER
        return
    absent = [rank for rank, call in cells.items() if call is None]
    if absent:
        if any(endings.get(rank, Ending.KILLED) is not Ending.KILLED for rank in absent):
            yield Kind.MISSING
        return
    if not _may_be_ragged(present[0].op):
        if len({call.shapes for call in present}) > 1:
            yield Kind.SHAPE
        if len({call.dtypes for call in present}) > 1:
            yield Kind.DTYPE
    if len({call.reduce_op for call in present}) > 1:
        yield Kind.REDUCE_OP
    if len({call.root for call in present}) > 1:
        yield Kind.ROOT
    names = {call.buffer for call in present}
    if len(names) > 1 and "" not in names:
        yield Kind.BUFFER


def _may_be_ragged(op: str) -> bool:
    plain = op.replace("all_gather", "allgather").replace("all_to_all", "alltoall")
    return not plain.startswith(_EVEN) and plain.startswith(_RAGGED)


def _culprits(group: _Group, position: int) -> tuple[Call, ...]:
    """Calls that one member made and another did not, the earliest first.

    Where two members call the same ops from different lines they take different arms of one branch: no culprit.
    """
    start = max(0, position - _LOOK_BACK)
    streams = [stream[start : position + _LOOK_BACK] for stream in group.streams.values()]
    found: dict[tuple[int, int], Call] = {}
    for other in streams[1:]:
        matcher = difflib.SequenceMatcher(
            None, [call.identity for call in streams[0]], [call.identity for call in other], autojunk=False
        )
        for tag, a0, a1, b0, b1 in matcher.get_opcodes():
            mine, theirs = streams[0][a0:a1], other[b0:b1]
            if tag != "equal" and [call.op for call in mine] != [call.op for call in theirs]:
                found |= {(call.rank, call.index): call for call in [*mine, *theirs]}
    return tuple(sorted(found.values(), key=lambda call: call.index))


def swapped(streams: Streams, sites: frozenset[tuple[str, int]]) -> tuple[Call, Call] | None:
    """The first pair of calls that met although they come from two different lines of `sites`.

    Equal shapes hide such a swap from everything else: both ranks get the sum of two different tensors. Whether it is
    one is known only to who has read the source, hence the restriction to lines that a finding names.
    """
    for group in _groups(streams).values():
        for cells in group.cells():
            calls = [call for call in cells.values() if call is not None]
            for call in calls[1:]:
                if call.site != calls[0].site and {call.site, calls[0].site} <= sites:
                    return calls[0], call
    return None
