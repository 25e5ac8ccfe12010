"""Samplers that divide the data among ranks which should all see the same: the ranks of one model-parallel group."""

from __future__ import annotations

from ddp_lint.verify.oracles import Case, Opinion
from ddp_lint.verify.trace import Samples


def testify(case: Case) -> Opinion:
    firsts = [event for trace in case.traces if (event := next(trace.of(Samples), None))]
    if len(firsts) < 2:
        return Opinion(blind="no sampler was iterated by two ranks in this run")
    if len({event.members for event in firsts}) > 1:
        counts = " and ".join(str(event.count) for event in firsts)
        text = f"{firsts[0].sampler} divides {firsts[0].dataset} samples among all ranks ({counts})"
        return Opinion((case.evidence("divided", text, frame=firsts[0].site, linked=True),))
    return Opinion(silent="the ranks of one group see the same samples")
