"""Follows a run while it runs: where the ranks' collectives part is known when it happens, not after a timeout.

The launcher reads what the ranks write to their traces, off the training path. Once the ranks of a group have called
calls that cannot match, and none of them moves any more, it makes them (`Marks` diverged) dump their stacks and end.
"""

from __future__ import annotations

import collections
import io
import pathlib
import time
from collections.abc import Iterator, Sequence

from ddp_lint.verify.match import Ending, Kind, Mismatch, circle, differences, matched_tag, unanswered
from ddp_lint.verify.polling_delay import Lateness
from ddp_lint.verify.scheduling import Stillness
from ddp_lint.verify.spec import Marks
from ddp_lint.verify.trace import Awaited, Collective, Orphaned, decode

#: Seconds between two polls, and by how many one may be late before that counts as a stall of the machine.
_POLL, _SLACK = 0.1, 0.3
#: Seconds for which no rank must have moved after their calls have diverged: what comes of it by itself (an
#: exception, a transfer that goes through) comes sooner.
_STILL = 1.2
#: The same where no thread of a living rank has run, or waited for a processor: nothing is late on a busy machine then.
_STILL_ASLEEP = 0.4
#: The same where ranks send to each other: a small tensor may be on its way, and its sender at other work, which a
#: rank shows every few seconds.
_STILL_SENDING = 5.0
#: The same where a rank waits for a lock, and another one is not known to wait in a collective: it may be at work,
#: which it shows every few seconds.
_STILL_LOCKED = 3.0
_HANGS = frozenset({Kind.ORDER, Kind.MISSING, Kind.SHAPE, Kind.SPLITS, Kind.DTYPE, Kind.ROOT, Kind.MEMBERS})
_KINDS = tuple(f'{{"kind": "{event.__name__}"'.encode() for event in (Collective, Awaited, Orphaned))


