"""Buffers and attributes in which each rank gathers statistics of its own data, and with which its forwards compute."""

from __future__ import annotations

import collections
from collections.abc import Iterator, Sequence

from ddp_lint.verify.compare import Desync, desyncs
from ddp_lint.verify.trace import BY_HAND, Collective, Gathers, Trace, Write

#: Operators that make a buffer's value from the one that it had. What is only overwritten (noise, a cache, a queue) may
#: be each rank's own.
_GATHERS = frozenset({"add_", "sub_", "mul_", "div_", "lerp_", "addcmul_", "addcdiv_", "index_add_", "scatter_add_"})
_WRAPS = ("ddp", "fsdp1", "fsdp2")


def unshared(traces: Sequence[Trace]) -> tuple[Desync, Write] | None:
    """The first moment at which statistics differ, and a write to them; None where DDP broadcasts the buffers."""
    writes = [write for trace in traces for write in trace.of(Write) if write.role == "buffer" and write.site]
    gathered = list(_gathering(traces))
    if not gathered or any(_broadcasts(trace) for trace in traces):
        return None
    for desync in desyncs(traces, "buffers", ("after_step", "at_end"), _WRAPS):
        owners = {_owner(write) for write in writes if write.computed_with and write.name in desync.names}
        found = next((write for write in gathered if write.name in desync.names and _owner(write) in owners), None)
        if found is not None:
            return desync, found
    return None


def evaluated(traces: Sequence[Trace]) -> Desync | None:
    """The first evaluation in which batch norms have other statistics on each rank; None where DDP broadcasts them:
    then they are one update apart at most."""
    if any(map(_broadcasts, traces)):
        return None
    return next((one for one in desyncs(traces, "buffers", ("in_evaluation",), ("ddp",)) if len(one.ranks) > 1), None)


def assigned(traces: Sequence[Trace]) -> tuple[Desync, Gathers] | None:
    """The same of statistics that are kept by assignment; buffers among them only where DDP does not broadcast them."""
    broadcast = any(map(_broadcasts, traces))
    lines = {event.name: event for trace in traces for event in trace.of(Gathers) if not (event.buffer and broadcast)}
    for desync in desyncs(traces, "statistics", ("after_step", "at_end"), (*_WRAPS, BY_HAND)):
        found = next((lines[name] for name in desync.names if name in lines), None)
        if found is not None:
            return desync, found
    return None


def _gathering(traces: Sequence[Trace]) -> Iterator[Write]:
    """Writes to buffers that were not overwritten in the same training step."""
    for trace in traces:
        steps: dict[tuple[str, int], list[Write]] = collections.defaultdict(list)
        for write in trace.of(Write):
            if write.role == "buffer" and write.site is not None:
                steps[write.name, write.step].append(write)
        for of_step in steps.values():
            if all(write.op.partition(".")[2] in _GATHERS for write in of_step):
                yield from of_step


def _owner(write: Write) -> str:
    """The module that holds a buffer: it gathers in one and may compute with another one that it makes from that."""
    return write.name.rpartition(".")[0]


def _broadcasts(trace: Trace) -> bool:
    """DDP hands rank 0's buffers to the other ranks before a forward (and once the numbers of its buckets, as ints)."""
    calls = (call for call in trace.of(Collective) if call.op == "broadcast" and call.issued_by == "ddp")
    return any("float" in tensor.dtype for call in calls if call.phase == "forward" for tensor in call.tensors)
