"""Replicas that differ between the ranks, or from a single process on the full batch."""

from __future__ import annotations

from collections.abc import Iterator

from ddp_lint.verify.branches import names_apart, paths_apart
from ddp_lint.verify.causes import cause_of, first_desync, joined_shards, statistics_cause
from ddp_lint.verify.compare import Desync, Deviation, deviation
from ddp_lint.verify.damage import Cause
from ddp_lint.verify.discoveries._evidence import discovery
from ddp_lint.verify.match import present
from ddp_lint.verify.oracles.replicas import moment
from ddp_lint.verify.replica_drift import averages_alone, loaded_alone, shards_apart, unlike_modes
from ddp_lint.verify.results import Discovery, Examined
from ddp_lint.verify.statistics import assigned, evaluated, unshared
from ddp_lint.verify.trace import COPY, NoGrad, Reference, Trace, Write
from ddp_lint.verify.wording import of_ranks, spoken

#: Operations that combine the values of all ranks.
_SUMS = ("all_reduce", "reduce", "reduce_scatter", "reduce_scatter_tensor")


def modes_apart(examined: Examined) -> Iterator[Discovery]:
    """A module that evaluates on one rank and trains on another one, in a forward that is learnt from."""
    found = unlike_modes([outcome.trace for outcome in examined.run.ranks])
    if found is not None:
        event, ranks = found
        who = of_ranks(ranks)
        what = spoken(event.names) if event.names[0] else "the model"
        step = event.update + 1
        message = f"{what} is in evaluation mode on {who} only while the model trains, from optimizer step {step} on"
        yield discovery(examined, ("modes", "parameter"), message, event.site, Cause.of("unlike-modes"), rank=ranks[0])


def unlike_replicas(examined: Examined) -> Iterator[Discovery]:
    """Damage without an error: only runs that completed are compared."""
    if not examined.completed:
        return
    traces = examined.traces
    desync = first_desync(traces)
    if desync is not None:
        yield _apart(examined, desync, cause_of(traces, desync) or _mixed(examined, desync))
        return
    alone = averages_alone(traces) or loaded_alone(traces)
    if alone is not None:
        message, cause = alone
        yield discovery(examined, ("parameters", "parameter"), message, cause.site, cause)
        return
    shards = shards_apart(traces)
    if shards is not None:
        message, cause = shards
        yield discovery(examined, ("gradients", "value"), message, cause.site, cause)
        return
    # A model that `verify` wraps by itself may well be meant for a wrap that broadcasts its buffers.
    apart = (unshared(traces) if examined.run.wrap == "script" else None) or assigned(traces)
    if apart is not None:
        yield _apart(examined, apart[0], statistics_cause(apart[1]))
        return
    unlike = evaluated(traces)
    if unlike is not None:
        yield _apart(examined, unlike, Cause.of("evaluated-statistics"))
        return
    for trace in traces:
        reference = trace.last(Reference)
        found = deviation(reference) if reference and reference.repeatable and not reference.error else None
        if found:
            name, difference = found.largest
            message = f"{found.what} differ from a single process on the full batch: {name} by {difference:.2g}"
            lost = _of_shards(examined, trace, found)
            site = lost.site if lost is not None else None
            yield discovery(examined, ("reference", "reference"), message, site, lost, rank=trace.rank, names=(name,))
            return
    for trace in traces:
        for event in trace.of(NoGrad):
            names = [name for name in event.names if name not in event.reference]
            if names and event.reference:
                message = f"trainable, but without a gradient at the optimizer's step: {spoken(names, 12)}"
                yield discovery(examined, ("nograd", "nograd"), message, event.site, rank=trace.rank, names=names)
                return


def _of_shards(examined: Examined, trace: Trace, found: Deviation) -> Cause | None:
    """What FSDP does not keep: parameters that joined the model later, and what the user's forward writes to one that
    it has gathered. What is computed from that differs as well, and may differ more."""
    if not examined.run.wrap.startswith("fsdp"):
        return None
    writes = [w for w in trace.of(Write) if w.role == "parameter" and w.phase == "forward" and w.site is not None]
    lost = [write for write in writes if not write.sharded]
    write = next((w for w in writes if w.name == found.largest[0]), lost[0] if lost else None)
    if write is None or write.site is None:
        return joined_shards(examined.traces, found.differences)
    return Cause.of("written-copy", write.site, how=f"{write.op} in {write.site.function}")


def _mixed(examined: Examined, desync: Desync) -> Cause | None:
    """Averages of unlike lines met before replicas came apart: what they are for was summed."""
    ended = desync.step - (desync.when == "after_step")
    for row in examined.rows:
        calls = [call for _, call in present(row.calls) if call.op in _SUMS]
        found = paths_apart(row.calls) if len(calls) > 1 and calls[0].step <= ended else None
        if found is not None:
            return Cause.of("mixed-sums", found[1], op=calls[0].op, why=found[0])
        turns = names_apart(row.calls) if len(calls) > 1 and calls[0].step <= ended else None
        if turns is not None:
            return Cause.of("mixed-sums", turns[1], op=calls[0].op, why=turns[0])
    return None


def _apart(examined: Examined, desync: Desync, cause: Cause | None) -> Discovery:
    """Replicas that differ, at the line of the cause where it is known, else at that of the update."""
    of = " of a copy of the model under DDP" if desync.wrap == COPY else ""
    message = f"{desync.what}{of} differ between the ranks {moment(desync)}: {spoken(desync.names)}"
    site = (cause.site if cause else None) or desync.site
    kinds = (desync.what, desync.what.removesuffix("s"))
    return discovery(examined, kinds, message, site, cause, names=desync.names)
