"""Trainable parameters without a gradient at `step()`, although a single process has one for them."""

from __future__ import annotations

from ddp_lint.verify.compare import spoken
from ddp_lint.verify.oracles import Case, Opinion
from ddp_lint.verify.trace import Hashes, NoGrad


def testify(case: Case) -> Opinion:
    for trace in case.traces:
        for event in trace.of(NoGrad):
            names = [name for name in event.names if name not in event.reference]
            if names:
                text = f"at optimizer step {event.step + 1} these train and have no gradient: {spoken(names)}"
                linked = case.hit(event) is not None or case.speaks_of(names)
                return Opinion((case.evidence("nograd", text, rank=trace.rank, linked=linked),))
    if not any(event.when == "before_step" for trace in case.traces for event in trace.of(Hashes)):
        return Opinion(blind="no optimizer step was seen")
    return Opinion(silent="every trainable parameter had a gradient at each step")
