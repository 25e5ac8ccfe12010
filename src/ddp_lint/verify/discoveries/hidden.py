"""Faults that raised nothing in this run: races, overwritten results, hidden exits, shared GPUs, clocks."""

from __future__ import annotations

import collections
from collections.abc import Iterator

from ddp_lint.verify.damage import Cause
from ddp_lint.verify.discoveries._evidence import discovery
from ddp_lint.verify.options import RankOutcome
from ddp_lint.verify.results import Discovery, Examined
from ddp_lint.verify.trace import Clocked, Collective, Environment, Exit, Mapped, Race, Unordered

#: What averages gradients over the ranks.
_AVERAGING = ("DistributedDataParallel", "FullyShardedDataParallel", "fully_shard")


def hidden_failures(examined: Examined) -> Iterator[Discovery]:
    """An exit with status 0 while an exception is in flight, and a tensor that is used before its collective ends."""
    for outcome in examined.run.ranks:
        for event in outcome.trace.of(Exit):
            if event.status == 0 and event.pending:
                message = f"rank {outcome.rank} calls {event.how}(0) while {event.pending} is in flight"
                yield discovery(
                    examined, ("exit", "exit"), message, event.site, Cause.of("hidden-exit"), rank=outcome.rank
                )
        for race in outcome.trace.of(Race):
            if not race.waited and (race.access != "never" or outcome.how == "completed"):
                message = f"rank {outcome.rank} uses a tensor ({race.op}) before the wait() of the collective on it"
                yield discovery(
                    examined, ("race", "value"), message, race.site, Cause.of("read-too-early"), rank=outcome.rank
                )
                return


def overwritten(examined: Examined) -> Iterator[Discovery]:
    """A gather that was given one tensor for what comes from several ranks."""
    for outcome in examined.run.ranks:
        call = next((call for call in outcome.trace.of(Collective) if call.overlapping), None)
        if call is not None:
            message = f"{call.api or call.op} puts what comes from {len(call.outputs)} ranks into one tensor"
            yield discovery(
                examined, ("overwritten", "value"), message, call.site, Cause.of("overwritten"), rank=outcome.rank
            )
            return


def divided_sums(examined: Examined) -> Iterator[Discovery]:
    """A mean of the losses of all ranks, made in place, of which each rank takes the gradient of its own loss."""
    for outcome in examined.run.ranks:
        for call in outcome.trace.calls("divided_sum") if any(outcome.trace.calls(*_AVERAGING)) else ():
            by = call.arguments["by"]
            message = f"backward begins at a loss that was summed over the ranks in place, and divided by {by}"
            cause = Cause.of("divided-sum", by=by)
            yield discovery(examined, ("loss", "reference"), message, call.site, cause, rank=outcome.rank)
            return


def unordered(examined: Examined) -> Iterator[Discovery]:
    """Memory that two CUDA streams use, one of them writing, with nothing that orders them: the first of them."""
    for outcome in examined.run.ranks:
        for event in outcome.trace.of(Unordered):
            if event.site is None or not event.earlier:
                continue
            earlier = f"{event.earlier_op} of line {event.earlier[0].line} on {event.streams[0]}"
            message = (
                f"rank {outcome.rank}: {event.op} on {event.streams[1]} uses memory of {earlier}; nothing orders them"
            )
            cause = Cause.of("unordered-streams")
            yield discovery(examined, ("race", "streams"), message, event.site, cause, rank=outcome.rank)
            return


def one_device(examined: Examined) -> Iterator[Discovery]:
    """A script that requests NCCL gives one GPU to all ranks: NCCL refuses that. On the CPU, and where ranks share
    GPUs, nothing else shows it."""
    ranks = examined.run.ranks
    speaks = all(any(event.requested.startswith("nccl") for event in one.trace.of(Mapped)) for one in ranks)
    shares = examined.run.shared_gpus and examined.run.wrap == "script"
    hides = any(e.name == "CUDA_VISIBLE_DEVICES" for one in ranks for e in one.trace.of(Environment))
    if len(ranks) == 1 or hides or not (speaks or shares):
        return
    chosen = [next(iter(_chosen_devices(one, bool(shares))), None) for one in ranks]
    if None not in chosen and len(set(chosen)) == 1:
        message = f"all ranks of this machine choose device {chosen[0]}"
        calls = (call.site for call in ranks[0].trace.calls("set_device", "init_process_group"))
        chooses = any(ranks[0].trace.calls("set_device"))
        cause = Cause.of("one-device" if chooses else "no-device")
        yield discovery(examined, ("device", "device"), message, next(calls, None), cause)


def _chosen_devices(outcome: RankOutcome, shares: bool) -> Iterator[str]:
    """The index of the GPU that a rank has chosen. A tensor on one index is a choice, too, and who names none has the
    first; FSDP2 gives each rank a GPU of its own."""
    for call in collections.deque(outcome.trace.calls("set_device"), maxlen=1):
        yield call.arguments["device"].rpartition(":")[2]
    named = {event.requested for event in outcome.trace.of(Mapped) if event.requested.partition(":")[0] == "cuda"}
    tensors = (tensor for call in outcome.trace.of(Collective) for tensor in call.tensors)
    uses = any(tensor.device.startswith("cuda") for tensor in tensors) if shares else bool(named)
    indices = sorted(named - {"cuda"})
    if uses and len(indices) < 2 and not any(outcome.trace.calls("fully_shard")):
        yield indices[0].rpartition(":")[2] if indices else "0"


def by_the_clock(examined: Examined) -> Iterator[Discovery]:
    """A loop with collectives in it whose end depends on the time: in this run all ranks left in the same round."""
    for outcome in examined.run.ranks if examined.completed and examined.run.nproc > 1 else ():
        calls = [call for call in outcome.trace.of(Collective) if len(call.ranks) > 1]
        for event in outcome.trace.of(Clocked):
            at, (first, last) = event.asked[0], event.body
            lines = {call.n: [f.line for f in call.frames if f.in_function_of(at)] for call in calls}
            inside = [n for n, found in lines.items() if any(line in range(first, last + 1) for line in found)]
            agreed = any(at.line in found for found in lines.values())
            if inside and not agreed and max(inside) < event.since:
                left = f"rank {outcome.rank} left a loop because of its own clock (line {at.line})"
                message = f"{left}, and ranks communicate in it"
                yield discovery(examined, ("clock", "sequence"), message, at, Cause.of("clock"), rank=outcome.rank)
                return
