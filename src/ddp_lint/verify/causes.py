"""Why replicas drifted apart, as far as the traces show: pure functions of what each rank recorded."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence

from ddp_lint.verify.compare import REPLICAS_EQUAL, Desync, desyncs, updates
from ddp_lint.verify.damage import Cause
from ddp_lint.verify.trace import (
    BY_HAND,
    COPY,
    REPLICATED,
    SPLIT_BY_HAND,
    TENSOR_PARALLEL,
    Activations,
    Call,
    Collective,
    Event,
    Fingerprint,
    Frame,
    Gathers,
    Hashes,
    Passed,
    Phase,
    Storage,
    Switched,
    Trace,
    Write,
)
from ddp_lint.verify.usage import kept_apart
from ddp_lint.verify.wording import at_line, of_numbers, of_ranks, spoken


def first_desync(traces: Sequence[Trace]) -> Desync | None:
    """The first damage that replicas show without an error: gradients that differ, or else parameters."""
    looks = (("gradients", ("before_step",), ("ddp",)), ("parameters", REPLICAS_EQUAL, REPLICATED))
    return next((desync for what, when, wraps in looks for desync in desyncs(traces, what, when, wraps)), None)


def cause_of(traces: Sequence[Trace], desync: Desync) -> Cause | None:
    """The cause of a desync of gradients or parameters; None if the traces do not show it."""
    if desync.wrap == COPY:
        return _written_alone(traces, desync) or _copied_early(traces, desync) or _written_by_hand(traces, desync)
    if desync.wrap == TENSOR_PARALLEL:
        return Cause.of("unlike-inputs")
    if desync.wrap == SPLIT_BY_HAND:
        return _unsummed(traces)
    if desync.what == "parameters":
        found = (
            _written_alone(traces, desync)
            or _unlike_rates(traces, desync)
            or _unlike_settings(traces, desync)
            or _unlike_states(traces, desync)
            or _left_out(traces, desync)
            or _kept_alone(traces, desync)
            or _drawn_in_step(traces, desync)
            or _left_out_of_the_average(traces, desync)
        )
        if found:
            return found
    return (
        _joined_later(traces, desync)
        or _switched(traces, desync)
        or _averaged_too_early(traces, desync)
        or _never_averaged(traces, desync)
        or _edited(traces, desync)
        or _hooked(traces, desync)
        or _written_by_hand(traces, desync)
        or _never_alike(traces, desync)
    )


def _unsummed(traces: Sequence[Trace]) -> Cause:
    """Ranks work on one model and hold a part of some layers: of the others each sees a part of the gradient."""
    calls = [
        [
            call
            for call in trace.of(Collective)
            if (call.op, call.phase, call.issued_by) == ("all_reduce", "forward", "user")
        ]
        for trace in traces
    ]
    site = next((call.site for of in calls for call in of), None)
    states = [[call.random for call in of if call.random and call.step == of[0].step] for of in calls]
    if any(len(set(of)) > 1 for of in states) and any(len(set(met)) > 1 for met in zip(*states, strict=False)):
        return Cause.of("unlike-random", site)
    part = _left_to_each(traces)
    if part is not None:
        at = Frame(part.path, part.line, "forward") if part.line else None
        return Cause.of("unsummed-layer", at, name=part.name, type=part.type)
    return Cause.of("unsummed", site)


def _left_to_each(traces: Sequence[Trace]) -> Passed | None:
    """The first module of the first forward whose input is one on all ranks and whose output is not, in which no rank
    sums, and behind which nothing sums either: all that it is in return unlike things."""
    ran = [event.passed for trace in traces for event in itertools.islice(trace.of(Activations), 1)]
    rows: list[tuple[Passed, ...]] = list(zip(*ran, strict=False))
    if len(ran) < len(traces) or any(len({part.name for part in row}) > 1 for row in rows):
        return None
    sums = {c.module for t in traces for c in t.of(Collective) if c.phase == "forward" and c.step == 0}
    healed: list[str] = []  # an output that is the same on all ranks
    for row in rows:
        name, given, made = row[0].name, {part.given for part in row}, {part.made for part in row}
        healed += [name] * (len(made) == 1)
        apart = len(given) == 1 and len(made) > 1 and "" not in given | made
        if apart and not any(_is_in(name, outer) for outer in healed) and not any(_is_in(one, name) for one in sums):
            return row[0]
    return None


def _is_in(name: str, outer: str) -> bool:
    return not outer or name == outer or name.startswith(f"{outer}.")


def _copied_early(traces: Sequence[Trace], desync: Desync) -> Cause | None:
    """The copy differed when it ran for the first time."""
    if desync.when != "after_wrap":
        return None
    return Cause.of("copy-changed" if _began_alike(traces, desync.names) else "copied-early")


def _began_alike(traces: Sequence[Trace], names: Sequence[str]) -> bool:
    """The ranks had equal parameters of these names before a wrapper could make them so."""
    begun = [[event.digests for event in trace.hashes("parameters", "before_wrap")] for trace in traces]
    held = [[one for one in of if one.keys() >= set(names)] for of in begun]
    return all(held) and all(len({one[name] for one in at}) == 1 for at in zip(*held, strict=False) for name in names)


def _unlike_rates(traces: Sequence[Trace], desync: Desync) -> Cause | None:
    """The optimizers of the ranks stepped with other learning rates."""
    rates: dict[int, dict[int, Fingerprint]] = {}
    for trace in traces:
        for event in trace.of(Fingerprint):
            if event.rates and desync.same_model(event) and event.step <= desync.step:
                rates.setdefault(event.step, {})[trace.rank] = event
    for step, events in rates.items():
        if len({event.rates for event in events.values()}) > 1:
            described = " and ".join(f"{of_numbers(event.rates)} on rank {rank}" for rank, event in events.items())
            return Cause.of("unlike-rates", next(iter(events.values())).site, step=step, rates=described)
    return None


def _unlike_settings(traces: Sequence[Trace], desync: Desync) -> Cause | None:
    """The optimizers were given other numbers: what decays or averages is not one on all ranks."""
    for calls in zip(*(trace.calls("settings") for trace in traces), strict=False):
        names = [name for name in calls[0].arguments if all(name in call.arguments for call in calls)]
        unlike = [name for name in names if len({tuple(call.arguments[name]) for call in calls}) > 1]
        if unlike and calls[0].step < desync.step:
            by_rank = [(trace.rank, call.arguments[unlike[0]]) for trace, call in zip(traces, calls, strict=True)]
            given = [f"{of_numbers(numbers)} on rank {rank}" for rank, numbers in by_rank]
            return Cause.of("unlike-settings", calls[0].site, settings=f"{unlike[0]} is {' and '.join(given)}")
    return None


def _unlike_states(traces: Sequence[Trace], desync: Desync) -> Cause | None:
    """Some ranks made more steps than others inside of the last `Join`, which passes on no optimizer's state."""
    if not desync.joins:
        return None
    before = (desync.wrap, desync.model, desync.among, desync.joins - 1)
    steps = {trace.rank: updates(trace).get(before, 0) for trace in traces}
    if len(set(steps.values())) == 1:
        return None
    described = " and ".join(f"{count} on rank {rank}" for rank, count in steps.items())
    return Cause.of("unlike-states", steps=described)


