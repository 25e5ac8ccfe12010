"""Numbers that are no longer numbers: a NaN or an infinity on one rank reaches all of them with the next all-reduce."""

from __future__ import annotations

import math

from ddp_lint.verify.compare import not_finite, spoken
from ddp_lint.verify.oracles import Case, Opinion
from ddp_lint.verify.trace import Hashes, Sync


def testify(case: Case) -> Opinion:
    if "nan" in case.run.stimuli:
        return Opinion(blind="a NaN was injected in this pass")
    if not case.ran:
        return Opinion(silent="the line did not run")
    for rank, event, names in not_finite(case.traces):
        text = f"{event.what} of {spoken(names)} are not finite at step {event.step + 1}"
        return Opinion((case.evidence("finite", text, rank=rank, linked=False),))
    for rank, read, frame in case.hits(Sync):
        if read.value is not None and not math.isfinite(read.value):
            return Opinion((case.evidence("finite", f"{read.cause} read {read.value} here", rank=rank, frame=frame),))
    looked = any(event.norms for trace in case.traces for event in trace.of(Hashes))
    if not looked:
        return Opinion(blind="no gradients or parameters were checked")
    return Opinion(silent="all gradients and parameters stayed finite")
