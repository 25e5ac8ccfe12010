"""Where the ranks' streams of collectives diverge: pure functions of what each rank recorded.

Collectives of one process group match in the order in which each member calls them, regardless of call sites. So the
streams of one group are zipped: the first position at which op, shape, dtype, root, reduce op or buffer differ, or at
which a member has nothing left to offer, is where the group diverges. What follows a broken order in that group is its
consequence and is not reported.

Where a group diverges is not always the cause: an extra all_reduce on rank 0 pairs with rank 1's next one when the
shapes agree, and only the last one hangs. So the streams are aligned again, on (op, shape, call site): the
`culprits` are the calls that some members made and others did not. Call sites are a hint, never a mismatch: two arms
of a rank branch that call the same sequence are legal.
"""

from __future__ import annotations

import collections
import dataclasses
import difflib
import enum
import itertools
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeVar

from ddp_lint.verify.trace import Collective, Frame, Tensor

#: Collectives whose members may hand in tensors of different size: a root's list, explicit split sizes.
_RAGGED = frozenset({"scatter", "gather", "all_to_all", "all_to_all_single", "reduce_scatter_v", "all_gather_v"})
#: Collectives in which every member hands in its own copy of one tensor. Of the others each member hands in a part, and
#: parts of a flat parameter bear the names of what lies in them, rank 0's another one than rank 1's.
_SAME_TENSOR = frozenset({"all_reduce", "broadcast", "reduce"})
#: A cause is looked for this many calls around the mismatch: the alignment is quadratic.
_LOOK_AROUND = 400
_NOWHERE = Frame("", 0, "")


class Kind(str, enum.Enum):
    """What differs where a group diverges."""

    ORDER = "order"
    MISSING = "missing rank"
    SHAPE = "shape"
    SPLITS = "split sizes"
    DTYPE = "dtype"
    REDUCE_OP = "reduce op"
    ROOT = "root"
    BUFFER = "buffer"
    MEMBERS = "members"
    #: A message that is received with another tag than it was sent with.
    TAG = "tag"
    #: Ranks that wait for each other, each in a call on another group.
    CROSSED = "crossed groups"

    @property
    def breaks_the_order(self) -> bool:
        """Nothing after it in the group lines up any more."""
        return self in (Kind.ORDER, Kind.MISSING)


class Ending(str, enum.Enum):
    """How a rank's stream ended, which says what the absence of a further call means."""

    COMPLETED = "completed"
    FAILED = "failed"
    STALLED = "stalled"
    #: By the launcher, because of another rank, or cut off: what it would have called is unknown.
    UNKNOWN = "unknown"


_Pair = TypeVar("_Pair", tuple[int, int], tuple[int, int, int])
#: The collectives of each rank, in the order in which it issued them.
Streams = Mapping[int, Sequence[Collective]]
Cells = Mapping[int, "Collective | None"]


class Call(NamedTuple):
    """One rank's call."""

    rank: int
    collective: Collective


def present(cells: Cells) -> list[Call]:
    """The calls at one position, without the ranks that have none."""
    return [Call(rank, call) for rank, call in cells.items() if call is not None]


@dataclasses.dataclass(frozen=True)
class Mismatch:
    """One position of one group at which its members do not do the same.

    `calls` holds each member's call there, None for a member that has none left.
    """

    kind: Kind
    group: str
    position: int
    calls: Cells
    culprits: tuple[Call, ...] = ()

    @property
    def direct(self) -> bool:
        """A send or a receive between two ranks, which its peer does not answer."""
        return any(call is not None and call.peer is not None for call in self.calls.values())

    @property
    def own_groups(self) -> bool:
        """A group that not all ranks make, or that is another one on each."""
        made = [call is not None and call.op == "new_group" for call in self.calls.values()]
        return self.kind is Kind.MEMBERS or (any(made) and not all(made))

    @property
    def absent(self) -> tuple[int, ...]:
        """The ranks that have no call here."""
        return tuple(rank for rank, call in self.calls.items() if call is None)

    def __str__(self) -> str:
        return f"{self.kind.value}: {self.description}"

    @property
    def description(self) -> str:
        """What each rank does there."""
        return ", ".join(f"rank {rank} {self._of(rank, call)}" for rank, call in self.calls.items())

    def _of(self, rank: int, call: Collective | None) -> str:
        if call is None and self.direct:
            asked = [call for call in self.calls.values() if call is not None]
            if _is_nobody(rank, asked):
                return "does not exist"
            return "never sends to it" if asked[0].op == "recv" else "never receives from it"
        of = f" of {call.tensors[0].name}" if self.kind is Kind.BUFFER and call is not None else ""
        return _in_words(call, of, every_dtype=self.kind is Kind.DTYPE)


