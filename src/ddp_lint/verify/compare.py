"""What differs between the ranks, and between a wrapped run and its reference."""

from __future__ import annotations

import collections
import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

from ddp_lint.verify.trace import (
    BY_HAND,
    SPLIT_BY_HAND,
    TENSOR_PARALLEL,
    Collective,
    Fingerprint,
    Frame,
    Hashes,
    Reference,
    Tensor,
    Trace,
)

#: Below this a difference from the reference is rounding: absolute, plus a share of the parameter's size.
#: Damage measured in tiny models starts at 5e-4; runs without damage stay below 1e-5.
ROUNDING = 1e-5
ROUNDING_SHARE = 1e-4


_OF_A_FORWARD = ("forward", "backward")
#: Elements of the largest tensor that a loss, or a few metrics, make: more may be a model.
_METRICS = 64
#: Operations by which each rank gets what another one has.
_HANDS_ON = frozenset({"broadcast", "all_gather", "all_gather_into_tensor"})
#: When DDP's replicas have to be equal.
REPLICAS_EQUAL = ("after_wrap", "after_step", "at_end")


@dataclasses.dataclass(frozen=True)
class Desync:
    """Tensors that should be equal on all ranks and are not, at one moment. `names` in the module's order: none where
    only the fingerprint of that step shows it, and no later comparison found a tensor that differs. `site` is the
    user's line that updated them."""

    what: str
    when: str
    wrap: str
    step: int
    names: tuple[str, ...]
    ranks: tuple[int, ...]
    model: int = 0
    among: tuple[int, ...] = ()
    joins: int = 0
    site: Frame | None = None
    #: How many optimizer steps the model had seen: `step` counts those of all that the rank trains.
    update: int = 0

    def same_model(self, other: Desync | Hashes | Fingerprint) -> bool:
        return replicas_of(self) == replicas_of(other)


@dataclasses.dataclass(frozen=True)
class Compared:
    """How far replicas were compared: the number of moments, and the last optimizer step among them."""

    times: int = 0
    step: int = 0

    def __str__(self) -> str:
        until = f", up to optimizer step {self.step}" if self.step else ""
        return f"compared {self.times} time{'s' * (self.times != 1)}{until}"


#: One model on all ranks that replicate it: its wrap, its number among those, the ranks (none for all), and how often
#: they have ended a `Join`, since when alone their steps are counted.
Replicas = tuple[str, int, tuple[int, ...], int]
#: The model, its optimizer steps until then, the moment, and how many times before at that.
_Key = tuple[Replicas, int, str, int]


def replicas_of(event: Hashes | Fingerprint | Desync) -> Replicas:
    return event.wrap, event.model, event.among, event.joins


def update_of(event: Hashes | Fingerprint) -> int:
    return event.update if event.update >= 0 else event.step


def desyncs(traces: Iterable[Trace], what: str, when: tuple[str, ...], wraps: tuple[str, ...]) -> Iterator[Desync]:
    """The moments at which tensors differ across ranks, in order; only names that every rank has and none shards."""
    traces = tuple(traces)
    early = (BY_HAND,) if handed_round(traces) else ()
    moments = _moments(traces, what, when, wraps).items()
    seen = [_desync(what, key, events) for key, events in moments if key[0][0] not in early or key[2] == "at_end"]
    wraps = tuple(wrap for wrap in wraps if wrap not in early)
    apart = averaged_now_and_then(traces)
    found = [_without(desync, apart) for desync in _grown_apart(seen, traces)]
    found = [desync for desync in found if desync.names]
    for earlier in _unlike_fingerprints(traces, when, wraps) if what == "parameters" else ():
        later = [desync for desync in found if desync.same_model(earlier) and desync.update >= earlier.update]
        if apart and not later:
            continue
        if not any(desync.same_model(earlier) and desync.update <= earlier.update for desync in found):
            yield dataclasses.replace(earlier, names=later[0].names if later else ())
    yield from found


