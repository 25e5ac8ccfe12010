"""The ranks' streams of collectives, aligned: where they diverge, and whether this finding is the cause."""

from __future__ import annotations

from ddp_lint.divergence.mismatches import Kind
from ddp_lint.rules.registry import all_rules
from ddp_lint.verify.match import Mismatch, Streams, describe, exchanged, place
from ddp_lint.verify.oracles import Case, Opinion
from ddp_lint.verify.trace import Collective, Frame


def testify(case: Case) -> Opinion:
    if case.went_round_together:
        return Opinion(doubt=case.went_round_together)
    for mismatch in case.examined.mismatches:
        rank, frame = _cause(case, mismatch)
        if frame is not None:
            text = f"{mismatch}; the run completed nevertheless" if case.examined.completed else str(mismatch)
            return Opinion((case.evidence("sequence", text, rank=rank, frame=frame),))
    if case.examined.mismatches and case.ran_unequally and not case.run.stimuli:
        first = case.examined.mismatches[0]
        times = ", ".join(f"{count} times on rank {rank}" for rank, count in case.counts.items())
        text = f"the line ran {times}, and then the ranks diverge: {first}"
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
    found = exchanged(streams, case.situation.named)
    if found is None or case.situation.finding.witness == ():
        return None
    one, other = found.one.collective, found.other.collective
    text = f"rank {found.one.rank}'s {_purpose(one, other)} met rank {found.other.rank}'s {_purpose(other, one)}"
    if found.crossed or not case.examined.completed:
        return Opinion((case.evidence("sequence", text, rank=found.one.rank, frame=one.site),))
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