@dataclasses.dataclass(frozen=True)
class Row:
    """One position of one group, for display: what each member calls there."""

    group: str
    position: int
    calls: Cells
    mismatch: Mismatch | None = None


def mismatches(streams: Streams, endings: Mapping[int, Ending]) -> list[Mismatch]:
    """All mismatches, the first one (the root cause) first. A rank without an entry in `endings` counts as unknown."""
    order = _order_of(streams)
    direct = _unanswered_in(streams, endings)
    unlike = [*_unlike_tags(streams, endings), *_unlike_messages(streams)]
    crossed = _crossed_groups(streams, endings)
    # Who waits in a receive reaches no collective: that it is missing there is a consequence.
    stuck = {rank for mismatch in direct for rank in mismatch.calls.keys() - set(mismatch.absent)}
    found = [mismatch for group in _groups(streams) for mismatch in _mismatches_of(group, endings)]
    stuck |= {rank for mismatch in crossed for rank in mismatch.calls}
    found = [*unlike, *crossed, *direct] + [
        one for one in found if one.kind is not Kind.MISSING or not stuck & set(one.absent)
    ]
    return sorted(found, key=lambda mismatch: order(mismatch.calls))


def unanswered(waiting: Mapping[_Pair, Sequence[Collective]], endings: Mapping[int, Ending]) -> Mismatch | None:
    """The first send or receive that its peer does not answer, a receive before a send (which may be buffered).

    `waiting` holds by (sender, receiver, and maybe tag) the calls that have found no partner; the peer's ending must be
    known.
    """
    for op, peer in (("recv", 0), ("send", 1)):
        for pair, calls in sorted(waiting.items()):
            unmet = [call for call in calls if call.op == op]
            if not unmet:
                continue
            if endings.get(pair[peer], Ending.UNKNOWN) is not Ending.UNKNOWN or _is_nobody(pair[peer], unmet):
                absent: Cells = {pair[peer]: None} if pair[0] != pair[1] else {}  # a rank may wait for itself
                return Mismatch(Kind.MISSING, unmet[0].group, -1, {pair[1 - peer]: unmet[0], **absent})
    return None


def _is_nobody(rank: int, calls: Sequence[Collective]) -> bool:
    """Is there no such rank in the group of the calls? Which one an anonymous receive waits for (-1) is open."""
    return rank >= 0 and rank not in calls[0].ranks


def circle(waits: Mapping[int, tuple[Collective, Collection[int]]]) -> tuple[int, ...]:
    """Ranks of which each waits for the next one, and the last one for the first. `waits` holds by rank the call that
    it waits in, and the ranks that it waits for."""
    for first in sorted(waits):
        paths: list[tuple[int, ...]] = [(first,)]
        seen: set[int] = set()
        while paths:
            path = paths.pop()
            for rank in sorted(waits[path[-1]][1]):
                if rank == first:
                    return path
                if rank in waits and rank not in seen:
                    seen.add(rank)
                    paths.append((*path, rank))
    return ()


def rows(streams: Streams, endings: Mapping[int, Ending]) -> list[Row]:
    """The streams of all groups zipped into rows, in the order in which the ranks called them."""
    order = _order_of(streams)
    at: dict[tuple[str, int], Mismatch] = {}
    for mismatch in mismatches(streams, endings):
        at.setdefault((mismatch.group, mismatch.position), mismatch)
    table = [
        Row(group.name, position, cells, at.get((group.name, position)))
        for group in _groups(streams)
        for position, cells in enumerate(group.cells())
    ]
    return sorted(table, key=lambda row: order(row.calls))


