"""What the host reads, compiles, sets and starts: values, synchronisation, TorchDynamo, devices, the environment, runs
of trackers."""

from __future__ import annotations

import collections
import functools
from collections.abc import Iterator

from ddp_lint.knowledge import table
from ddp_lint.verify.compare import differ
from ddp_lint.verify.cpu_limits import undecided
from ddp_lint.verify.oracles.case import Case, Opinion, real
from ddp_lint.verify.results import Evidence
from ddp_lint.verify.trace import Call, Collective, Environment, Frame, GraphBreak, Note, Race, Recompile, Sync, Value
from ddp_lint.verify.wording import of_ranks

#: Of numbers that ranks compute alike, but for the order in which they add.
_differ = functools.partial(differ, relative=1e-4, absolute=1e-6)
#: Values of which every rank must hold the same.
_AGREED = ("clip_grad_norm_", "scale")
#: A second version of a function is usual: another shape, training and evaluation.
_OFTEN = 3
_WATCHED = ("torch.load", "share_memory_", "set_device")


def value(case: Case) -> Opinion:
    """Values that are wrong without an error: read before they were complete, or a shard's taken for the whole."""
    fired = [*_races(case), *_disagreements(case)]
    if fired:
        return Opinion(tuple(fired))
    seen = [event for _, event, _ in case.hits(Value)] + [event for _, event, _ in case.hits(Sync)]
    if not seen:
        return Opinion(silent="no value was read here before it was complete, nor from a shard")
    return Opinion(silent="the values read here are those of the whole tensor, the same on all ranks")


def _races(case: Case) -> Iterator[Evidence]:
    """The order of events proves the race; that this time the value was complete already would not disprove it."""
    hits = list(_hits(case))
    waits = {(rank, event.of): event for rank, event, _ in hits if event.waited}
    for rank, event, frame in hits:
        if event.waited:
            continue
        later = waits.get((rank, event.of))
        if event.access == "write":
            text = f"{event.op} wrote into a tensor that an unfinished collective still works on"
        elif later and event.before is not None and later.after is not None and _differ(event.before, later.after):
            text = f"read before wait(): its first element was {event.before:g} then, and {later.after:g} afterwards"
        else:
            text = f"{event.op} read a tensor before the wait() of the collective that fills it"
        yield case.evidence("value", text, rank=rank, frame=frame)


def _hits(case: Case) -> Iterator[tuple[int, Race, Frame]]:
    """Races at the finding's lines, or of a collective that was started there."""
    for trace in case.traces:
        started = {event.n for event in trace.of(Collective) if case.hit(event)}
        for race in trace.of(Race):
            frame = case.hit(race) or (race.site if race.of in started else None)
            if frame is not None:
                yield trace.rank, race, frame


def _disagreements(case: Case) -> Iterator[Evidence]:
    """The k-th value of one place, rank by rank: of shards, or of what the ranks must agree on."""
    table: dict[tuple[str, int, str, int], dict[int, tuple[float, Frame]]] = collections.defaultdict(dict)
    times: collections.Counter[tuple[int, str, int, str]] = collections.Counter()
    for rank, what, number, frame in _numbers(case):
        key = (frame.path, frame.line, what)
        table[(*key, times[(rank, *key)])][rank] = (number, frame)
        times[(rank, *key)] += 1
    for (_, _, what, _), row in table.items():
        numbers = {rank: number for rank, (number, _) in row.items()}
        first = next(iter(numbers.values()))
        if any(_differ(first, number) for number in numbers.values()):
            described = ", ".join(f"{number:g} on rank {rank}" for rank, number in numbers.items())
            frame = next(iter(row.values()))[1]
            linked = frame.line in case.situation.lines and real(frame.path) == case.situation.path
            yield case.evidence("value", f"{what} is {described}", frame=frame, linked=linked)
            return


def _numbers(case: Case) -> Iterator[tuple[int, str, float, Frame]]:
    for rank, event in case.events(Value):
        # The total norm and the scale must be the same on all ranks wherever they are computed.
        if event.local is not None and event.what in _AGREED and event.site:
            yield rank, event.what, event.local, event.site
    for rank, read, frame in case.hits(Sync):
        if read.value is not None and (read.sharded or case.sharded):
            yield rank, f"the value that {read.cause} reads here", read.value, frame


def sync(case: Case) -> Opinion:
    """Host synchronisation: reads that make the CPU wait for the GPU. On CPU they are seen too, without a wait."""
    times: collections.Counter[str] = collections.Counter()
    where: dict[str, tuple[int, Sync, Frame]] = {}
    for rank, event, frame in case.hits(Sync):
        times[event.cause] += 1
        where.setdefault(event.cause, (rank, event, frame))
    if not times:
        return Opinion(silent="nothing was read from the device here")
    cause, count = times.most_common(1)[0]
    rank, event, frame = where[cause]
    wait = "the host waits for the device" if event.device != "cpu" else "on CUDA the host waits for the device"
    text = f"{cause}, {count} times over all ranks: {wait} each time"
    return case.fires("sync", text, rank=rank, frame=frame)


def graph_break(case: Case) -> Opinion:
    """Graph breaks of TorchDynamo at the finding's lines, in the user's compiled code or in our explanation of it."""
    hits = list(case.hits(GraphBreak))
    if hits:
        rank, event, frame = hits[0]
        text = f"TorchDynamo breaks the graph here: {' '.join(event.reason.split())[:300]}"
        return case.fires("graph_break", text, rank=rank, frame=frame)
    if case.run.wrap != "script":
        failed = next((note.text for _, note in case.events(Note) if "explain failed" in note.text), "")
        return (
            Opinion(blind=failed) if failed else Opinion(silent="TorchDynamo compiles the model without a break here")
        )
    if case.called("compile"):
        return Opinion(silent="TorchDynamo compiled without a break here")
    return Opinion(blind="nothing was compiled in this run")


