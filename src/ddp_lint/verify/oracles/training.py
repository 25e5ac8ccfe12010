"""What the ranks train on, and what the loop does with gradients, seeds and checkpoints."""

from __future__ import annotations

import collections
import itertools

from ddp_lint.verify.compare import differ
from ddp_lint.verify.oracles.case import Case, Opinion
from ddp_lint.verify.sampling import describe_order, epochs_of, same_order, unlike_data, unlike_parts
from ddp_lint.verify.sampling import overlap as overlapping
from ddp_lint.verify.trace import Call, Collective, Frame, Samples, Sync
from ddp_lint.verify.wording import spoken

#: How near a ratio is to the number of ranks that is taken for it: epochs have a last batch more or less.
_NEAR = 0.8


def samples(case: Case) -> Opinion:
    """The samples that each rank drew: ranks that draw the same ones train on one share of the data, several times."""
    firsts = [event for trace in case.traces if (event := next(trace.of(Samples), None))]
    if len(firsts) < 2:
        return Opinion(blind="no sampler was iterated by two ranks in this run")
    if any(unlike_data(firsts[0], other) for other in firsts[1:]):
        return Opinion(silent="the ranks drew different samples: each has data of its own")
    if len({event.members for event in firsts}) == 1 and firsts[0].count:
        of = f" of {firsts[0].dataset}" if firsts[0].dataset else ""
        text = f"{firsts[0].sampler} gave all ranks the same {firsts[0].count} samples{of}"
        return case.fires("samples", text, frame=firsts[0].site)
    return Opinion(silent="the ranks drew different samples")


def divided(case: Case) -> Opinion:
    """Samplers that divide the data among ranks which should all see the same: the ranks of one model-parallel
    group."""
    firsts = [event for trace in case.traces if (event := next(trace.of(Samples), None))]
    if len(firsts) < 2:
        return Opinion(blind="no sampler was iterated by two ranks in this run")
    if len({event.members for event in firsts}) > 1:
        counts = " and ".join(str(event.count) for event in firsts)
        text = f"{firsts[0].sampler} divides {firsts[0].dataset} samples among all ranks ({counts})"
        return case.fires("divided", text, frame=firsts[0].site, linked=True)
    return Opinion(silent="the ranks of one group see the same samples")


def overlap(case: Case) -> Opinion:
    """Shares of the data that overlap: the ranks have not divided one order."""
    found = overlapping(case.traces)
    if found is not None:
        one, other = found.ranks
        text = f"{found.shared} of {found.among} samples of rank {one} that were compared are rank {other}'s as well"
        return case.fires("samples", text, frame=found.event.site)
    firsts = [event for trace in case.traces if (event := next(trace.of(Samples), None))]
    if len(firsts) < 2:
        return Opinion(blind="no sampler was iterated by two ranks in this run")
    return Opinion(silent="the ranks drew different samples")


def dealt(case: Case) -> Opinion:
    """Samples that are dealt out to the ranks in turn: each has every n-th, so that parts joined rank after rank are in
    another order than the data."""
    firsts = [event for trace in case.traces if (event := next(trace.of(Samples), None))]
    if len(firsts) < 2:
        return Opinion(blind="no sampler was iterated by two ranks in this run")
    drawn = firsts[0].first
    steps = {later - earlier for earlier, later in itertools.pairwise(drawn)}
    if steps == {len(firsts)}:
        text = f"{firsts[0].sampler} deals the samples out in turn: rank 0 has {list(drawn[:4])} ..."
        return case.fires("samples", text, frame=firsts[0].site)
    return Opinion(silent="the samples of a rank are not dealt out in turn")


def repeated(case: Case) -> Opinion:
    """Samples that a sampler repeats to give all ranks the same number: together they draw more than the data has."""
    firsts = [event for trace in case.traces if (event := next(trace.of(Samples), None))]
    if len(firsts) < 2:
        return Opinion(blind="no sampler was iterated by two ranks in this run")
    first, drawn = firsts[0], sum(event.count for event in firsts)
    apart = len({event.members for event in firsts}) > 1 and all(event.dataset == first.dataset for event in firsts)
    if first.replicas and apart and first.dataset and drawn > first.dataset:
        text = f"{first.sampler} gave the ranks {drawn} samples of {first.dataset}: some are drawn twice"
        return case.fires("samples", text, frame=first.site)
    return Opinion(silent="the ranks drew no more samples together than the data has")