@dataclasses.dataclass(frozen=True)
class Exchange:
    """Two calls of one op and shape that met although they are not the same step of the program. `crossed`: the ranks
    make the same calls, each in an order of its own, so that tensors of different meaning were mixed; else one rank
    made a call that the other did not, and another one took its place."""

    one: Call
    other: Call
    crossed: bool


def exchanged(streams: Streams, lines: frozenset[tuple[str, int]]) -> Exchange | None:
    """The first calls that met although they differ in what they are for, both of them in `lines` (path, line).

    Equal shapes hide this from everything else. What a call is for says its label (the tensor's name, the variables of
    the loops around it), else its line. Two arms of a rank branch may do the same with other names: whether they do
    is known only from the source, which is why it is restricted to lines that a finding names.
    """
    for group in _groups(streams):
        for cells in group.cells():
            calls = [one for one in present(cells) if place(one.collective) in lines]
            for call in calls[1:]:
                if _purpose(calls[0].collective) != _purpose(call.collective):
                    return Exchange(calls[0], call, _crossed(group, calls[0].rank, call.rank, lines))
    return None


def unrelated(table: Sequence[Row]) -> Mismatch | None:
    """The first calls that met by op and shape, made by different functions at different lines: DDP as it is built, and
    a gather of objects."""
    for row in table:
        calls = [call for call in row.calls.values() if call is not None]
        for one, other in itertools.combinations(calls, 2):
            made = [(call.issued_by, call.api) for call in (one, other)]
            if made[0] != made[1] and place(one) != place(other):
                return Mismatch(Kind.ORDER, row.group, row.position, row.calls)
    return None


def walked_apart(streams: Streams) -> Exchange | None:
    """The first sums that met although they are of other names, where the ranks make the same sums, each in an order of
    its own: on one line in a loop over names, or on several lines of one function."""
    for group in _groups(streams):
        for cells in group.cells():
            calls = [one for one in present(cells) if one.collective.op in _SAME_TENSOR]
            for call in calls[1:]:
                lines = _told_apart(group, calls[0].collective, call.collective)
                if lines and _crossed(group, calls[0].rank, call.rank, lines):
                    return Exchange(calls[0], call, True)
    return None


def _told_apart(group: _Group, one: Collective, other: Collective) -> frozenset[tuple[str, int]]:
    """The lines on which calls of both kinds are made, if what these two are called with has different names."""
    if place(one) == place(other):
        labels = {made.label for made in (one, other) if "=" in made.label}
        return frozenset([place(one)]) if len(labels) > 1 else frozenset()
    here, there = one.site, other.site
    if here is None or there is None or not here.in_function_of(there):
        return frozenset()
    named = one.label and other.label and one.label != other.label
    calls = (call for calls in group.streams.values() for call in calls) if named else ()
    sites = (call.site for call in calls if call.site is not None)
    return frozenset(at[:2] for at in sites if at.in_function_of(here))


def _purpose(call: Collective) -> object:
    return call.label or place(call)


def _crossed(group: _Group, one: int, other: int, lines: frozenset[tuple[str, int]]) -> bool:
    """Both ranks make the same calls on these lines."""
    made = [
        collections.Counter((call.op, _purpose(call)) for call in group.streams[rank] if place(call) in lines)
        for rank in (one, other)
    ]
    return made[0] == made[1]


def place(call: Collective) -> tuple[str, int]:
    """The user's (path, line) of a call, ("", 0) where none is known."""
    site = call.site or _NOWHERE
    return site.path, site.line


