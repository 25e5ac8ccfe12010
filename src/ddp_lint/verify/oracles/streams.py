"""Work on CUDA streams that nothing orders: accesses to one memory, or a value read before all streams had finished.

Where the order of streams was watched, silence refutes: it is judged from events and waits, not from timing.
"""

from __future__ import annotations

import math

from ddp_lint.verify.oracles import Case, Opinion, real, shown
from ddp_lint.verify.results import Evidence
from ddp_lint.verify.trace import Ordered, Sync, Unordered


def testify(case: Case) -> Opinion:
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
    found = [(trace.rank, event) for trace in case.traces for event in trace.of(Unordered)]
    found.sort(key=lambda one: not _here(case, one[1]))
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
    for trace in case.traces:
        for read in trace.of(Sync):
            if read.value is not None and read.again is not None and _differ(read.value, read.again):
                text = f"{read.cause} read {read.value:g}, and {read.again:g} when all streams had finished"
                linked = case.hit(read) is not None
                return case.evidence("streams", text, rank=trace.rank, frame=read.site, linked=linked)
    return None


def _differ(a: float, b: float) -> bool:
    return not math.isclose(a, b, rel_tol=1e-6) and not (math.isnan(a) and math.isnan(b))
