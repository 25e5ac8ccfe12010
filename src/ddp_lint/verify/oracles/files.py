"""Files and folders that several ranks use: where no collective orders the ranks, chance decides which is first.

That the ranks happened to be in a good order proves nothing, so that only what orders them, or paths of their own, is
evidence against the hazard. To make a folder, or remove a file, that another rank has made or removed harms where it
raises an exception, which another oracle sees; where both did so and neither failed, the calls allow for it.
"""

from __future__ import annotations

from collections.abc import Iterator

from ddp_lint.divergence.file_race import LOOKS
from ddp_lint.verify.oracles import Case, Opinion, shown
from ddp_lint.verify.trace import Collective, FileAccess, Trace

#: Collectives in which the other ranks wait for the root alone, and in which the root alone waits for the others.
_FROM_ROOT, _TO_ROOT = frozenset({"broadcast", "scatter"}), frozenset({"reduce", "gather"})
_PAIRS = frozenset({"send", "recv", "isend", "irecv"})


def testify(case: Case) -> Opinion:
    here = list(case.hits(FileAccess))
    if not here:
        return Opinion(doubt="no use of a file was seen at this line: that nothing failed proves nothing")
    traces = {trace.rank: trace for trace in case.traces}
    ordered = False
    for rank, event, frame in here:
        for other, access in _of_others(case, rank, event):
            if _is_ordered(traces[rank], event, traces[other], access):
                ordered = True
                continue
            text = f"{_together(rank, event, other, access)}, and no collective stands between the two: which of them "
            return Opinion((case.evidence("files", f"{text}is first is chance", rank=rank, frame=frame),))
    if ordered:
        return Opinion(silent="a collective stands between the uses of the file on different ranks")
    users = sorted({rank for rank, _, _ in here})
    if len(users) > 1:
        return Opinion(silent="the ranks use paths of their own here, or make or remove one that another one may, too")
    if _looks_first(case):
        return Opinion(doubt=f"rank {users[0]} alone came here this time: the others found the file as they looked")
    return Opinion(silent=f"rank {users[0]} alone uses the file")


def _together(rank: int, event: FileAccess, other: int, access: FileAccess) -> str:
    if event.what == access.what:
        return f"ranks {min(rank, other)} and {max(rank, other)} both {event.what} {shown(event.path)}"
    return f"rank {rank} {event.what}s {shown(event.path)}, which rank {other} {access.what}s"


def _of_others(case: Case, rank: int, event: FileAccess) -> Iterator[tuple[int, FileAccess]]:
    """The uses of the same path by other ranks that harm if they come in another order."""
    for trace in case.traces:
        for access in trace.of(FileAccess) if trace.rank != rank else ():
            if access.path == event.path and (access.what != event.what or event.what == "write"):
                yield trace.rank, access


def _is_ordered(one: Trace, first: FileAccess, other: Trace, second: FileAccess) -> bool:
    """One rank, before its use, waited in a collective that the other one had called after its own."""
    return _waited(one, first, other, second) or _waited(other, second, one, first)


def _waited(later: Trace, use: FileAccess, earlier: Trace, before: FileAccess) -> bool:
    passed = {(call.group, call.seq) for call in earlier.of(Collective) if call.n < before.n}
    return any(
        call.n < use.n and (call.group, call.seq) not in passed and _waits_for(call, later.rank, earlier.rank)
        for call in later.of(Collective)
    )


def _waits_for(call: Collective, rank: int, other: int) -> bool:
    """Whether a rank does not return from a collective before another one has called it."""
    if call.op in _PAIRS or (call.ranks and other not in call.ranks):
        return False
    if call.op in _FROM_ROOT:
        return call.root == other
    return call.op not in _TO_ROOT or call.root == rank


def _looks_first(case: Case) -> bool:
    """A condition before the line looks whether a file is there."""
    return any(guard.wanted is not None and LOOKS.search(guard.text) for guard in case.situation.guards)