def describe(call: Collective, *, every_dtype: bool = False) -> str:
    """`all_reduce [4, 4] float64 MAX root 1`: what is compared, with the defaults left out."""
    words = [call.api or call.op]
    words += [str(list(tensor.shape)) for tensor in call.tensors[:2]]
    if len(call.tensors) > 2:
        words.append(f"and {len(call.tensors) - 2} more")
    words += sorted({tensor.dtype for tensor in call.tensors} - ({"float32"} if not every_dtype else set()))
    if call.reduce_op not in ("", "SUM"):
        words.append(call.reduce_op)
    if call.root is not None:
        words.append(f"root {call.root}")
    if call.sends and not every_dtype:
        words.append(f"that sends {list(call.sends)} and expects {list(call.expects)}")
    if call.peer is not None:
        words.append(f"{'from' if call.op == 'recv' else 'to'} rank {call.peer}")
    if call.tag:
        words.append(f"tag {call.tag}")
    if call.members:
        words.append(f"of rank{'s' * (len(call.members) > 1)} {_listed(call.members)}")
    if call.group != "world":
        words.append(f"on rank{'s' * (len(call.ranks) != 1)} {call.group}")
    return " ".join(words)


def _listed(ranks: Sequence[int]) -> str:
    return ", ".join(map(str, sorted(ranks)))


def _in_words(call: Collective | None, of: str = "", *, every_dtype: bool = False) -> str:
    if call is None:
        return "makes no further call"
    line = place(call)[1]
    return f"calls {describe(call, every_dtype=every_dtype)}{of}" + (f" (line {line})" if line else "")


@dataclasses.dataclass
class _Group:
    name: str
    streams: dict[int, list[Collective]]

    def cells(self) -> Iterator[dict[int, Collective | None]]:
        for position in range(max(map(len, self.streams.values()), default=0)):
            yield {rank: calls[position] if position < len(calls) else None for rank, calls in self.streams.items()}


def _groups(streams: Streams) -> list[_Group]:
    """Point-to-point calls meet by peer and tag, not by position: they are left out."""
    members: dict[str, set[int]] = collections.defaultdict(set)
    calls_of: dict[tuple[str, int], list[Collective]] = collections.defaultdict(list)
    for rank, calls in streams.items():
        for call in calls:
            if call.peer is None and call.op not in ("send", "recv"):
                members[call.group] |= {rank, *call.ranks}
                calls_of[call.group, rank].append(call)
    return [
        _Group(name, {rank: calls_of[name, rank] for rank in sorted(ranks & set(streams))})
        for name, ranks in members.items()
    ]


def _unanswered_in(streams: Streams, endings: Mapping[int, Ending]) -> list[Mismatch]:
    """The point-to-point call that its peer does not answer, where a rank waits in one."""
    waiting = {}
    for pair, ways in messages(streams).items():
        met = min(len(ways["send"]), len(ways["recv"]))
        stalled = endings.get(pair[0]) is Ending.STALLED
        waiting[pair] = ways["recv"][met:] or (ways["send"][met:] if stalled else [])
    found = unanswered(waiting, endings)
    return [_both_ways(found, waiting)] if found else []


def _unlike_messages(streams: Streams) -> list[Mismatch]:
    """The first message that is received into a tensor of another size."""
    for (sender, receiver), ways in messages(streams).items():
        of = {
            way: {key: [c for c in calls if (c.group, c.tag) == key] for key in {(c.group, c.tag) for c in calls}}
            for way, calls in ways.items()
        }
        for key, sent in of["send"].items():
            for one, other in zip(sent, of["recv"].get(key, ()), strict=False):
                if _elements(one) != _elements(other):
                    return [Mismatch(Kind.SHAPE, one.group, -1, {sender: one, receiver: other})]
    return []


def _unlike_tags(streams: Streams, endings: Mapping[int, Ending]) -> list[Mismatch]:
    """A receive in which a rank is stuck, and a message that has come for it with another tag."""
    for (sender, receiver), ways in messages(streams).items():
        if endings.get(receiver) is Ending.STALLED:
            unmet = {"send": _beyond(ways["send"], ways["recv"]), "recv": _beyond(ways["recv"], ways["send"])}
            for call in unmet["recv"]:
                sent = next((one for one in unmet["send"] if one.group == call.group), None)
                if sent is not None:
                    return [Mismatch(Kind.TAG, call.group, -1, {sender: sent, receiver: call})]
    return []


