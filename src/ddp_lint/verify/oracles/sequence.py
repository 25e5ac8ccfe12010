"""The ranks' streams of collectives, aligned: where they part, and whether this finding is the cause."""

from __future__ import annotations

from ddp_lint.verify.match import Mismatch, Streams, describe, place, swapped
from ddp_lint.verify.oracles import Case, Opinion
from ddp_lint.verify.trace import Collective, Frame


def testify(case: Case) -> Opinion:
    for mismatch in case.examined.mismatches:
        rank, frame = _cause(case, mismatch)
        if frame is not None:
            return Opinion((case.evidence("sequence", str(mismatch), rank=rank, frame=frame),))
    if case.examined.mismatches and case.ran_unequally and not case.run.stimuli:
        first = case.examined.mismatches[0]
        times = ", ".join(f"{count} times on rank {rank}" for rank, count in case.counts.items())
        text = f"the line ran {times}, and then the ranks part: {first}"
        return Opinion((case.evidence("sequence", text, linked=False),))
    streams = {trace.rank: tuple(trace.of(Collective)) for trace in case.traces}
    return _exchanged(case, streams) or _aligned(case, streams)


def _cause(case: Case, mismatch: Mismatch) -> tuple[int | None, Frame | None]:
    """What ties a mismatch to the finding: a call that only some ranks made, or one that met another."""
    calls = [(rank, call) for rank, call in mismatch.calls.items() if call is not None]
    for look in (case.hit, case.named):
        for rank, call in [*mismatch.culprits, *calls]:
            frame = look(call)
            if frame is not None:
                return rank, frame
    return None, None


def _exchanged(case: Case, streams: Streams) -> Opinion | None:
    """Calls of equal shape that met although the finding says they belong to different steps."""
    found = swapped(streams, case.situation.named)
    if found is None or case.situation.finding.witness == ():
        return None
    (rank, one), (peer, other) = found
    text = f"rank {rank}'s {describe(one)} of line {place(one)[1]} met rank {peer}'s of line {place(other)[1]}"
    return Opinion((case.evidence("sequence", text, rank=rank, frame=one.site),))


def _aligned(case: Case, streams: Streams) -> Opinion:
    counts = {len(calls) for calls in streams.values()}
    if case.examined.mismatches:
        return Opinion(blind=f"the ranks part elsewhere first ({case.examined.mismatches[0]})")
    number = f"{counts.pop()}" if len(counts) == 1 else f"{min(counts)} to {max(counts)}"
    return Opinion(silent=f"the {number} collectives of each rank line up in every group")
