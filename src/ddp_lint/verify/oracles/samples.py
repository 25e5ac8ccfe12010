"""The indices that samplers gave, over epochs and ranks."""

from __future__ import annotations

import collections
from collections.abc import Iterator, Mapping, Sequence

from ddp_lint.verify.oracles import Case, Opinion
from ddp_lint.verify.results import Evidence
from ddp_lint.verify.trace import Samples


def testify(case: Case) -> Opinion:
    epochs: dict[str, dict[int, list[Samples]]] = collections.defaultdict(lambda: collections.defaultdict(list))
    for trace in case.traces:
        for event in trace.of(Samples):
            epochs[event.sampler][trace.rank].append(event)
    if not epochs:
        return Opinion(blind="no sampler was iterated in this run")
    fired = [found for sampler, ranks in epochs.items() for found in _wrong(case, sampler, ranks)]
    if fired:
        return Opinion(tuple(fired))
    most = max(len(events) for ranks in epochs.values() for events in ranks.values())
    if most < 2:
        return Opinion(blind="one epoch only was seen: nothing to compare its order with")
    return Opinion(silent=f"over {most} epochs the order changed, and the ranks saw different samples")


def _wrong(case: Case, sampler: str, ranks: Mapping[int, Sequence[Samples]]) -> Iterator[Evidence]:
    for rank, events in ranks.items():
        if len(events) > 1 and len({event.digest for event in events}) == 1 and not _in_order(events[0]):
            text = f"{sampler} gave the same order in all {len(events)} epochs: {list(events[0].first[:8])} ..."
            yield case.evidence("samples", text, rank=rank, frame=events[0].site)
            break
    firsts = [events[0] for events in ranks.values() if events]
    if len(firsts) > 1 and len({event.members for event in firsts}) == 1 and firsts[0].count:
        text = f"{sampler} gave all ranks the same {firsts[0].count} samples of {firsts[0].dataset}"
        yield case.evidence("samples", text, frame=firsts[0].site)


def _in_order(event: Samples) -> bool:
    """An unshuffled epoch is the same each time by intention."""
    return list(event.first) == sorted(event.first)