def _left_out(traces: Sequence[Trace], desync: Desync) -> Cause | None:
    """A rank skipped an optimizer step: it reached its next one with the gradients of a later round."""
    if desync.wrap not in ("ddp", BY_HAND):
        return None
    rounds = {trace.rank: _reduced_before_steps(trace) for trace in traces}
    for number, reduced in enumerate(zip(*rounds.values(), strict=False), 1):
        late = [rank for rank, count in zip(rounds, reduced, strict=True) if count > min(reduced)]
        if late and number <= desync.step:
            return Cause.of("skipped-step", desync.site, ranks=of_ranks(late), number=number)
    return None


def _kept_alone(traces: Sequence[Trace], desync: Desync) -> Cause | None:
    """The ranks began a step with equal parameters, and with different optimizer states."""
    looks = {trace.rank: _kept_before(trace, desync) for trace in traces}
    held = {rank: event.digests for rank, event in looks.items() if event is not None}
    names = dict.fromkeys(name for kept in held.values() for name in kept)
    unlike = [name for name in names if len({kept.get(name) for kept in held.values()}) > 1]
    if len(held) < len(traces) or not unlike:
        return None
    bare = [rank for rank, kept in held.items() if not kept]
    without = f", and nothing on {of_ranks(bare)}" if bare else ""
    loads = {trace.rank: site for trace in traces if (site := _loads_state(trace, desync)) is not None}
    site = next(iter(loads.values()), None)
    alone = site is not None and len(loads) < len(traces)
    loaded = f"; only {of_ranks(loads)} loaded a state{at_line(site)}" if alone else ""
    return Cause.of("kept-alone", site, number=desync.update, names=f"{spoken(unlike)}{without}", loaded=loaded)


