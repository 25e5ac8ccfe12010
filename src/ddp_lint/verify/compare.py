"""What differs between the ranks, and between a wrapped run and its reference."""

from __future__ import annotations

import collections
import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping

from ddp_lint.verify.trace import Hashes, Reference, Trace

#: Below this a difference from the reference is rounding: absolute, plus a share of the parameter's size.
#: Damage measured in tiny models starts at 5e-4; runs without damage stay below 1e-5.
ROUNDING = 1e-5
ROUNDING_SHARE = 1e-4


#: When DDP's replicas have to be equal.
REPLICAS_EQUAL = ("after_wrap", "after_step", "at_end")


@dataclasses.dataclass(frozen=True)
class Desync:
    """Tensors that should be equal on all ranks and are not, at one moment. `names` in the module's order."""

    what: str
    when: str
    wrap: str
    step: int
    names: tuple[str, ...]
    ranks: tuple[int, ...]


def desyncs(traces: Iterable[Trace], what: str, when: tuple[str, ...], wraps: tuple[str, ...]) -> Iterator[Desync]:
    """The moments at which tensors differ across ranks, in order; only names that every rank has and none shards."""
    moments: dict[tuple[int, int, str, int], dict[int, Hashes]] = collections.defaultdict(dict)
    for trace in traces:
        times: collections.Counter[tuple[int, int, str]] = collections.Counter()
        for event in trace.of(Hashes):
            if event.what == what and event.when in when and event.wrap in wraps:
                key = (event.step, event.model, event.when)
                moments[(*key, times[key])][trace.rank] = event
                times[key] += 1
    for (step, _, moment, _), events in moments.items():
        names = _differing(events)
        if names:
            wrap = next(iter(events.values())).wrap
            yield Desync(what, moment, wrap, step, names, tuple(sorted(events)))


def _differing(events: Mapping[int, Hashes]) -> tuple[str, ...]:
    first, *others = events.values()
    whole = [
        name
        for name in first.digests
        if all(name in other.digests for other in others)
        and not any(name in event.sharded for event in events.values())
    ]
    return tuple(name for name in whole if any(other.digests[name] != first.digests[name] for other in others))


def not_finite(traces: Iterable[Trace]) -> Iterator[tuple[int, Hashes, tuple[str, ...]]]:
    """(rank, event, names) where a tensor's norm is NaN or infinite."""
    for trace in traces:
        for event in trace.of(Hashes):
            names = tuple(name for name, norm in event.norms.items() if not math.isfinite(norm))
            if names:
                yield trace.rank, event, names


@dataclasses.dataclass(frozen=True)
class Deviation:
    """Parameters (or gradients) that differ from the single-process reference by more than rounding."""

    what: str
    differences: Mapping[str, float]
    missing: tuple[str, ...] = ()

    @property
    def largest(self) -> tuple[str, float]:
        return max(self.differences.items(), key=lambda item: (math.isnan(item[1]), item[1]))


def deviation(reference: Reference) -> Deviation | None:
    """How the run deviates from its reference; None when it does not.

    A model that is no mean over its samples (BatchNorm, dropout) is compared with the run that averages the gradients
    of each rank's batch; any other with the full batch.
    """
    pairs = (
        ("parameters", reference.parameters if reference.separable else reference.shard_parameters),
        ("gradients", reference.gradients if reference.separable else reference.shard_gradients),
    )
    for what, differences in pairs:
        far = {name: d for name, d in differences.items() if not d <= _allowed(reference, name)}
        if far:
            return Deviation(what, far, reference.missing)
    return None


def _allowed(reference: Reference, name: str) -> float:
    return ROUNDING + ROUNDING_SHARE * reference.scale.get(name, 1.0)


def spoken(names: Iterable[str], limit: int = 3) -> str:
    """`a, b, c and 4 more`."""
    items = list(names)
    head = ", ".join(items[:limit])
    return head if len(items) <= limit else f"{head} and {len(items) - limit} more"