def split(case: Case) -> Opinion:
    """Parts of the data that the samplers of the ranks divide, and that are others on each rank."""
    parts = unlike_parts(case.traces) if len(case.traces) > 1 else None
    if parts is not None:
        text = f"{parts.sampler} divides another part of the data on each rank"
        return case.fires("samples", text, frame=parts.site)
    if not all(any(event.divided for event in trace.of(Samples)) for trace in case.traces):
        return Opinion(blind="no sampler divided a part of some data in this run")
    return Opinion(silent="the samplers of all ranks divide the same parts")


def epochs(case: Case) -> Opinion:
    """The order of samples from epoch to epoch: a sampler without `set_epoch` gives the same one each time."""
    for trace in case.traces:
        events = same_order(trace)
        if events:
            return case.fires("epochs", describe_order(events), rank=trace.rank, frame=events[0].site)
    most = max((len(events) for trace in case.traces for events in epochs_of(trace).values()), default=0)
    if most < 2:
        return Opinion(blind="fewer than two epochs were seen: there is no order to compare")
    return Opinion(silent=f"the order changed over {most} epochs")


def seeds(case: Case) -> Opinion:
    """Random seeds across ranks: the same seed on every rank draws the same augmentations on all of them."""
    seeds: dict[str, dict[int, int]] = {}
    for rank, event, _ in case.calls("manual_seed"):
        seed = event.arguments.get("seed")
        if isinstance(seed, int):
            seeds.setdefault(str(event.arguments.get("generator", "torch")), {})[rank] = seed
    for generator, by_rank in seeds.items():
        if len(by_rank) > 1 and len(set(by_rank.values())) == 1:
            seed = next(iter(by_rank.values()))
            text = f"all {len(by_rank)} ranks seed {generator} with {seed}: they draw the same numbers"
            return case.fires("seeds", text)
    if not seeds:
        return Opinion(blind="no seed was set here")
    return Opinion(silent="each rank uses a different seed")


def clipped(case: Case) -> Opinion:
    """Gradients that are clipped more than once before the optimizer takes them."""
    times: collections.Counter[tuple[int, int]] = collections.Counter()
    for rank, event, frame in case.calls("clip_grad_norm_"):
        times[rank, event.step] += 1
        if times[rank, event.step] > 1:
            text = f"clips for the second time before optimizer step {event.step + 1}"
            return case.fires("clipped", text, rank=rank, frame=frame)
    if not times:
        return Opinion(silent="no gradients were clipped here")
    return Opinion(silent="the gradients were clipped once before each step")


def cleared(case: Case) -> Opinion:
    """Gradients that are cleared again and again, or clipped and then cleared, and that no step takes."""
    clears, clips = case.calls("zero_grad"), case.calls("clip_grad_norm_")
    times: collections.Counter[tuple[int, int]] = collections.Counter()
    for rank, event, frame in clears:
        times[rank, event.step] += 1
        if times[rank, event.step] > 1:
            text = f"clears gradients for the second time before optimizer step {event.step + 1} takes any"
            return case.fires("cleared", text, rank=rank, frame=frame)
    behind = [(rank, call.step, call.n) for rank, call in case.events(Call) if call.name == "zero_grad"]
    for rank, event, frame in clips:
        if any(other == rank and step == event.step and n > event.n for other, step, n in behind):
            text = f"clips gradients that are cleared before optimizer step {event.step + 1} takes them"
            return case.fires("cleared", text, rank=rank, frame=frame)
    if not clears and not clips:
        return Opinion(silent="no gradients were cleared or clipped here")
    return Opinion(silent="a step took the gradients that were cleared or clipped here")


def redivided(case: Case) -> Opinion:
    """Losses that are divided by the same number twice before a backward: by the program, and by what it hands them
    to."""
    for rank, event in case.events(Call):
        frame = (case.hit(event) or case.named(event)) if event.name == "divided_twice" else None
        if frame is not None:
            text = f"the loss was divided by {event.arguments['by']:g} twice before this backward"
            return case.fires("redivided", text, rank=rank, frame=frame)
    if not case.ran:
        return Opinion(blind="the line did not run")
    return Opinion(silent="no loss was divided twice by one number")


def schedule(case: Case) -> Opinion:
    """Schedules that are made for as many steps as the ranks make together, or make the steps of all ranks by
    themselves."""
    made = case.calls("schedule")
    ranks = len(case.traces)
    for rank, event, frame in made:
        total, steps = event.arguments["total"], event.arguments["steps"]
        if steps and ranks > 1 and _NEAR < max(total, steps) / min(total, steps) / ranks < 1 / _NEAR:
            text = f"is made for {total} steps and has made {steps} at the end, with {ranks} ranks"
            return case.fires("schedule", text, rank=rank, frame=frame)
    if not made:
        return Opinion(blind="no schedule was made here that knows its number of steps")
    return Opinion(silent="the schedule was made for the steps that it has made")