def _kept_before(trace: Trace, desync: Desync) -> Hashes | None:
    """What the optimizer kept of this model before the step after which its replicas differ."""
    looks = (event for event in trace.hashes("states", "before_step") if desync.same_model(event))
    return next((event for event in looks if event.step == desync.step - 1), None)


def _loads_state(trace: Trace, desync: Desync) -> Frame | None:
    calls = [call for call in trace.calls("load_state_dict") if call.arguments.get("optimizer")]
    return next((call.site for call in reversed(calls) if call.step < desync.step), None)


def _drawn_in_step(traces: Sequence[Trace], desync: Desync) -> Cause | None:
    """The optimizer is the user's own and draws random numbers, other ones on each rank."""
    steps = [[call for call in trace.calls("draws") if call.step == desync.step - 1] for trace in traces]
    drawn = [calls[0] for calls in steps if calls]
    site = drawn[0].site if drawn else None
    if site is None or len(drawn) < len(traces) or len({call.arguments["state"] for call in drawn}) == 1:
        return None
    return Cause.of("drawn-in-step", site, op=drawn[0].arguments["op"], function=site.function, line=site.line)


def _left_out_of_the_average(traces: Sequence[Trace], desync: Desync) -> Cause | None:
    """Gradients are averaged by hand, and not those of what differs."""
    calls = [c for trace in traces for c in trace.of(Collective) if (c.op, c.issued_by) == ("all_reduce", "user")]
    averaged = {tensor.name.removesuffix(".grad"): call for call in calls for tensor in call.tensors if tensor.name}
    if desync.wrap != BY_HAND or not desync.names or not averaged.keys().isdisjoint(desync.names) or not averaged:
        return None
    call = next(iter(averaged.values()))
    names, others = spoken(desync.names), spoken(averaged)
    return Cause.of("left-out-of-the-average", call.site, names=names, averaged=others, line=at_line(call.site))


def _reduced_before_steps(trace: Trace) -> list[int]:
    """How many all_reduces this rank had made when each of its optimizer steps began; steps before the first of them
    train what is its own, and do not count."""
    found, reduced = [], 0
    for event in trace.events:
        reduced += isinstance(event, Collective) and event.op == "all_reduce"
        if isinstance(event, Phase) and event.phase == "step" and reduced:
            found.append(reduced)
    return found


def _never_alike(traces: Sequence[Trace], desync: Desync) -> Cause | None:
    """Gradients are averaged by hand, and the replicas differ after the first update with them."""
    if desync.wrap != BY_HAND or desync.step > 1 or any(map(_copies, traces)):
        return None
    return Cause.of("never-alike")


def _copies(trace: Trace) -> bool:
    """Something was handed from one rank to the others before the first step."""
    copying = ("broadcast", "scatter", "all_gather")
    return any(event.op in copying and event.step == 0 for event in trace.of(Collective))


def _written_by_hand(traces: Sequence[Trace], desync: Desync) -> Cause | None:
    """The user's code wrote to one of the parameters that differ."""
    alone = _written_alone(traces, desync)
    write = next((write for trace in traces for write in _writes(trace, desync)), None)
    if alone or desync.what != "parameters" or write is None or write.site is None:
        return alone
    unlike = _unlike_numbers(traces, desync)
    if unlike is not None:
        return unlike
    apart = kept_apart(write.site)
    if apart:
        return Cause.of("written-apart", write.site, apart=apart, **_about(write))
    return Cause.of("written-by-hand", write.site, **_about(write))


def _unlike_numbers(traces: Sequence[Trace], desync: Desync) -> Cause | None:
    """Each rank gave another number to the same update, such as a learning rate of its own."""
    for writes in zip(*(_writes(trace, desync) for trace in traces), strict=False):
        first = writes[0]
        if len({(write.op, write.name, write.site) for write in writes}) > 1 or first.site is None:
            return None
        if len({write.numbers for write in writes}) > 1:
            given = [f"{of_numbers(write.numbers)} on rank {t.rank}" for t, write in zip(traces, writes, strict=True)]
            return Cause.of("unlike-numbers", first.site, given=" and ".join(given), **_about(first))
    return None


