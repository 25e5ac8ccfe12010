"""What orders the ranks: collectives, waits, files, CUDA streams."""

from __future__ import annotations

from collections.abc import Iterator

from ddp_lint.divergence.mismatches import Kind
from ddp_lint.launch.file_access import LOOKS
from ddp_lint.rules.registry import all_rules
from ddp_lint.verify.compare import differ
from ddp_lint.verify.match import Mismatch, Streams, describe, exchanged, place, present
from ddp_lint.verify.oracles.case import Case, Opinion, real, shown
from ddp_lint.verify.results import Evidence
from ddp_lint.verify.trace import (
    Collective,
    Done,
    FileAccess,
    Frame,
    Ordered,
    Resummed,
    Stall,
    Sync,
    Trace,
    Unordered,
)

#: Collectives in which the other ranks wait for the root alone, and in which the root alone waits for the others.
_FROM_ROOT, _TO_ROOT = frozenset({"broadcast", "scatter"}), frozenset({"reduce", "gather"})
_PAIRS = frozenset({"send", "recv", "isend", "irecv"})


def sequence(case: Case) -> Opinion:
    """The ranks' streams of collectives, aligned: where they diverge, and whether this finding is the cause."""
    if case.went_round_together:
        return Opinion(doubt=case.went_round_together)
    for mismatch in case.examined.mismatches:
        rank, frame = _cause(case, mismatch)
        if frame is not None:
            text = f"{mismatch}; the run completed nevertheless" if case.examined.completed else str(mismatch)
            return case.fires("sequence", text, rank=rank, frame=frame)
    if case.examined.mismatches and case.ran_unequally and not case.run.stimuli:
        first = case.examined.mismatches[0]
        text = f"the line ran {_times(case)}, and then the ranks diverge: {first}"
        return case.fires("sequence", text, linked=False)
    streams = case.examined.streams
    return _exchanged(case, streams) or _aligned(case, streams)


def _times(case: Case) -> str:
    return ", ".join(f"{count} times on rank {rank}" for rank, count in case.counts.items())


def _cause(case: Case, mismatch: Mismatch) -> tuple[int | None, Frame | None]:
    """What ties a mismatch to the finding: a call that only some ranks made, or one that met another."""
    calls = present(mismatch.calls)
    for look in (case.hit, case.named):
        for rank, call in [*mismatch.culprits, *calls]:
            frame = look(call)
            if frame is not None:
                return rank, frame
    return None, None


def _exchanged(case: Case, streams: Streams) -> Opinion | None:
    """Calls of equal shape that met although the finding says they belong to different steps."""
    found = exchanged(streams, case.situation.named)
    if found is None or case.situation.finding.witness == ():
        return None
    one, other = found.one.collective, found.other.collective
    text = f"rank {found.one.rank}'s {_purpose(one, other)} met rank {found.other.rank}'s {_purpose(other, one)}"
    if found.crossed or not case.examined.completed:
        return case.fires("sequence", text, rank=found.one.rank, frame=one.site)
    # The run completed: what met happened to fit.
    return Opinion(doubt=f"{text}: these are not the same call, but no damage was seen")


def _purpose(call: Collective, other: Collective) -> str:
    """A description of a call, with its difference to the other one."""
    label = f" ({call.label})" if call.label and call.label != other.label else ""
    return f"{describe(call)} of line {place(call)[1]}{label}"


def _order_by_chance(case: Case) -> bool:
    """The finding is about the order in which a loop walks, which is another one in each process and each run."""
    rule = all_rules().get(case.situation.finding.code)
    in_loop = any(guard.wanted is None for guard in case.situation.guards)
    return getattr(rule, "kind", None) is Kind.ORDER and in_loop


def _aligned(case: Case, streams: Streams) -> Opinion:
    counts = {len(calls) for calls in streams.values()}
    if case.examined.mismatches:
        return Opinion(blind=f"the ranks diverge elsewhere first ({case.examined.mismatches[0]})")
    if _order_by_chance(case):
        return Opinion(doubt="the ranks iterated in the same order in this run; another run may differ")
    number = f"{counts.pop()}" if len(counts) == 1 else f"{min(counts)} to {max(counts)}"
    return Opinion(silent=f"the {number} collectives of each rank line up in every group")


def stall(case: Case) -> Opinion:
    """A rank that no longer moves: where it is, and what it waits for."""
    if case.went_round_together:
        return Opinion(doubt=case.went_round_together)
    stalls = [(trace, event) for trace in case.traces for event in trace.of(Stall) if event.stuck]
    if not stalls:
        return Opinion(silent="no rank was stuck")
    for trace, event in stalls:
        pending = _pending(trace, event)
        waited_for = f" in {describe(pending[0])}" if pending else ""
        for waiting in (event, *pending[:1]):
            frame = case.hit(waiting) or case.named(waiting)
            if frame is not None:
                text = f"rank {trace.rank} waits at line {frame.line}{waited_for} since {event.seconds:.0f} s"
                return case.fires("stall", text, rank=trace.rank, frame=frame)
    if case.ran_unequally and not case.run.stimuli:
        text = f"the line ran {_times(case)}, and rank {stalls[0][0].rank} waits for its peers"
        return case.fires("stall", text, linked=False)
    return Opinion(blind="a rank was stuck elsewhere")