class Live:
    """The ranks of one run on this machine; groups that have members on other machines are left to the timeout."""

    def __init__(self, directory: pathlib.Path, ranks: range | None) -> None:
        """`ranks`: None where the program starts them by itself, and shows how many in the mark "world"."""
        self._marks = Marks(directory)
        self._ranks = ranks
        self._tails = self._opened(ranks or range(0))
        #: Of each group the calls of each rank that have not all met yet.
        self._waiting: dict[str, dict[int, collections.deque[Collective]]] = {}
        self._broken: set[str] = set()
        #: Sends and receives by (sender, receiver, tag): how many more receives than sends were called.
        self._direct: dict[tuple[int, int, int], list[Collective]] = collections.defaultdict(list)
        self._last: dict[int, Collective] = {}
        #: (rank, number) of the messages sent asynchronously that a rank waits for.
        self._awaited: set[tuple[int, int]] = set()
        self.mismatch: Mismatch | None = None
        self._diverged = False
        self._orphaned = False
        self._late = Lateness(_POLL, _SLACK)
        self._stillness = Stillness(self._marks)

    def close(self) -> None:
        for tail in self._tails.values():
            tail.close()

    def _opened(self, ranks: range) -> dict[int, _Tail]:
        return {rank: _Tail(self._marks.directory / f"rank{rank}.jsonl") for rank in ranks}

    def poll(self) -> Mismatch | None:
        """Read what has been written since; the mismatch, if the ranks have to end because of one."""
        self._late.poll(time.time())
        if self._diverged or any(self._marks.has(rank, "dying") for rank in self._tails):
            return None
        if self._ranks is None and self._marks.has(0, "world"):
            self._ranks = range(int(self._marks.path(0, "world").read_text(encoding="utf-8") or 0))
            self._tails = self._opened(self._ranks)
        for rank, tail in self._tails.items():
            for event in tail.read():
                if isinstance(event, Orphaned):
                    self._orphaned = True
                elif isinstance(event, Awaited):
                    self._awaited.add((rank, event.of))
                else:
                    self._take(rank, event)
        # Where the ranks went on after what could not meet, what they wait in now comes of it.
        found = (one for one in (self.mismatch, self._missing()) if one is not None)
        mismatch = next(filter(self._hangs, found), None)
        if mismatch is None and not any(
            (self._locked(), self._incomplete(), self._waits_for_a_fork(), self._waits_for_threads())
        ):
            return None
        self._diverged = True
        for rank in self._tails:
            self._marks.set(rank, "diverged")
        return mismatch

    # ---- calls

    def _take(self, rank: int, call: Collective) -> None:
        self._last[rank] = call
        if call.peer is not None:
            self._take_direct(rank, call)
        elif call.op not in ("send", "recv") and call.group not in self._broken and set(call.ranks) <= set(self._tails):
            self._take_collective(rank, call)

    def _take_collective(self, rank: int, call: Collective) -> None:
        waiting = self._waiting.setdefault(call.group, {member: collections.deque() for member in call.ranks})
        waiting.setdefault(rank, collections.deque()).append(call)
        while all(waiting.values()):
            cells = {member: calls.popleft() for member, calls in sorted(waiting.items())}
            kind = next(iter(differences(cells, {})), None)
            if kind in _HANGS and kind is not None and (self.mismatch is None or _goes_on(self.mismatch, kind)):
                self.mismatch = Mismatch(kind, call.group, call.seq, cells)
            if kind is not None and kind.breaks_the_order:
                self._broken.add(call.group)
                return

    def _take_direct(self, rank: int, call: Collective) -> None:
        """A receive waits for the send that is its own: calls of one pair and tag meet in order."""
        peer = -1 if call.peer is None else call.peer
        pair = (rank, peer) if call.op == "send" else (peer, rank)
        queue = self._direct[(*pair, matched_tag(call))]
        if queue and queue[0].op != call.op:
            queue.pop(0)
        else:
            queue.append(call)

    def _missing(self) -> Mismatch | None:
        """A call for which a member is missing that is through with everything, or that waits for another one."""
        over = {rank: Ending.COMPLETED for rank in self._tails if self._ended(rank) or self._left(rank)}
        for group, waiting in self._waiting.items():
            cells = {member: calls[0] if calls else None for member, calls in sorted(waiting.items())}
            absent = [member for member, call in cells.items() if call is None]
            if group not in self._broken and len(absent) < len(cells) and any(member in over for member in absent):
                return Mismatch(Kind.MISSING, group, next(c.seq for c in cells.values() if c), cells)
        return unanswered(self._direct, over) or self._circle()

    def _circle(self) -> Mismatch | None:
        """Ranks wait in calls for each other: none will proceed. Of collectives on unlike groups that is known where
        the main threads are in them: NCCL only queues them."""
        waits: dict[int, tuple[Collective, set[int]]] = {}
        for group, waiting in self._waiting.items():
            absent = {member for member, calls in waiting.items() if not calls}
            for rank, calls in waiting.items():
                if calls and group not in self._broken and self._last.get(rank) is calls[-1]:
                    waits[rank] = (calls[0], absent)
        for (sender, receiver, _), queue in self._direct.items():
            if queue and queue[0].op == "recv" and self._last.get(receiver) is queue[-1]:
                waits[receiver] = (queue[-1], {sender})
            if queue and queue[0].op == "send" and self._waits_to_send(sender, queue):
                waits.setdefault(sender, (queue[-1], {receiver}))
        inside = {rank: waits[rank][0] for rank in circle(waits)}
        last = (rank for rank, call in inside.items() if call.peer is not None and self._last.get(rank) is call)
        direct = next(last, None)
        if direct is not None:
            call, absent = waits[direct]
            return Mismatch(Kind.MISSING, call.group, -1, {direct: call, **dict.fromkeys(absent)})
        if inside and all(not call.asynchronous and self._in_calls(rank) for rank, call in inside.items()):
            return Mismatch(Kind.CROSSED, next(iter(inside.values())).group, -1, inside)
        return None

    def _in_calls(self, rank: int) -> bool:
        """Its threads were seen in collectives since it moved."""
        return self._marks.time(rank, "waits") > self._marks.moved(rank)

    def _waits_to_send(self, sender: int, calls: Sequence[Collective]) -> bool:
        """It waits for one of these messages, which may not be the one that it started last."""
        waits = any(not call.asynchronous or (sender, call.n) in self._awaited for call in calls)
        last = self._last.get(sender)
        return waits and last is not None and (last.op, last.peer) == ("send", calls[-1].peer)

    # ---- stillness

    def _locked(self) -> bool:
        """A rank waits for a lock that nothing is left to release, and the others for it: none of them moves."""
        living = self._living()
        locked = [rank for rank in living if self._marks.time(rank, "locked") > self._marks.moved(rank)]
        waiting = [rank for rank in living if self._in_calls(rank)]
        moved = [self._marks.moved(rank) for rank in living]
        if locked and set(living) <= {*locked, *waiting}:
            return self._still(living, moved)
        return bool(locked) and all(self._age(since) > _STILL_LOCKED for since in moved)

    def _waits_for_a_fork(self) -> bool:
        """A process that a rank has forked tries to communicate, and no rank moves any more."""
        living = self._living()
        return self._orphaned and self._quiet(living)

    def _waits_for_threads(self) -> bool:
        """All threads of all ranks wait in collectives, not only the main ones, which the traces show."""
        living = self._living()
        waiting = [rank for rank in living if self._in_calls(rank)]
        return (
            waiting == living
            and any(self._marks.text(rank, "waits") == "threads" for rank in living)
            and self._quiet(living)
        )

    def _incomplete(self) -> bool:
        """Every rank waits for a group that requires more ranks than there are."""
        return bool(self._tails) and all(self._marks.has(rank, "incomplete") for rank in self._tails)

    def _living(self) -> list[int]:
        return [rank for rank in self._tails if not self._ended(rank)]

    def _ended(self, rank: int) -> bool:
        return self._marks.has(rank, "over") or self._marks.has(rank, "exit")

    def _left(self, rank: int) -> bool:
        """It has destroyed its groups and made none since. Under NCCL that waits for the peers, and burns CPU time
        as if it computed."""
        return self._marks.time(rank, "left") > self._marks.time(rank, "joined")

    def _hangs(self, mismatch: Mismatch) -> bool:
        """No rank that lives has moved for a while, and at least one waits in what has diverged."""
        living = self._living()
        waiting = [rank for rank, call in mismatch.calls.items() if call is not None and rank in living]
        if not waiting:
            return False
        exact = mismatch.direct or not mismatch.kind.breaks_the_order
        own_groups = mismatch.kind is Kind.MEMBERS  # a call in such a group hangs, or the creation of the next
        inside = [rank for rank in waiting if self._last[rank] is mismatch.calls[rank]]
        if exact and not own_groups and not all(rank in inside or self._waits_for(rank, inside) for rank in waiting):
            return False  # the rank went on
        if own_groups or any(call is not None and call.op == "send" for call in mismatch.calls.values()):
            return self._quiet(living)
        moved = [self._marks.time(rank, "beat") for rank in living]
        return self._still(living, moved) if all(map(self._in_calls, living)) else self._still([], moved)

    def _still(self, ranks: Sequence[int], moved: Sequence[float]) -> bool:
        """They have not moved for long enough (`moved`: when each did last), or for less, and these were asleep since
        (none: it is not known that they only wait)."""
        now = time.monotonic()
        asleep = [self._stillness.look(rank, now) > _STILL_ASLEEP for rank in ranks]
        patience = _STILL_ASLEEP if asleep and all(asleep) else _STILL
        return all(self._age(since) > patience for since in moved)

    def _waits_for(self, rank: int, others: Sequence[int]) -> bool:
        """It is in a later call, to which none of the others has come."""
        queues = (waiting for waiting in self._waiting.values() if self._last[rank] in waiting.get(rank, ()))
        return bool(others) and any(all(other in queue and not queue[other] for other in others) for queue in queues)

    def _quiet(self, ranks: Sequence[int]) -> bool:
        return all(self._age(self._marks.moved(rank)) > _STILL_SENDING for rank in ranks)

    def _age(self, since: float) -> float:
        return self._late.age(since, time.time())


def _goes_on(mismatch: Mismatch, kind: Kind) -> bool:
    """Calls have met after those that could not meet, and did so by another fault that leaves no way on."""
    return kind.breaks_the_order and not mismatch.kind.breaks_the_order


class _Tail:
    """The collectives in a trace that grows, and the waits for messages."""

    def __init__(self, path: pathlib.Path) -> None:
        self._path = path
        self._file: io.BufferedReader | None = None
        self._rest = b""

    def read(self) -> Iterator[Collective | Awaited | Orphaned]:
        """What was written since the last time."""
        if self._file is None:
            if not self._path.exists():
                return
            self._file = self._path.open("rb")
        *lines, self._rest = (self._rest + self._file.read()).split(b"\n")
        for line in lines:
            if line.startswith(_KINDS):
                event = decode(line.decode("utf-8", errors="replace"))
                if isinstance(event, Collective | Awaited | Orphaned):
                    yield event

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