def averaged_now_and_then(traces: Iterable[Trace]) -> set[str]:
    """The parameters that the user's code averages over all ranks behind an optimizer step: in between each rank trains
    by itself, on purpose."""
    calls = (call for trace in traces for call in trace.of(Collective) if call.step)
    sums = (call for call in calls if (call.op, call.issued_by) == ("all_reduce", "user"))
    return {tensor.name for call in sums if call.phase not in _OF_A_FORWARD for tensor in call.tensors if tensor.name}


def handed_round(traces: Sequence[Trace]) -> bool:
    """Behind optimizer steps the user's code hands parameters (or what is as large) from one rank to the others: each
    rank updates a part of them, and between the two they differ."""
    calls = [c for trace in traces for c in trace.of(Collective) if c.step and c.issued_by == "user"]
    handed = {
        c.step for c in calls if c.op in _HANDS_ON and c.phase not in _OF_A_FORWARD and any(map(large, c.tensors))
    }
    steps = max((event.step for trace in traces for event in trace.of(Hashes)), default=0)
    return 2 * len(handed) >= steps > 0


def large(tensor: Tensor) -> bool:
    """A parameter, or a tensor with more elements than a loss, or a few metrics, have."""
    return bool(tensor.name) or math.prod(tensor.shape) > _METRICS


def _without(desync: Desync, names: set[str]) -> Desync:
    kept = tuple(name for name in desync.names if name not in names) if desync.wrap == "ddp" else desync.names
    return dataclasses.replace(desync, names=kept)


def _grown_apart(seen: Sequence[Desync], traces: Sequence[Trace]) -> Iterator[Desync]:
    """The same without what tensor parallelism leaves to each rank: parameters that were never alike (experts).

    Where the user's code splits a model, neither those of a layer that sums in its own forward (its rows may be others
    on each rank), nor what is alike in the end: ranks that train by themselves for some steps exchange it then.
    """
    own: dict[Replicas, set[str]] = collections.defaultdict(set)
    last = {replicas_of(desync): set(desync.names) for desync in seen}
    layers = _layers_that_sum(traces) if any(desync.wrap == SPLIT_BY_HAND for desync in seen) else set()
    for desync in seen:
        if desync.wrap in (TENSOR_PARALLEL, SPLIT_BY_HAND) and desync.when == "after_wrap":
            own[replicas_of(desync)].update(desync.names)
        names = tuple(name for name in desync.names if name not in own[replicas_of(desync)])
        if desync.wrap == SPLIT_BY_HAND:
            kept = layers is not None and last[replicas_of(desync)]
            names = tuple(n for n in names if kept and n in kept and not _within(n, layers or set()))
        yield dataclasses.replace(desync, names=names)


def _layers_that_sum(traces: Sequence[Trace]) -> set[str] | None:
    """The innermost modules in which the user's code sums in a forward; None where it hands out work (experts)."""
    calls = [c for t in traces for c in t.of(Collective) if c.issued_by == "user" and c.phase == "forward"]
    if any(call.op.startswith("all_to_all") for call in calls):
        return None
    return {call.module for call in calls if call.op == "all_reduce"}


def _within(name: str, modules: set[str]) -> bool:
    """A parameter of one of these modules, or of what is in it; of the whole model its own ones alone."""
    return any(name.startswith(f"{module}.") if module else "." not in name for module in modules)


def compared(traces: Iterable[Trace], what: str, when: tuple[str, ...], wraps: tuple[str, ...]) -> Compared:
    """How often all ranks of a run were compared."""
    traces = tuple(traces)
    if averaged_now_and_then(traces):
        wraps = tuple(wrap for wrap in wraps if wrap != "ddp")
    if handed_round(traces):
        wraps = tuple(wrap for wrap in wraps if wrap != BY_HAND)
    keys = {key[:3] for key, events in _moments(traces, what, when, wraps).items() if _all(key[0], events, traces)}
    if what == "parameters" and "after_step" in when:
        for key, prints in _fingerprints(traces, wraps).items():
            if _all(key[0], prints, traces):
                keys.add((key[0], key[1], "after_step"))
    return Compared(len(keys), max((update for _, update, _ in keys), default=0))


