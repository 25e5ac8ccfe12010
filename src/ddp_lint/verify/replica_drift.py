"""Models that no wrapper synchronises, or that ranks train differently: pure functions of what each rank recorded."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Iterator, Sequence

from ddp_lint.verify.compare import differ, large
from ddp_lint.verify.damage import Cause
from ddp_lint.verify.trace import BY_HAND, Call, Collective, Evaluates, Event, Hashes, Sync, Trace, Write
from ddp_lint.verify.wording import at_line, of_numbers, of_ranks, spoken

#: Of numbers that ranks compute alike, but for the order in which they add.
_differ = functools.partial(differ, relative=1e-4)
#: Calls by which FSDP shards a model, and operations that hand one on.
_SHARDS = ("fully_shard", "FullyShardedDataParallel")
_HANDS_ON = ("broadcast", "scatter")


def unlike_modes(traces: Sequence[Trace]) -> tuple[Evaluates, tuple[int, ...]] | None:
    """The first forward in which some ranks evaluate with modules that others train with, and which ranks do."""
    events = [(trace.rank, event) for trace in traces for event in trace.of(Evaluates)]
    for model, update in sorted({(event.model, event.update) for _, event in events}):
        now = {trace.rank: _at(trace, model, update) for trace in traces}
        if len({event.names if event else () for event in now.values()}) > 1:
            evaluating = {rank: event for rank, event in now.items() if event is not None and event.names}
            fewest = min((set(event.names if event else ()) for event in now.values()), key=len)
            ranks = tuple(rank for rank, event in evaluating.items() if set(event.names) != fewest)
            return evaluating[ranks[0]], ranks
    return None


def _at(trace: Trace, model: int, update: int) -> Evaluates | None:
    """What the latest forward of a model met that came before this update."""
    found = [event for event in trace.of(Evaluates) if event.model == model and event.update <= update]
    return found[-1] if found else None


def averages_alone(traces: Sequence[Trace]) -> tuple[str, Cause] | None:
    """Models whose gradients are averaged, by DDP or by hand, in a process group of one rank, which began alike (else
    each may be one of its own, as in an ensemble), and which nothing else keeps equal."""
    looks = [_alone(trace) for trace in traces]
    if len(traces) == 1 or not all(looks) or any(map(_exchanges, traces)):
        return None
    names = _unlike([events[-1] for events in looks])
    if not names or _unlike([events[0] for events in looks]):
        return None
    message = f"parameters differ between the ranks at the end: {spoken(names)}"
    if looks[0][0].wrap == BY_HAND:
        calls = (call for call in traces[0].of(Collective) if call.op == "all_reduce" and len(call.ranks) == 1)
        call = next((call for call in calls if any(t.name.endswith(".grad") for t in call.tensors)), None)
        return message, Cause.of("averages-alone-by-hand", call.site if call is not None else None)
    built = next((call.site for trace in traces for call in trace.calls("DistributedDataParallel")), None)
    return message, Cause.of("averages-alone", built)


def averaged_flat(traces: Sequence[Trace]) -> list[Trace]:
    """The traces, with models without a wrapper marked as averaged by hand where their gradients are equal on all ranks
    at each step: the user's code averages them outside of the model, as in one flat tensor."""
    found = [number for number in _numbers(traces[0]) if _alike_gradients(traces, number)] if len(traces) > 1 else []
    if not found or not all(map(_averages_large, traces)):
        return list(traces)
    return [
        dataclasses.replace(trace, events=tuple(_as_averaged(event, found) for event in trace.events))
        for trace in traces
    ]


def _numbers(trace: Trace) -> list[int]:
    return list(dict.fromkeys(event.model for event in trace.of(Hashes) if _is_gradient(event)))


def _is_gradient(event: Hashes) -> bool:
    return (event.what, event.when, event.wrap) == ("gradients", "before_step", "none")


def _alike_gradients(traces: Sequence[Trace], number: int) -> bool:
    looks = [[event for event in trace.of(Hashes) if _is_gradient(event) and event.model == number] for trace in traces]
    alike = all(len({tuple(look.digests.items()) for look in at}) == 1 for at in zip(*looks, strict=False))
    return len(set(map(len, looks))) == 1 and alike and any(map(any, (look.norms.values() for look in looks[0])))


def _averages_large(trace: Trace) -> bool:
    """Something as large as gradients is summed outside of the model."""
    calls = [c for c in trace.of(Collective) if c.issued_by == "user" and len(c.ranks) > 1 and c.phase != "forward"]
    return any(call.op == "all_reduce" and any(map(large, call.tensors)) for call in calls)


def _as_averaged(event: Event, numbers: Sequence[int]) -> Event:
    if isinstance(event, Hashes) and (event.what, event.wrap) == ("parameters", "none") and event.model in numbers:
        return dataclasses.replace(event, wrap=BY_HAND) if event.when != "before_wrap" else event
    return event


def _alone(trace: Trace) -> list[Hashes]:
    looks = (event for event in trace.of(Hashes) if event.what == "parameters" and event.wrap in ("ddp", BY_HAND))
    return [event for event in looks if event.among == (trace.rank,)]


def _unlike(looks: Sequence[Hashes]) -> list[str]:
    return [name for name in looks[0].digests if len({look.digests.get(name) for look in looks}) > 1]