def recompile(case: Case) -> Opinion:
    """Recompilations of TorchDynamo that the finding's line makes, over and over."""
    hits = list(case.hits(Recompile))
    ranks = collections.Counter(rank for rank, _, _ in hits)
    for rank, event, frame in hits:
        if ranks[rank] >= _OFTEN:
            text = f"TorchDynamo recompiled `{frame.function}` {ranks[rank]} times, first where `{event.reason}` failed"
            return case.fires("recompile", text, rank=rank, frame=frame)
    if case.called("compile"):
        return Opinion(silent="TorchDynamo did not compile the function again and again")
    if case.ran:
        return Opinion(silent="the line ran, and nothing was compiled again for it")
    return Opinion(blind="nothing was compiled in this run")


def device(case: Case) -> Opinion:
    """Where tensors land: checkpoints on another rank's GPU, CUDA tensors handed to workers, foreign device indices."""
    calls = [(rank, event, frame) for rank, event, frame in case.hits(Call) if event.name in _WATCHED]
    landed = case.run.device == "cuda" and not case.run.shared_gpus
    fired = [
        case.evidence("device", text, rank=rank, frame=frame)
        for rank, event, frame in calls
        for text in _wrong(rank, event)
        if landed or event.name == "share_memory_"
    ]
    fired += _collisions(case)
    if fired:
        return Opinion(tuple(fired))
    if case.run.device == "cpu":
        return Opinion(backend=undecided("placement"))
    if case.run.shared_gpus:
        return Opinion(backend=undecided("shared"))
    if not calls:
        return Opinion(silent="nothing was put on another rank's device here")
    return Opinion(silent=f"{calls[0][1].name} left its tensors on the CPU or on the rank's own device")


def _wrong(rank: int, event: Call) -> Iterator[str]:
    own = f"cuda:{rank}"
    if event.name == "torch.load":
        foreign = sorted({at for at in event.arguments.get("landed", ()) if at.startswith("cuda") and at != own})
        if foreign:
            yield f"torch.load put tensors on {', '.join(foreign)}; this rank's device is {own}"
    elif event.name == "share_memory_" and str(event.arguments.get("device", "")).startswith("cuda"):
        yield f"what the line shares is on {event.arguments['device']}, where share_memory_ does nothing"


def _collisions(case: Case) -> Iterator[Evidence]:
    """Two ranks that choose the same device."""
    chosen: dict[str, int] = {}
    for rank, event, frame in case.calls("set_device"):
        device = str(event.arguments.get("device", ""))
        if device and chosen.setdefault(device, rank) != rank:
            text = f"rank {rank} chooses {device}, as rank {chosen[device]} does"
            yield case.evidence("device", text, rank=rank, frame=frame)


def environment(case: Case) -> Opinion:
    """Environment variables: what the script wrote against what is in force for who reads it."""
    writes = [(rank, event, frame) for rank, event, frame in case.hits(Environment) if not event.final]
    if not writes:
        return Opinion(silent="the line wrote no environment variable")
    asked = False
    for rank, event, frame in writes:
        if event.name in table("environment")["unread"]:
            text = f"the line sets {event.name}, a name that the sources and libraries of torch and NCCL do not contain"
            return case.fires("environment", text, rank=rank, frame=frame)
        final = _final(case, rank, event)
        in_force = final.in_force if final else event.in_force
        asked = asked or in_force is not None
        if in_force is not None and in_force != event.value:
            text = f"{event.name}={event.value} has no effect: {_when(event)}, and {in_force!r} is in force"
            return case.fires("environment", text, rank=rank, frame=frame)
    if not asked:
        return Opinion(blind=f"what is in force for {writes[0][1].name} cannot be determined here")
    return Opinion(silent=f"{writes[0][1].name} is in force as written")


def _final(case: Case, rank: int, write: Environment) -> Environment | None:
    trace = next(trace for trace in case.traces if trace.rank == rank)
    return next((event for event in trace.of(Environment) if event.final and event.name == write.name), None)


def _when(event: Environment) -> str:
    renamed = table("environment")["renamed"].get(event.name)
    if renamed:
        return f"{renamed} is also set and takes precedence"
    facts = (
        (event.ddp_built, "it was written after DDP was built"),
        (event.cuda_initialized, "it was written after CUDA was initialised"),
        (event.group_up, "it was written after init_process_group"),
        (event.torch_imported, "it was written after torch was imported"),
    )
    return next((text for holds, text in facts if holds), "no library reads it")


def started(case: Case) -> Opinion:
    """Runs of an experiment tracker: whether one rank starts one, or each a run of its own."""
    calls = case.calls("start_run")
    if not calls:
        return Opinion(doubt="no call that starts a run was seen at this line")
    own: dict[str, dict[int, Frame]] = {}
    for rank, event, frame in calls:
        if not event.arguments["off"]:
            own.setdefault(str(event.arguments["tracker"]), {}).setdefault(rank, frame)
    for tracker, ranks in own.items():
        if len(ranks) > 1:
            text = f"{of_ranks(sorted(ranks))} each start a run of {tracker} here"
            return case.fires("started", text, rank=min(ranks), frame=ranks[min(ranks)])
    alone = sorted({rank for each in own.values() for rank in each})
    if not alone:
        return Opinion(doubt="the runs that the calls here start are switched off in this run, or belong together")
    return Opinion(silent=f"{of_ranks(alone)} alone starts a run")