def _all(replicas: Replicas, events: Mapping[int, object], traces: Sequence[Trace]) -> bool:
    """All ranks of this run that replicate the model are there, and more than one."""
    holders = [trace.rank for trace in traces if not replicas[2] or trace.rank in replicas[2]]
    return len(events) == len(holders) > 1


def _moments(
    traces: Sequence[Trace], what: str, when: tuple[str, ...], wraps: tuple[str, ...]
) -> dict[_Key, dict[int, Hashes]]:
    """What each rank held at each moment."""
    moments: dict[_Key, dict[int, Hashes]] = collections.defaultdict(dict)
    for trace in traces:
        times: collections.Counter[tuple[Replicas, int, str]] = collections.Counter()
        for event in trace.of(Hashes):
            if event.what == what and event.when in when and event.wrap in wraps:
                key = (replicas_of(event), update_of(event), event.when)
                moments[(*key, times[key])][trace.rank] = event
                times[key] += 1
    return moments


def _desync(what: str, key: _Key, events: Mapping[int, Hashes]) -> Desync:
    (wrap, model, among, joins), update, moment, _ = key
    first = next(iter(events.values()))
    ranks = tuple(sorted(events))
    return Desync(what, moment, wrap, first.step, _differing(events), ranks, model, among, joins, first.site, update)


def _fingerprints(
    traces: Sequence[Trace], wraps: tuple[str, ...]
) -> dict[tuple[Replicas, int, int], dict[int, Fingerprint]]:
    """By (model, its optimizer steps, how many times before after that many) and rank."""
    found: dict[tuple[Replicas, int, int], dict[int, Fingerprint]] = collections.defaultdict(dict)
    for trace in traces:
        times: collections.Counter[tuple[Replicas, int]] = collections.Counter()
        for event in trace.of(Fingerprint):
            if event.wrap in wraps:
                key = (replicas_of(event), update_of(event))
                found[(*key, times[key])][trace.rank] = event
                times[key] += 1
    return found


def _unlike_fingerprints(traces: Sequence[Trace], when: tuple[str, ...], wraps: tuple[str, ...]) -> Iterator[Desync]:
    """The first step of each model after which its replicas differ."""
    reported: set[Replicas] = set()
    for (model, update, _), prints in _fingerprints(traces, wraps).items() if "after_step" in when else ():
        if model not in reported and len({event.digest for event in prints.values()}) > 1:
            reported.add(model)
            first = next(iter(prints.values()))
            ranks = tuple(sorted(prints))
            yield Desync("parameters", "after_step", model[0], first.step, (), ranks, *model[1:], first.site, update)


def _differing(events: Mapping[int, Hashes]) -> tuple[str, ...]:
    first, *others = events.values()
    whole = [
        name
        for name in first.digests
        if all(name in other.digests for other in others)
        and not any(name in event.sharded for event in events.values())
    ]
    return tuple(name for name in whole if any(other.digests[name] != first.digests[name] for other in others))


def updates(trace: Trace) -> dict[Replicas, int]:
    """How many optimizer steps each wrapped model of a rank has seen, as far as its parameters were looked at."""
    found: dict[Replicas, int] = {}
    looks = [event for event in trace.of(Hashes) if event.what == "parameters" and event.when != "at_end"]
    events: list[Fingerprint | Hashes] = [*trace.of(Fingerprint), *looks]
    for event in events:
        if event.wrap != "none":
            key = replicas_of(event)
            found[key] = max(found.get(key, 0), update_of(event))
    return found


def not_finite(traces: Iterable[Trace]) -> Iterator[tuple[int, Hashes, tuple[str, ...]]]:
    """(rank, event, names) where a tensor's norm is NaN or infinite."""
    for trace in traces:
        for event in trace.of(Hashes):
            names = tuple(name for name, norm in event.norms.items() if not math.isfinite(norm))
            if names:
                yield trace.rank, event, names


def differ(one: float, other: float, relative: float = 1e-6, absolute: float = 1e-9) -> bool:
    """Two numbers are not the same, but for rounding; NaN and NaN are."""
    close = math.isclose(one, other, rel_tol=relative, abs_tol=absolute)
    return not close and not (math.isnan(one) and math.isnan(other))


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