def _exchanges(trace: Trace) -> bool:
    """Ranks exchange models by hand, or what they compute in a forward."""
    calls = [call for call in trace.of(Collective) if len(call.ranks) > 1 and call.op not in ("new_group", "barrier")]
    return any(call.phase == "forward" or any(map(large, call.tensors)) for call in calls)


def shards_apart(traces: Sequence[Trace]) -> tuple[str, Cause] | None:
    """Shards of one tensor that the ranks changed by different numbers, or stepped with different learning rates: no
    rank holds a whole that could be compared. Only where all ranks hold shards of the same tensors."""
    held = [{name for event in trace.hashes("gradients", "before_step") for name in event.sharded} for trace in traces]
    if len(traces) == 1 or not held[0] or any(names != held[0] for names in held):
        return None
    return _changed_apart(traces) or _stepped_apart(traces)


def _changed_apart(traces: Sequence[Trace]) -> tuple[str, Cause] | None:
    looks = [[w for w in trace.of(Write) if w.sharded and w.role == "gradient" and w.numbers] for trace in traces]
    for writes in zip(*looks, strict=False):
        first = writes[0]
        if len({(write.op, write.name, write.site, write.step) for write in writes}) > 1 or first.site is None:
            return None
        pairs = [pair for write in writes for pair in zip(first.numbers, write.numbers, strict=False)]
        if any(_differ(*pair) for pair in pairs):
            by = [f"{of_numbers(write.numbers)} on rank {t.rank}" for t, write in zip(traces, writes, strict=True)]
            read = _read_of_a_shard(traces, first)
            facts = {"op": first.op, "function": first.site.function, "read": read}
            message = f"each rank changes its shard of the gradient of {first.name} by a number of its own"
            return message, Cause.of("unlike-shards", first.site, given=" and ".join(by), **facts)
    return None


def _read_of_a_shard(traces: Sequence[Trace], write: Write) -> str:
    """The last line before that took the number of this rank's shard for that of the whole, and got another one on each
    rank."""
    reads = [[s for s in t.of(Sync) if s.sharded and s.value is not None and s.step == write.step] for t in traces]
    rows = [row for row in zip(*reads, strict=False) if row[0].n < write.n and len({sync.site for sync in row}) == 1]
    unlike = [row[0] for row in rows if any(_differ(row[0].value or 0.0, sync.value or 0.0) for sync in row)]
    return f"; {unlike[-1].cause}{at_line(unlike[-1].site)} gives that of this rank's shard alone" if unlike else ""


def _stepped_apart(traces: Sequence[Trace]) -> tuple[str, Cause] | None:
    for calls in itertools.zip_longest(*(trace.calls("rates") for trace in traces)):
        known = [call for call in calls if call is not None]
        changes = {(call.step, call.arguments["optimizer"], *call.arguments["rates"]) for call in known}
        if len(changes) > 1 or len(known) < len(calls):
            first = min(known, key=lambda call: call.step)
            rates = [(trace.rank, _rates_at(trace, first)) for trace in traces]
            described = " and ".join(f"{of_numbers(held)} on rank {rank}" for rank, held in rates)
            message = f"the ranks step with different learning rates, each its shards, from optimizer step {first.step}"
            return message, Cause.of("unlike-rates", first.site, step=first.step, rates=described)
    return None


def _rates_at(trace: Trace, change: Call) -> tuple[float, ...]:
    """The rates of an optimizer at the step at which another rank changed them."""
    calls = [c for c in trace.calls("rates") if c.arguments["optimizer"] == change.arguments["optimizer"]]
    return tuple([call for call in calls if call.step <= change.step][-1].arguments["rates"])


def loaded_alone(traces: Sequence[Trace]) -> tuple[str, Cause] | None:
    """Weights that some ranks alone have loaded before FSDP took the shards from what each rank had."""
    loads = {trace.rank: [*_before_sharding(trace)] for trace in traces}
    having = [rank for rank, calls in loads.items() if calls]
    if not having or len(having) == len(traces) or any(map(_handed_on, traces)):
        return None
    looks = [next(trace.hashes("parameters", "before_wrap"), None) for trace in traces]
    held = [look for look in looks if look is not None]
    if len(held) < len(traces) or any("meta" in look.digests.values() for look in held):
        return None
    names = _unlike(held)
    if not names:
        return None
    built = next((call.site for trace in traces for call in trace.calls(*_SHARDS)), None)
    differed = f"{spoken(names)} differed before FSDP{at_line(built)} took its shards"
    message = f"the ranks' shards are of different models: {differed}"
    return message, Cause.of("loaded-alone", loads[having[0]][0].site, ranks=of_ranks(having))


def _before_sharding(trace: Trace) -> Iterator[Call]:
    """The calls by which what is sharded then, in one piece or in several, has got weights."""
    sharded = {call.arguments.get("module") for call in trace.calls(*_SHARDS)}
    for call in trace.calls("load_state_dict", *_SHARDS):
        if call.name in _SHARDS:
            return
        if call.arguments.get("model") in sharded:
            yield call


def _handed_on(trace: Trace) -> bool:
    """The ranks shard nothing, or something is handed from one of them to the others before they train."""
    built = next(trace.calls(*_SHARDS), None)
    synced = built is not None and bool(built.arguments.get("sync_module_states"))
    return built is None or synced or any(c.op in _HANDS_ON and c.step == 0 for c in trace.of(Collective))
