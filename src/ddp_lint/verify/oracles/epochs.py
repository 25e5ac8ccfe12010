"""The order of samples from epoch to epoch: a sampler that is never told the epoch gives the same one each time."""

from __future__ import annotations

import collections

from ddp_lint.verify.oracles import Case, Opinion
from ddp_lint.verify.trace import Samples


def testify(case: Case) -> Opinion:
    most = 0
    for trace in case.traces:
        epochs: dict[str, list[Samples]] = collections.defaultdict(list)
        for event in trace.of(Samples):
            epochs[event.sampler].append(event)
        for sampler, events in epochs.items():
            most = max(most, len(events))
            if len(events) > 1 and len({event.digest for event in events}) == 1 and not _in_order(events[0]):
                text = f"{sampler} gave the same order in all {len(events)} epochs: {list(events[0].first[:8])} ..."
                return Opinion((case.evidence("epochs", text, rank=trace.rank, frame=events[0].site),))
    if most < 2:
        return Opinion(blind="fewer than two epochs were seen: there is no order to compare")
    return Opinion(silent=f"the order changed over {most} epochs")


def _in_order(event: Samples) -> bool:
    """An unshuffled epoch is the same each time by intention."""
    return list(event.first) == sorted(event.first)
