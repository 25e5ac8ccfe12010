"""The samples that each rank drew: ranks that draw the same ones train on one share of the data, several times."""

from __future__ import annotations

from ddp_lint.verify.oracles import Case, Opinion
from ddp_lint.verify.sampling import unlike_data
from ddp_lint.verify.trace import Samples


def testify(case: Case) -> Opinion:
    firsts = [event for trace in case.traces if (event := next(trace.of(Samples), None))]
    if len(firsts) < 2:
        return Opinion(blind="no sampler was iterated by two ranks in this run")
    if any(unlike_data(firsts[0], other) for other in firsts[1:]):
        return Opinion(silent="the ranks drew different samples: each has data of its own")
    if len({event.members for event in firsts}) == 1 and firsts[0].count:
        of = f" of {firsts[0].dataset}" if firsts[0].dataset else ""
        text = f"{firsts[0].sampler} gave all ranks the same {firsts[0].count} samples{of}"
        return Opinion((case.evidence("samples", text, frame=firsts[0].site),))
    return Opinion(silent="the ranks drew different samples")
