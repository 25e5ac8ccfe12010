"""Whether the replicas stay equal, and equal to one process on the full batch."""

from __future__ import annotations

import collections
import math
import pathlib
from collections.abc import Iterator

from ddp_lint.verify.causes import written_alone
from ddp_lint.verify.compare import (
    REPLICAS_EQUAL,
    Desync,
    averaged_now_and_then,
    compared,
    desyncs,
    deviation,
    not_finite,
    updates,
)
from ddp_lint.verify.cpu_limits import undecided
from ddp_lint.verify.oracles.case import Case, Opinion, real
from ddp_lint.verify.results import Evidence
from ddp_lint.verify.trace import (
    COPY,
    Assign,
    Call,
    Frame,
    Hashes,
    NoGrad,
    Reference,
    Searched,
    Storage,
    Sync,
    Value,
    Write,
)
from ddp_lint.verify.usage import drawn_conditions
from ddp_lint.verify.wording import of_ranks, spoken

_COMPUTING = ("forward", "between", "backward")


def _compare(case: Case, what: str, when: tuple[str, ...], wraps: tuple[str, ...] = ("ddp",)) -> Opinion:
    """Fires at the first moment at which `what` differs between the ranks."""
    found = next(desyncs(case.traces, what, when, wraps), None)
    if found:
        ranks = " and ".join(f"rank {rank}" for rank in found.ranks)
        text = f"{what} differ between {ranks} {moment(found)}: {spoken(found.names)}"
        writes = written_alone(case.traces, found)
        if writes and not any(_speaks_of(case, write) for write in writes.values()):
            rank, write = next(iter(writes.items()))
            elsewhere = f"{write.op} at line {write.frames[0].line} writes {write.name} on rank {rank} only"
            return Opinion(doubt=f"{text}; another line causes that: {elsewhere}")
        return case.fires(what.removesuffix("s"), text, linked=case.speaks_of(found.names))
    looked = compared(case.traces, what, when, wraps)
    if not looked.times and averaged_now_and_then(case.traces):
        return Opinion(blind=f"parameters are averaged by hand now and then: in between {what} differ on purpose")
    if not looked.times:
        return Opinion(blind=f"no {what} of a model wrapped with {' or '.join(wraps)} to compare between the ranks")
    return Opinion(silent=f"{what} were equal on all ranks, {looked}")


def _speaks_of(case: Case, write: Write) -> bool:
    """The finding is about what happens here, or names this very line."""
    at = write.frames[0]
    return case.hit(write) is not None or (real(at.path), at.line) in case.situation.named


def moment(desync: Desync) -> str:
    if desync.wrap == COPY and desync.when != "at_end":
        return "from its first forward on" if desync.when == "after_wrap" else f"after optimizer step {desync.step}"
    relation = {"before_step": "before", "after_step": "after"}.get(desync.when)
    if not relation:
        return desync.when.replace("_", " the ")
    since = " since Join ended" if desync.joins else ""
    if relation == "after" and not desync.update and not since:
        return "before the first optimizer step"
    return f"{relation} optimizer step {desync.update + (relation == 'before')}{since}"


def gradient(case: Case) -> Opinion:
    """Gradients across ranks before each optimizer step: DDP has averaged them, so they are bit-equal, or it has
    not."""
    return _compare(case, "gradients", ("before_step",))


def parameter(case: Case) -> Opinion:
    """Parameters across ranks: after the wrap and after each step under DDP, before the wrap under FSDP.

    DDP broadcasts rank 0's parameters when it wraps; FSDP shards what each rank holds, so ranks that start from
    different parameters train a model made of pieces of both. Parameters compared after FSDP's gather prove nothing.
    """
    steps = _unequal_steps(case)
    if case.examined.completed and steps:
        text = ", ".join(f"{count} optimizer steps on rank {rank}" for rank, count in steps.items())
        return Opinion(
            (
                case.evidence(
                    "parameter", f"the ranks update their parameters unequally: {text}", linked=case.ran_unequally
                ),
            )
        )
    after = _compare(case, "parameters", REPLICAS_EQUAL)
    rates = _unlike_values(case, "rate")
    if rates and not after.fired:
        return case.fires("parameter", f"the scheduler leaves a learning rate of {rates}")
    unlike = _unlike_values(case, "plateau")
    if unlike and not after.fired:
        return Opinion(doubt=f"the scheduler is given {unlike}: the decision was the same in this run, but need not be")
    if after.fired or not case.sharded or _synchronised(case):
        return after
    before = _compare(case, "parameters", ("before_wrap",), ("none",))
    return before if before.fired or after.blind else after