def _written_alone(traces: Sequence[Trace], desync: Desync) -> Cause | None:
    """Some ranks alone wrote to it."""
    writes = written_alone(traces, desync)
    write = next(iter(writes.values()), None)
    if write is None or write.site is None:
        return None
    same = [rank for rank, other in writes.items() if other.site == write.site]
    return Cause.of("written-alone", write.site, ranks=of_ranks(same), **_about(write))


def _about(write: Write) -> dict[str, object]:
    """The facts about a write that causes name."""
    return {"op": write.op, "name": write.name, "function": write.site.function if write.site is not None else ""}


def written_alone(traces: Sequence[Trace], desync: Desync) -> dict[int, Write]:
    """By rank the first write of the user's code to what differs on a line where other ranks wrote nothing."""
    found = {trace.rank: _writes(trace, desync) for trace in traces} if desync.what == "parameters" else {}
    sites = [{write.site for write in writes} for writes in found.values()]
    everywhere = set.intersection(*sites) if sites else set()
    alone = {
        rank: [write for write in writes if write.site not in everywhere and not write.op.startswith("c10d.")]
        for rank, writes in found.items()
    }
    return {rank: writes[0] for rank, writes in alone.items() if writes}


def statistics_cause(update: Write | Gathers) -> Cause:
    """Statistics that each rank updates from its own data, and its forward computes with."""
    where = update.site.function if update.site is not None else "forward"
    how = f"{update.op} in {where} updates" if isinstance(update, Write) else f"an assignment in {where} updates"
    attribute = isinstance(update, Gathers) and not update.buffer
    damage = "own-statistics-attribute" if attribute else "own-statistics"
    return Cause.of(damage, update.site, update=how, name=update.name)


def _writes(trace: Trace, desync: Desync) -> list[Write]:
    """The writes of the user's code to what differs, until it was seen to differ."""
    events = (
        event
        for event in trace.of(Write)
        if event.role != "gradient" and event.name in desync.names and event.step <= desync.step
    )
    return [event for event in events if event.site is not None and event.wrap in ("", desync.wrap)]


def _switched(traces: Sequence[Trace], desync: Desync) -> Cause | None:
    """What differs was made trainable after DDP was built, or DDP waits for what was frozen since."""
    waits = not any(_averages(trace, desync) for trace in traces)
    for event in (event for trace in traces for event in trace.of(Switched) if event.step <= desync.step):
        if (event.frozen and waits) or (desync.names and set(desync.names) <= set(event.thawed)):
            return switched_cause(event)
    return None


def _joined_later(traces: Sequence[Trace], desync: Desync) -> Cause | None:
    """What differs became a part of the model after DDP was built."""
    if desync.wrap != "ddp" or not desync.names or not _added(traces).issuperset(desync.names):
        return None
    built = next((call.site for trace in traces for call in trace.calls("DistributedDataParallel")), None)
    made = _joined(traces, desync.names)
    return Cause.of("joined-later", made or built, where=at_line(built), **_became(desync.names, made))


def joined_shards(traces: Sequence[Trace], names: Collection[str]) -> Cause | None:
    """Some of what differs from a single process became a part of the model after FSDP had sharded it."""
    joined = sorted(_added(traces).intersection(names))
    made = _joined(traces, joined)
    return Cause.of("joined-shards", made, **_became(joined, made)) if joined else None


def _added(traces: Sequence[Trace]) -> set[str]:
    return {name for trace in traces for event in trace.of(Storage) for name in event.added}


def _joined(traces: Sequence[Trace], names: Sequence[str]) -> Frame | None:
    """The line that gave a wrapped model the first of these parameters, or the module that holds it."""
    calls = (call for trace in traces for call in trace.calls("joined") if call.site is not None)
    return next(
        (c.site for c in calls if any(f"{name}.".startswith(f"{c.arguments['name']}.") for name in names)), None
    )


def _became(names: Sequence[str], made: Frame | None) -> dict[str, object]:
    what = "became a part" if len(names) == 1 else "became parts"
    return {"names": spoken(names), "became": what, "made": f", in {made.function}{at_line(made)}" if made else ""}


