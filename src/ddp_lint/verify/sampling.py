"""What the ranks' loaders gave them: the same samples on all ranks, the same order in all epochs."""

from __future__ import annotations

import collections
import dataclasses
import itertools
import operator
from collections.abc import Iterator, Sequence

from ddp_lint.verify.trace import BY_HAND, Collective, Hashes, Samples, Trace

#: Operations by which DDP and FSDP average gradients.
_AVERAGES = frozenset({"all_reduce", "reduce_scatter", "reduce_scatter_tensor"})
#: Operations by which ranks exchange what a forward computes: they work on one batch together.
_EXCHANGES = frozenset({"all_gather", "all_gather_into_tensor", "all_to_all", "all_to_all_single", "send", "recv"})
_LEAST_BATCHES = 2
#: Parts of the data that have at least this share of their samples in common overlap; a few are repeated to fill up.
_OVERLAP = 0.125
#: Ranks that together draw as many samples as there are, but for this share, divide them.
_DIVIDED = 0.1


def same_order(trace: Trace) -> Sequence[Samples]:
    """The epochs of the first sampler that gave one order in all of them, which is not that of the data."""
    for events in epochs_of(trace).values():
        if len(events) > 1 and len({event.digest for event in events}) == 1 and not _in_order(events[0]):
            return events
    return ()


def describe_order(events: Sequence[Samples]) -> str:
    """What `same_order` and `epoch_not_set` have found, in words."""
    return f"{events[0].sampler} gave the same order in all {len(events)} epochs: {list(events[0].first[:8])} ..."


def epochs_of(trace: Trace) -> dict[str, list[Samples]]:
    """The epochs that a rank has seen, by sampler."""
    found: dict[str, list[Samples]] = collections.defaultdict(list)
    for event in trace.of(Samples):
        found[event.sampler].append(event)
    return found


def _in_order(event: Samples) -> bool:
    """An unshuffled epoch is the same each time by intention."""
    return list(event.first) == sorted(event.first)


def epoch_not_set(traces: Sequence[Trace]) -> Sequence[Samples]:
    """The epochs of a training in the same order, as `set_epoch` of its sampler was never called."""
    for trace in traces:
        events = same_order(trace)
        if events and events[0].takes_epoch and all(event.steps for event in events):
            return events
    return ()


def copies(traces: Sequence[Trace]) -> tuple[Samples, tuple[int, ...]] | None:
    """The first epoch of a training whose batches are the same on all ranks that average their gradients, and those
    ranks. None where ranks work on one batch together, or where the batches of a rank are all alike (made-up data)."""
    for ranks in dict.fromkeys(group for trace in traces for group in _averaging(trace)):
        trained = [next((e for e in t.of(Samples) if e.steps), None) for t in traces if t.rank in ranks]
        events = [event for event in trained if event is not None]
        if len(events) < len(ranks) or any(_works_together(trace) for trace in traces):
            continue
        seen = min(len(event.batches) for event in events)
        varied = len(set(events[0].batches[:seen])) >= _LEAST_BATCHES
        if varied and len({event.batches[:seen] for event in events}) == 1:
            return events[0], ranks
    return None


def unlike_parts(traces: Sequence[Trace]) -> Samples | None:
    """The first epoch in which a DistributedSampler divides another part of the data on each rank."""
    divided: list[list[Samples]] = [[event for event in trace.of(Samples) if event.divided] for trace in traces]
    alike = (len({e.divided for e in events}) == 1 for events in zip(*divided, strict=False))
    return next((event for event, same in zip(divided[0], alike, strict=False) if not same), None)


def unlike_data(one: Samples, other: Samples) -> bool:
    """Equal indices are different samples on two ranks: no part of them is equal (what augments leaves
    the labels), but for parts that are the same in all samples. Of a part that distinguishes all samples one that is
    equal is enough: others may be padded to another length."""
    there = dict(zip(other.first, other.rows, strict=False))
    pairs = [
        (row.split(), there[number].split())
        for number, row in zip(one.first, one.rows, strict=False)
        if number in there
    ]
    parts = [list(zip(*column, strict=True)) for column in _columns(pairs)]
    alike = [_same_part(here, elsewhere) for here, elsewhere in parts if len(set(here)) > 1]
    return bool(alike) and not any(alike)