def state(case: Case) -> Opinion:
    """What an optimizer keeps, where the finding's line loads it on some ranks alone: no wrapper sends that to the
    others."""
    loads = [(rank, frame) for rank, event, frame in case.calls("load_state_dict") if event.arguments.get("optimizer")]
    having = sorted({rank for rank, _ in loads})
    if not loads:
        return Opinion(silent="no state of an optimizer was loaded here")
    if len(having) == len(case.traces):
        return Opinion(silent="every rank loads a state here")
    looks: dict[tuple[int, int], list[Hashes]] = collections.defaultdict(list)
    for trace in case.traces:
        for event in trace.hashes("states", "before_step"):
            looks[event.model, event.update].append(event)
    met = [(update, events) for (_, update), events in sorted(looks.items()) if len(events) == len(case.traces)]
    for update, events in met:
        if any(event.digests != events[0].digests for event in events):
            text = f"only {of_ranks(having)} loads a state here, and what the optimizers keep differs between the ranks"
            return case.fires("state", f"{text} before optimizer step {update + 1}", frame=loads[0][1])
    if not met:
        return Opinion(blind="no optimizer step of a model with replicas was seen")
    return Opinion(silent="what the optimizers keep was equal on all ranks before each step")


def _unequal_steps(case: Case) -> dict[int, int]:
    """By rank the optimizer steps of a wrapped model that all its ranks have and do not update alike; {} without one,
    or where the ranks declared their batches uneven (`Join`)."""
    if case.called("join"):
        return {}
    counts = {trace.rank: updates(trace) for trace in case.traces}
    for model in next(iter(counts.values()), {}):
        steps = {rank: of_rank[model] for rank, of_rank in counts.items() if model in of_rank}
        if len(steps) == len(model[2] or counts) and len(set(steps.values())) > 1:
            return steps
    return {}


def _unlike_values(case: Case, what: str) -> str:
    """The first unlike numbers that the scheduler at the finding's line is given, or leaves as learning rates."""
    given: dict[int, list[float]] = {}
    for rank, value, _ in case.hits(Value):
        if value.what == what and value.local is not None:
            given.setdefault(rank, []).append(value.local)
    for step in zip(*given.values(), strict=False):
        if len(set(step)) > 1:
            return " and ".join(f"{number:.4g} on rank {rank}" for rank, number in zip(given, step, strict=True))
    return ""


def _synchronised(case: Case) -> bool:
    """FSDP1 was configured to broadcast rank 0's parameters."""
    calls = (call for trace in case.traces for call in trace.calls("FullyShardedDataParallel"))
    return any(call.arguments.get("sync_module_states") for call in calls)


def apart(case: Case) -> Opinion:
    """Parameters that the optimizer at the finding trains and no wrapper holds, across ranks after its first steps."""
    made = {(rank, event.arguments["serial"]) for rank, event, _ in case.calls("optimizer")}
    digests: dict[tuple[int, int], dict[int, tuple[str, ...]]] = {}
    times: collections.Counter[tuple[int, int]] = collections.Counter()
    for rank, call in case.events(Call):
        key = (rank, call.arguments.get("serial", -1))
        if call.name == "unwrapped" and key in made:
            times[key] += 1
            digests.setdefault((key[1], times[key]), {})[rank] = tuple(call.arguments["digests"])
    if not digests:
        return Opinion(silent="no optimizer was made here, or it made no step")
    for (_, step), held in digests.items():
        unlike = sum(len(set(each)) > 1 for each in zip(*held.values(), strict=False))
        if unlike:
            text = f"{unlike} parameters without a wrapper differ between the ranks after step {step} of this optimizer"
            return case.fires("apart", text)
    return Opinion(silent="what this optimizer trains without a wrapper is equal on all ranks, or there is none")


def identity(case: Case) -> Opinion:
    """Parameters compared by object and by storage, before and after the wrap, and with what the optimizer holds."""
    looks = case.events(Storage)
    if not looks:
        return Opinion(blind="the run ended before a model's storages could be examined")
    fired = [evidence for rank, event in looks for evidence in _seen(case, rank, event)]
    if fired:
        return Opinion(tuple(fired))
    shared = [event for _, event in looks if _overlaps(case, event)]
    if shared and case.run.device == "cpu" and not case.sharded:
        return Opinion(backend=f"{' and '.join(shared[0].overlaps[0])} share memory, and {undecided('overlap')}")
    return Opinion(
        silent="no two parameters share memory, none was replaced after the wrap, and the optimizer holds the "
        "wrapped model's parameters"
    )


