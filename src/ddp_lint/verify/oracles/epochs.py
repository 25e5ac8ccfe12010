"""The order of samples from epoch to epoch: a sampler without `set_epoch` gives the same one each time."""

from __future__ import annotations

from ddp_lint.verify.oracles import Case, Opinion
from ddp_lint.verify.sampling import describe_order, epochs, same_order


def testify(case: Case) -> Opinion:
    for trace in case.traces:
        events = same_order(trace)
        if events:
            return Opinion((case.evidence("epochs", describe_order(events), rank=trace.rank, frame=events[0].site),))
    most = max((len(events) for trace in case.traces for events in epochs(trace).values()), default=0)
    if most < 2:
        return Opinion(blind="fewer than two epochs were seen: there is no order to compare")
    return Opinion(silent=f"the order changed over {most} epochs")