def _same_part(one: Sequence[str], other: Sequence[str]) -> bool:
    return one == other or (len(set(one)) == len(one) and any(map(operator.eq, one, other)))


def _columns(pairs: Sequence[tuple[list[str], list[str]]]) -> Iterator[list[tuple[str, str]]]:
    """Part by part what two ranks got for the same numbers."""
    rows = [list(zip(one, other, strict=True)) for one, other in pairs if len(one) == len(other)]
    yield from map(list, zip(*rows, strict=False))


@dataclasses.dataclass(frozen=True)
class Overlap:
    """So many of some samples of `event`, which one rank trained on, are among those of another one."""

    event: Samples
    ranks: tuple[int, int]
    shared: int
    among: int


def overlap(traces: Sequence[Trace]) -> Overlap | None:
    """Two ranks that average their gradients train on parts of the data that overlap."""
    for ranks in dict.fromkeys(group for trace in traces for group in _averaging(trace)):
        trained = {trace.rank: [event for event in trace.of(Samples) if event.steps] for trace in traces}
        held = {rank: trained[rank] for rank in ranks if trained.get(rank)}
        divide = len(held) == len(ranks) and _divide([events[0] for events in held.values()])
        pairs = () if any(map(_works_together, traces)) else itertools.combinations(held, 2)
        for rank, other in pairs:
            one, another = held[rank], held[other]
            met = _drawn_by_both(one[0], another[0]) if divide else _made_by_both(one, another)
            if met is not None and met[0] > max(2, _OVERLAP * met[1]):
                return Overlap(one[0], (rank, other), *met)
    return None


def _divide(epochs: Sequence[Samples]) -> bool:
    """The samplers of all ranks drew from data of one size, each about its share of it and nothing twice."""
    sizes = {epoch.dataset for epoch in epochs}
    size = epochs[0].dataset or 0
    whole = abs(sum(epoch.count for epoch in epochs) - size) <= max(_DIVIDED * size, len(epochs))
    return len(sizes) == 1 and whole and all(epoch.sample for epoch in epochs)


def _drawn_by_both(one: Samples, other: Samples) -> tuple[int, int] | None:
    """How many numbers both drew, of so many that both would show."""
    if unlike_data(one, other):
        return None
    mine, theirs = set(one.sample), set(other.sample)
    shown = min(len(mine), len(theirs))
    return len(mine & theirs), shown


def _made_by_both(one: Sequence[Samples], other: Sequence[Samples]) -> tuple[int, int] | None:
    """How many samples are in both parts of the data that ranks have each made by themselves.

    Only what a dataset gives for a number again and again counts: of what is drawn at random some may be alike.
    """
    mine, theirs = ([event for event in events if event.rows] for events in (one, other))
    if not (mine and theirs and _fixed(mine) and _fixed(theirs) and unlike_data(mine[0], theirs[0])):
        return None
    return len(set(mine[0].rows) & set(theirs[0].rows)), len(mine[0].rows)


def _fixed(epochs: Sequence[Samples]) -> bool:
    """All samples of the first epoch are unlike, and some come again later as they were."""
    first = dict(zip(epochs[0].first, epochs[0].rows, strict=False))
    again = [(first[n], row) for e in epochs[1:] for n, row in zip(e.first, e.rows, strict=False) if n in first]
    return bool(again) and all(one == other for one, other in again) and len(set(first.values())) == len(first)


def _averaging(trace: Trace) -> Iterator[tuple[int, ...]]:
    """The groups of more than one rank in which gradients are averaged."""
    for call in trace.of(Collective):
        if call.issued_by in ("ddp", "fsdp") and call.op in _AVERAGES and len(call.ranks) > 1:
            yield call.ranks
    by_hand = any(event.wrap == BY_HAND for event in trace.of(Hashes))
    world = next((call.ranks for call in trace.of(Collective) if call.group == "world"), ()) if by_hand else ()
    if len(world) > 1:
        yield world


def _works_together(trace: Trace) -> bool:
    """Ranks exchange what a forward computes, or send to each other: pipelines, sequence and tensor parallelism."""
    return any(
        call.op in _EXCHANGES and call.issued_by in ("user", "torch") and call.phase in ("forward", "backward")
        for call in trace.of(Collective)
    )