def _seen(case: Case, rank: int, event: Storage) -> Iterator[Evidence]:
    if event.foreign:
        text = f"the optimizer holds {len(event.foreign)} tensors that are not parameters of the wrapped model"
        yield case.evidence("identity", text, rank=rank, linked=False)
    changes = (
        (event.replaced, "are other objects than when the model was wrapped"),
        (event.added, "were added after the model was wrapped"),
        (event.removed, "were removed after the model was wrapped"),
        (event.moved if case.sharded else (), "had their storage exchanged after FSDP took it over"),
    )
    for names, what in changes:
        if names:
            yield case.evidence("identity", f"{spoken(names)} {what}", rank=rank, linked=case.speaks_of(names))
    for pair in event.untied:
        text = f"{' and '.join(pair)} were one parameter before the wrap and are two after it, trained separately"
        yield case.evidence("identity", text, rank=rank, linked=case.speaks_of(pair))
    overlaps = _overlaps(case, event)
    if overlaps and case.run.device != "cpu":
        when = event.when.replace("_", " the ")
        text = f"{' and '.join(overlaps[0])} share memory {when}: optimizers lose updates on CUDA"
        yield case.evidence("identity", text, rank=rank)
    elif overlaps and case.sharded and event.when == "before_wrap":
        text = f"{' and '.join(overlaps[0])} share memory before the wrap; FSDP splits them into separate tensors"
        yield case.evidence("identity", text, rank=rank)


def _overlaps(case: Case, event: Storage) -> list[tuple[str, str]]:
    """Pairs that the finding's statement names: an overlap elsewhere is another finding's."""
    return [pair for pair in event.overlaps if case.speaks_of(pair)]


def reference(case: Case) -> Opinion:
    """The wrapped run against one process without a wrapper: what silent damage cannot hide from."""
    references = {trace.rank: event for trace in case.traces if (event := trace.last(Reference))}
    usable = {rank: event for rank, event in references.items() if not event.error and event.repeatable}
    if not usable:
        why = next((event.error or "two runs of it differ" for event in references.values()), "none was run")
        return Opinion(blind=f"no single-process reference to compare with: {why}")
    fired = []
    for rank, event in usable.items():
        found = deviation(event)
        if found:
            name, difference = found.largest
            text = (
                f"{found.what} differ from a single process on the full batch: {name} by {difference:.2g}"
                f" ({len(found.differences)} of {len(event.parameters or event.shard_parameters)} differ)"
            )
            fired.append(case.evidence("reference", text, rank=rank, linked=case.speaks_of(found.differences)))
    if fired:
        return Opinion(tuple(fired))
    if case.run.wrap == "none":
        return Opinion(blind="without a wrapper each rank trains by itself, as the reference does")
    worst = max((max(event.parameters.values(), default=0.0) for event in usable.values()), default=0.0)
    if not next(iter(usable.values())).separable:
        return Opinion(silent="parameters equal a run that averages the gradients of each rank's batch")
    return Opinion(silent=f"parameters equal a single process on the full batch (largest difference {worst:.1g})")


def write(case: Case) -> Opinion:
    """Writes to parameters and buffers at the finding's lines, and what became of them.

    A write is no damage by itself: the same write on every rank trains right under DDP, an initialisation everywhere.
    It is one when a rank wrote another value than its peers, when FSDP drops it, or when backward still needed the old
    value.
    """
    writes = list(_writes(case))
    if not writes:
        return Opinion(silent="no parameter or buffer of the model was written at this line")
    fired = [*_stale(case)]
    fired += [evidence for rank, event, frame in writes if (evidence := _damage(case, rank, event, frame))]
    fired += _desynchronised(case, {event.name for _, event, _ in writes})
    fired += _deviating(case, {event.name for _, event, _ in writes})
    if fired:
        return Opinion(tuple({evidence.message: evidence for evidence in fired}.values()))
    names = spoken(dict.fromkeys(event.name for _, event, _ in writes))
    wrote = f"wrote {names} {len(writes)} times"
    looked = compared(case.traces, "parameters", REPLICAS_EQUAL, ("ddp",))
    if not looked.times and not case.sharded:
        return Opinion(blind=f"{wrote}, and no wrapper keeps the ranks equal: there was nothing to compare")
    equal = f"the ranks stayed equal ({looked}), " if looked.times else ""
    return Opinion(
        silent=f"{wrote}; {equal}no write was dropped, and backward used no value that had changed since forward"
    )


def _writes(case: Case) -> Iterator[tuple[int, Write | Assign, Frame | None]]:
    yield from case.hits(Write)
    words = case.situation.words
    for trace in case.traces:
        for assign in trace.of(Assign):
            # It is noticed afterwards and has no frame of its own.
            if case.ran and "data" in words:
                yield trace.rank, assign, None
        for write in trace.of(Write):
            # nn.Embedding(max_norm=...) writes in its own forward: the finding is where it was built.
            if "max_norm" in words and "renorm" in write.op and case.hit(write) is None:
                yield trace.rank, write, write.site