def _beyond(calls: Sequence[Collective], partners: Sequence[Collective]) -> list[Collective]:
    """Those of the calls that find no partner of their group and tag."""
    left = collections.Counter((call.group, matched_tag(call)) for call in partners)
    found = []
    for call in calls:
        key = (call.group, matched_tag(call))
        left[key] -= 1
        found += [call] if left[key] < 0 else []
    return found


def matched_tag(call: Collective) -> int:
    """The tag by which a message finds its receive: NCCL has none."""
    return call.tag if all(tensor.device == "cpu" for tensor in call.tensors) else 0


def _crossed_groups(streams: Streams, endings: Mapping[int, Ending]) -> list[Mismatch]:
    """Ranks that are stuck in calls on unlike groups, each for want of the next one."""
    waits: dict[int, tuple[Collective, set[int]]] = {}
    for group in _groups(streams):
        for rank, calls in group.streams.items():
            absent = {other for other, theirs in group.streams.items() if len(theirs) < len(calls)}
            inside = bool(calls) and streams[rank][-1] is calls[-1] and not calls[-1].asynchronous
            if absent and inside and endings.get(rank) is Ending.STALLED:
                waits[rank] = calls[-1], absent
    ranks = circle(waits)
    calls_of = {rank: waits[rank][0] for rank in ranks}
    if len({call.group for call in calls_of.values()}) < 2:
        return []
    return [Mismatch(Kind.CROSSED, calls_of[ranks[0]].group, -1, calls_of)]


def _elements(call: Collective) -> int:
    """How many elements a message has, however many tensors it is received into."""
    return sum(math.prod(tensor.shape) for tensor in call.tensors)


def messages(streams: Streams) -> Mapping[tuple[int, int], Mapping[str, Sequence[Collective]]]:
    """By (sender, receiver) what one sends and the other one receives: calls of one pair meet in order. None where a
    rank takes what comes from anybody, which leaves open whose send it took."""
    calls: dict[tuple[int, int], dict[str, list[Collective]]] = collections.defaultdict(
        lambda: {"send": [], "recv": []}
    )
    for rank, stream in streams.items():
        for call in stream:
            if call.op == "recv" and call.peer is None:
                return {}
            if call.op in ("send", "recv") and call.peer is not None:
                calls[(rank, call.peer) if call.op == "send" else (call.peer, rank)][call.op].append(call)
    return calls


def _both_ways(found: Mismatch, waiting: Mapping[tuple[int, int], Sequence[Collective]]) -> Mismatch:
    """Two ranks that both send to each other first, or both receive: each waits for what comes behind in the other."""
    rank, call = next((rank, call) for rank, call in found.calls.items() if call is not None)
    peer = -1 if call.peer is None else call.peer
    back = waiting.get((peer, rank) if call.op == "send" else (rank, peer), ())
    if call.peer is not None and call.peer != rank and back and back[0].op == call.op:
        return Mismatch(Kind.ORDER, found.group, -1, {rank: call, call.peer: back[0]})
    return found


def _order_of(streams: Streams) -> Callable[[Cells], int]:
    """A sort key for cells: the earliest position at which any rank made its call."""
    position = {(rank, call.n): n for rank, calls in streams.items() for n, call in enumerate(calls)}

    def order(cells: Cells) -> int:
        return min(position[rank, call.n] for rank, call in cells.items() if call is not None)

    return order


def _mismatches_of(group: _Group, endings: Mapping[int, Ending]) -> Iterator[Mismatch]:
    seen: set[tuple[Kind, tuple[tuple[str, int], ...]]] = set()
    for position, cells in enumerate(group.cells()):
        for kind in differences(cells, endings):
            key = (kind, tuple(place(call) for call in cells.values() if call))
            if key not in seen:
                seen.add(key)
                culprits = _culprits(group, position) if kind.breaks_the_order else ()
                yield Mismatch(kind, group.name, position, cells, culprits)
            if kind.breaks_the_order:
                return
        if None in cells.values():
            return