def converted(case: Case) -> Opinion:
    """Layers with a forward of their own that a conversion to SyncBatchNorm has replaced."""
    for rank, event, frame in case.calls("convert_sync_batchnorm"):
        if event.arguments["dropped"]:
            text = f"replaces layers with a forward of their own: {spoken(event.arguments['dropped'])}"
            return case.fires("converted", text, rank=rank, frame=frame)
    if not case.ran:
        return Opinion(blind="the line did not run")
    return Opinion(silent="no layer with a forward of its own was replaced here")


def gathered(case: Case) -> Opinion:
    """Collectives whose results are other tensors than what they are given, and parameters behind the latter: these
    get no gradient through it."""
    for rank, event, frame in case.hits(Collective):
        if event.cut_off:
            text = f"{event.api or event.op} hands on no gradient to what it was computed from: {spoken(event.cut_off)}"
            return case.fires("gathered", text, rank=rank, frame=frame)
    if not case.ran:
        return Opinion(blind="the line did not run")
    return Opinion(silent="no gradient ends in a collective here")


def scaled(case: Case) -> Opinion:
    """Gradients that a GradScaler has multiplied and not divided again when they are clipped."""
    clips = case.calls("clip_grad_norm_")
    if not clips:
        return Opinion(silent="no gradients were clipped here")
    for rank, event, frame in clips:
        scale = float(event.arguments.get("scale", 1.0))
        if scale != 1.0:
            text = f"clips gradients that the GradScaler has multiplied by {scale:g}, and that were not unscaled"
            return case.fires("scaled", text, rank=rank, frame=frame)
    return Opinion(silent="the gradients that were clipped here carried no loss scale")


def saved(case: Case) -> Opinion:
    """Sharded tensors that are saved by some of the ranks alone: the file has their parts, and no other has the
    rest."""
    saves = case.calls("torch.save")
    ranks = {rank for rank, _, _ in saves}
    for rank, event, frame in saves:
        parts, tensors = event.arguments["parts"], event.arguments["tensors"]
        if parts and len(ranks) < len(case.traces):
            text = f"saves {parts} of {tensors} tensors as the shards of this rank; the others save nothing here"
            return case.fires("saved", text, rank=rank, frame=frame)
    if not saves:
        return Opinion(silent="nothing was saved here")
    if any(call for trace in case.traces for call in trace.calls("FullyShardedDataParallel")):
        return Opinion(
            blind="FSDP1 keeps the moments of its shards as plain tensors, which nothing tells from whole ones"
        )
    return Opinion(silent="what was saved here is whole, or every rank saves its part")


def kept(case: Case) -> Opinion:
    """A state dict that the program keeps, whose tensors are written before it loads or saves anything again."""
    returned = case.calls("state_dict")
    written = {(rank, call.arguments["serial"]): call for rank, call in case.events(Call) if call.name == "kept"}
    for rank, event, frame in returned:
        if (call := written.get((rank, event.arguments["serial"]))) is not None:
            changed, tensors = call.arguments["written"], call.arguments["tensors"]
            text = f"{changed} of {tensors} tensors that are kept here were overwritten before they were used"
            return case.fires("kept", text, rank=rank, frame=frame)
    if not returned:
        return Opinion(silent="no state dict was made here")
    return Opinion(silent="what was kept here was not overwritten")


def metric(case: Case) -> Opinion:
    """A number of which every rank must hold the same, and that each takes from its own data.

    Compares what the ranks read at the finding's line, the first time each, the second time each, and so on.
    """
    read: dict[int, list[tuple[float, str, Frame]]] = collections.defaultdict(list)
    for rank, event, frame in case.hits(Sync):
        if event.value is not None:
            read[rank].append((event.value, event.cause, frame))
    if len(read) < 2:
        return Opinion(blind="the ranks did not read a tensor's value here; only such reads are recorded")
    for row in zip(*read.values(), strict=False):
        first, cause, frame = row[0]
        if any(differ(first, value) for value, _, _ in row):
            described = ", ".join(f"{value:g} on rank {rank}" for rank, (value, _, _) in zip(read, row, strict=True))
            return case.fires("metric", f"what {cause} reads here is {described}", frame=frame)
    return Opinion(silent="the ranks read the same values here")