def _stale(case: Case) -> Iterator[Evidence]:
    """Parameters that were written here after forward had used them, and that backward then read."""
    for rank, event, frame in case.calls("stale"):
        op, name = event.arguments["op"], event.arguments["name"]
        text = f"{op} changed {name} after forward had used it: backward computes with the new value"
        yield case.evidence("write", text, rank=rank, frame=frame)


def _damage(case: Case, rank: int, event: Write | Assign, frame: Frame | None) -> Evidence | None:
    """What the write alone proves."""
    if not isinstance(event, Write) or event.phase not in _COMPUTING or event.role != "parameter":
        return None
    if case.sharded and not event.sharded:
        text = f"{event.op} wrote {event.name} into the copy that FSDP gathers for forward and frees after it: lost"
        return case.evidence("write", text, rank=rank, frame=frame)
    return None


def _desynchronised(case: Case, names: set[str]) -> Iterator[Evidence]:
    for what in ("parameters", "buffers"):
        for desync in desyncs(case.traces, what, REPLICAS_EQUAL, ("ddp",)):
            if names & set(desync.names):
                text = f"written here, {spoken(desync.names)} differ between the ranks after step {desync.update}"
                yield case.evidence("write", text)
                return


def _deviating(case: Case, names: set[str]) -> Iterator[Evidence]:
    for trace in case.traces:
        for reference in trace.of(Reference):
            found = deviation(reference) if reference.repeatable and not reference.error else None
            if found and names & set(found.differences):
                name, difference = found.largest
                text = f"written here; {name} ends up {difference:.2g} away from a single process on the full batch"
                yield case.evidence("write", text, rank=trace.rank)


def unused(case: Case) -> Opinion:
    """Whether DDP's search for unused parameters found any: what every rank reached in every backward that was
    averaged."""
    if case.run.stimuli or not case.examined.completed:
        return Opinion(blind="only a complete run without stimuli shows what every step uses")
    searches = [(rank, event) for rank, event, _ in case.hits(Searched)] or case.events(Searched)
    if not searches:
        if case.called("DistributedDataParallel"):
            return Opinion(silent="no DDP wrapper of this run searches for unused parameters")
        return Opinion(blind="nothing was wrapped with DDP")
    for rank, event in searches:
        if event.unused:
            return Opinion(silent=f"the search finds some: on rank {rank} a backward left out {spoken(event.unused)}")
    fewest = min(event.backwards for _, event in searches)
    if not fewest:
        return Opinion(blind="no backward was seen whose gradients DDP averages")
    files = sorted({path for _, call in case.events(Call) for path in call.arguments.get("files", ())})
    drawn = next(drawn_conditions(files), None)
    if drawn is not None:
        here = f"line {drawn.line} of {pathlib.Path(drawn.path).name}"
        text = f"{here} draws at random what runs: in {fewest} backwards nothing was left out, in another one it may be"
        return Opinion(doubt=text)
    text = f"every parameter got a gradient in each of {fewest} backwards on every rank: the search finds nothing"
    return case.fires("unused", text, frame=case.hit(searches[0][1]))


def nograd(case: Case) -> Opinion:
    """Trainable parameters without a gradient at `step()`, although a single process has one for them, and those that
    have one and that no optimizer updates."""
    for rank, event in case.events(NoGrad):
        names = [name for name in event.names if name not in event.reference]
        if names:
            text = f"at optimizer step {event.step + 1} these train and have no gradient: {spoken(names)}"
            linked = case.hit(event) is not None or case.speaks_of(names)
            return case.fires("nograd", text, rank=rank, linked=linked)
    for rank, call in case.events(Call):
        if call.name == "unregistered" and case.speaks_of(call.arguments["names"]):
            text = "these have a gradient, but no module and no optimizer holds them"
            return case.fires("nograd", f"{text}: {spoken(call.arguments['names'])}", rank=rank)
    if not any(event.when == "before_step" for _, event in case.events(Hashes)):
        return Opinion(blind="no optimizer step was seen")
    return Opinion(silent="every trainable parameter had a gradient at each step")


def finite(case: Case) -> Opinion:
    """Numbers that are no longer numbers: a NaN or an infinity on one rank reaches all of them with the next all-
    reduce."""
    if "nan" in case.run.stimuli:
        return Opinion(blind="a NaN was injected in this pass")
    if not case.ran:
        return Opinion(silent="the line did not run")
    for rank, event, names in not_finite(case.traces):
        text = f"{event.what} of {spoken(names)} are not finite at step {event.step + 1}"
        return case.fires("finite", text, rank=rank, linked=False)
    for rank, read, frame in case.hits(Sync):
        if read.value is not None and not math.isfinite(read.value):
            return case.fires("finite", f"{read.cause} read {read.value} here", rank=rank, frame=frame)
    if not any(event.norms for _, event in case.events(Hashes)):
        return Opinion(blind="no gradients or parameters were checked")
    return Opinion(silent="all gradients and parameters stayed finite")