def differences(cells: Cells, endings: Mapping[int, Ending]) -> Iterator[Kind]:
    """What differs at one position; a broken order comes alone."""
    present = [call for call in cells.values() if call is not None]
    if len({call.op for call in present}) > 1:
        yield Kind.ORDER
        return
    absent = [rank for rank, call in cells.items() if call is None]
    if absent:
        if any(endings.get(rank, Ending.UNKNOWN) is not Ending.UNKNOWN for rank in absent):
            yield Kind.MISSING
        return
    if not _may_be_ragged(present):
        if len({_shapes(call.tensors) for call in present}) > 1:
            yield Kind.SHAPE
        if len({_dtypes(call.tensors) for call in present}) > 1:
            yield Kind.DTYPE
    elif _unlike_splits(cells):
        yield Kind.SPLITS
    if len({call.reduce_op for call in present}) > 1:
        yield Kind.REDUCE_OP
    if len({call.root for call in present}) > 1:
        yield Kind.ROOT
    if len({tuple(sorted(call.members)) for call in present}) > 1:
        yield Kind.MEMBERS
    if present[0].op in _SAME_TENSOR and _names_differ(
        [tuple(tensor.name for tensor in call.tensors) for call in present]
    ):
        yield Kind.BUFFER


def _unlike_splits(cells: Cells) -> bool:
    """What a rank sends to another one in an all_to_all is not what that one expects."""
    calls = {rank: call for rank, call in cells.items() if call is not None and call.sends and call.expects}
    return any(
        call.sends[call.ranks.index(peer)] != calls[peer].expects[call.ranks.index(rank)]
        for rank, call in calls.items()
        for peer in calls
    )


def _may_be_ragged(calls: Sequence[Collective]) -> bool:
    """An all_gather may take tensors of different size when every rank prepared the same outputs for them."""
    if calls[0].op in _RAGGED:
        return True
    outputs = {_shapes(call.outputs) for call in calls}
    return calls[0].op == "all_gather" and len(outputs) == 1 and len(set(*outputs)) > 1


def _names_differ(names: Sequence[tuple[str, ...]]) -> bool:
    known = [n for n in names if n and all(n)]
    return len(known) == len(names) and len(set(known)) > 1


def _shapes(tensors: Sequence[Tensor]) -> tuple[tuple[int, ...], ...]:
    return tuple(tensor.shape for tensor in tensors)


def _dtypes(tensors: Sequence[Tensor]) -> tuple[str, ...]:
    return tuple(tensor.dtype for tensor in tensors)


def _identity(call: Collective) -> tuple[str, tuple[tuple[int, ...], ...], tuple[str, int]]:
    """What makes two ranks' calls the same step of one program."""
    return call.op, _shapes(call.tensors), place(call)


def _same(pair: tuple[Collective, Collective]) -> bool:
    return _identity(pair[0]) == _identity(pair[1])


def _culprits(group: _Group, position: int) -> tuple[Call, ...]:
    """Calls that one member made and another did not, the earliest first.

    Where two members call the same ops from different lines they take different arms of one branch: no culprit.
    """
    window = slice(max(0, position - _LOOK_AROUND), position + _LOOK_AROUND)
    (first, mine), *others = [(rank, calls[window]) for rank, calls in group.streams.items()]
    found: set[Call] = set()
    for rank, theirs in others:
        # The longest run in common, which difflib looks for first, may be a later one of a call that repeats.
        alike = len(list(itertools.takewhile(_same, zip(mine, theirs, strict=False))))
        one, other = mine[alike:], theirs[alike:]
        words = list(map(_identity, one)), list(map(_identity, other))
        for tag, a0, a1, b0, b1 in difflib.SequenceMatcher(None, *words, autojunk=False).get_opcodes():
            if tag != "equal" and [call.op for call in one[a0:a1]] != [call.op for call in other[b0:b1]]:
                found |= {Call(first, call) for call in one[a0:a1]} | {Call(rank, call) for call in other[b0:b1]}
    return tuple(sorted(found, key=lambda call: (call.collective.seq, call.rank)))