def _pending(trace: Trace, stall: Stall) -> list[Collective]:
    """What the rank waits in: the call that has not returned, which shows more than the works of those that have; of
    these the one of the line at which the rank is, as an older one may have ended without a wait. The latest functional
    one has no work of which its end would be known."""
    returned = {event.of for event in trace.of(Done)}
    calls = list(trace.of(Collective))
    inside = [call for call in calls[-1:] if call.n not in returned and call.n < stall.n]
    works = [call for call in calls if call.n in stall.pending or (call is calls[-1] and call.functional)]
    return inside or [call for call in works if call.site == stall.site] or works


def files(case: Case) -> Opinion:
    """Files and folders that several ranks use: where no collective orders the ranks, chance decides which is first.

    That the ranks happened to be in a good order proves nothing, so that only what orders them, or paths of their own,
    is evidence against the hazard. To make a folder, or remove a file, that another rank has made or removed harms
    where it raises an exception, which another oracle sees; where both did so and neither failed, the calls allow for
    it.
    """
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
            return case.fires("files", f"{text}is first is chance", rank=rank, frame=frame)
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


def lost(case: Case) -> Opinion:
    """Collectives whose result nothing keeps: one tensor is filled for several ranks, or a new one that is dropped."""
    fired = tuple(_lost(case))
    if fired:
        return Opinion(fired)
    calls = [event for _, event, _ in case.hits(Collective)]
    if not calls:
        return Opinion(blind="no collective ran here")
    if not any(event.outputs for event in calls):
        return Opinion(blind="whether the program takes what this call returns cannot be seen")
    return Opinion(silent="the tensors that the collective fills here are all different")


def _lost(case: Case) -> Iterator[Evidence]:
    for rank, event, frame in case.hits(Collective):
        if event.overlapping:
            text = f"{event.api or event.op} puts what comes from {len(event.outputs)} ranks into one tensor"
            yield case.evidence("lost", text, rank=rank, frame=frame)
        elif event.functional:
            text = f"{event.api or event.op} leaves its argument as it is, and the line drops what it returns"
            yield case.evidence("lost", text, rank=rank, frame=frame)


def resummed(case: Case) -> Opinion:
    """Tensors that an all_reduce sums over the ranks although they hold what an earlier one has summed."""
    for rank, _, frame in case.hits(Resummed):
        text = f"rank {rank} sums over the ranks a tensor that holds what an earlier call has summed over them"
        return case.fires("resummed", text, rank=rank, frame=frame)
    calls = [(rank, event) for rank, event, _ in case.hits(Collective)]
    if not calls:
        return Opinion(blind="no collective ran here")
    if len(calls) > len(case.traces):
        return Opinion(doubt="what the tensors hold was not seen to be a sum over the ranks; numbers are not followed")
    return Opinion(silent="the collective ran once on each rank")


def streams(case: Case) -> Opinion:
    """Work on CUDA streams that nothing orders: accesses to one memory, or a value read before all streams had
    finished.

    Where the order of streams was watched, silence refutes: it is judged from events and waits, not from timing.
    """
    fired = (_unordered(case) or _too_early(case)) if case.ran else None
    if fired is not None:
        return Opinion((fired,))
    watched = [trace.last(Ordered) for trace in case.traces]
    if not all(watched):
        return Opinion(
            blind="the order of the streams was not recorded: this needs CUDA and a torch that reports its events"
        )
    streams = max(end.streams for end in watched if end)
    return Opinion(
        silent=f"on {streams} streams every access to memory came after the one before it, by events and waits"
    )


def _unordered(case: Case) -> Evidence | None:
    """A pair of accesses, one in the finding's function if there is such a pair."""
    found = sorted(case.events(Unordered), key=lambda one: not _here(case, one[1]))
    for rank, event in found:
        return case.evidence("streams", _in_words(event), rank=rank, frame=event.site, linked=_here(case, event))
    return None


def _here(case: Case, event: Unordered) -> bool:
    at = case.situation
    frames = (*event.frames, *event.earlier)
    return any(
        real(frame.path) == at.path and (frame.line in at.lines or (at.function and frame.function == at.function))
        for frame in frames
    )


def _in_words(event: Unordered) -> str:
    first, second = event.streams
    place = f" ({shown(event.earlier[0].path)}:{event.earlier[0].line})" if event.earlier else ""
    verb = "writes" if event.writes else "reads"
    if event.freed:
        return (
            f"{event.op} on {second} {verb} memory that was freed while {event.earlier_op} on {first}{place} "
            "may still use it"
        )
    return f"{event.op} on {second} {verb} what {event.earlier_op} on {first}{place} uses, and the two are not ordered"


def _too_early(case: Case) -> Evidence | None:
    for rank, read in case.events(Sync):
        if read.value is not None and read.again is not None and differ(read.value, read.again):
            text = f"{read.cause} read {read.value:g}, and {read.again:g} when all streams had finished"
            linked = case.hit(read) is not None
            return case.evidence("streams", text, rank=rank, frame=read.site, linked=linked)
    return None
