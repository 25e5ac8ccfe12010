"""A rank that no longer moves: where it is, and what it waits for."""

from __future__ import annotations

from ddp_lint.verify.match import describe
from ddp_lint.verify.oracles import Case, Opinion
from ddp_lint.verify.trace import Collective, Done, Stall, Trace


def testify(case: Case) -> Opinion:
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
                return Opinion((case.evidence("stall", text, rank=trace.rank, frame=frame),))
    if case.ran_unequally and not case.run.stimuli:
        times = ", ".join(f"{count} times on rank {rank}" for rank, count in case.counts.items())
        text = f"the line ran {times}, and rank {stalls[0][0].rank} waits for its peers"
        return Opinion((case.evidence("stall", text, linked=False),))
    return Opinion(blind="a rank was stuck elsewhere")


def _pending(trace: Trace, stall: Stall) -> list[Collective]:
    """What the rank waits in: the call that has not returned, which shows more than the works of those that have."""
    returned = {event.of for event in trace.of(Done)}
    calls = list(trace.of(Collective))
    inside = [call for call in calls[-1:] if call.n not in returned and call.n < stall.n]
    return inside or [call for call in calls if call.n in stall.pending]