def switched_cause(event: Switched) -> Cause:
    """What it means for DDP that these parameters are no longer what they were when it was built."""
    where = f" in {event.site.function}{at_line(event.site)}" if event.site is not None else ""
    built = at_line(next(iter(event.built), None))
    switch, names = ("frozen", event.frozen) if event.frozen else ("thawed", event.thawed)
    return Cause.of(switch, event.site, names=spoken(names), built=built, where=where)


def _never_averaged(traces: Sequence[Trace], desync: Desync) -> Cause | None:
    """No gradient was reduced in the backward passes before the step at which the replicas differ."""
    backwards = [backward for trace in traces for backward in _backwards(trace, desync)]
    if not backwards or any(_averages(trace, desync) for trace in traces):
        return None
    entered = (event for trace in traces for event in trace.calls("no_sync") if _before(event, desync))
    skipped = next(entered, None)
    if skipped is not None:
        return Cause.of("under-no-sync", skipped.site)
    if _hooked(traces, desync):
        return None
    through = next(filter(None, (_prepared_for_another(trace, desync) for trace in traces)), None)
    return through or Cause.of("beside-the-wrapper", backwards[-1].site)


def _prepared_for_another(trace: Trace, desync: Desync) -> Cause | None:
    """The forward went through the wrapper, and prepared it for an earlier backward than the last one, or for none."""
    last = _backwards(trace, desync)[-1:]
    calls = (call for call in trace.calls("ddp_forward") if call.arguments["model"] == desync.model)
    forwards = [call for call in calls if last and call.n < last[0].n]
    if desync.wrap != "ddp" or not forwards:
        return None
    forward, (backward,) = forwards[-1], last
    if not forward.arguments["averages"]:
        return Cause.of("averaging-off", forward.site, line=at_line(forward.site))
    phases = [event for event in trace.of(Phase) if event.phase == "backward"]
    first = next((event for event in phases if forward.n < event.n < backward.n), None)
    if first is None:
        return None
    return Cause.of("second-backward", backward.site, line=at_line(forward.site), first=at_line(first.site))


def _averaged_too_early(traces: Sequence[Trace], desync: Desync) -> Cause | None:
    """After the last backward that averaged gradients another one added to them: under `no_sync`, or without a forward
    of its own."""
    for trace in traces:
        events = [event for event in trace.events if _before(event, desync)]
        averages = [n for n, event in enumerate(events) if isinstance(event, Collective) and event.op == "all_reduce"]
        since = events[averages[-1] :] if averages else []
        skipped = next((event for event in since if isinstance(event, Call) and event.name == "no_sync"), None)
        later = any(isinstance(event, Phase) and event.phase == "backward" for event in since)
        if skipped is not None and later:
            return Cause.of("averaged-too-early", skipped.site)
        if later and (through := _prepared_for_another(trace, desync)) is not None:
            return through
    return None


def _edited(traces: Sequence[Trace], desync: Desync) -> Cause | None:
    """The user's code changes gradients that differ after they were averaged."""
    writes = (event for trace in traces for event in trace.of(Write) if event.role == "gradient")
    write = next((event for event in writes if _before(event, desync) and event.name in desync.names), None)
    if desync.what != "gradients" or write is None or write.site is None:
        return None
    return Cause.of("edited", write.site, **_about(write))


def _hooked(traces: Sequence[Trace], desync: Desync) -> Cause | None:
    """A communication hook of the user's own makes the gradients of a model under DDP."""
    calls = (call for trace in traces for call in trace.calls("register_comm_hook"))
    hook = next(calls, None) if desync.wrap == "ddp" else None
    if hook is None:
        return None
    name, (path, line) = hook.arguments["hook"], hook.arguments["of"]
    return Cause.of("hooked", Frame(path, line, name), name=name, line=line)


def _before(event: Event, desync: Desync) -> bool:
    """In the training step at whose end (or before whose update) the ranks were seen to differ."""
    ended = desync.step - (desync.when == "after_step")
    return event.step == ended


def _backwards(trace: Trace, desync: Desync) -> list[Event]:
    return [event for event in trace.of(Phase) if event.phase == "backward" and _before(event, desync)]


def _averages(trace: Trace, desync: Desync) -> bool:
    return any(event.op == "all_reduce" and _before(event, desync) for event in trace.of(Collective))
