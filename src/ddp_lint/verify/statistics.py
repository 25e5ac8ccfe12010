"""Buffers in which each rank gathers statistics of its own data, and with which its forwards compute."""

from __future__ import annotations

from collections.abc import Sequence

from ddp_lint.verify.compare import Desync, desyncs
from ddp_lint.verify.trace import Collective, Trace, Write

#: Operators that make a buffer's value from the one that it had. What is only overwritten (noise, a cache, a queue) may
#: be each rank's own.
_GATHERS = frozenset({"add_", "sub_", "mul_", "div_", "lerp_", "addcmul_", "addcdiv_", "index_add_", "scatter_add_"})
_WRAPS = ("ddp", "fsdp1", "fsdp2")


def unshared(traces: Sequence[Trace]) -> tuple[Desync, Write] | None:
    """The first moment at which statistics differ, and a write to them; None where DDP broadcasts the buffers."""
    writes = [write for trace in traces for write in trace.of(Write) if write.role == "buffer" and write.site]
    gathered = [write for write in writes if write.op.partition(".")[2] in _GATHERS]
    if not gathered or any(_broadcasts(trace) for trace in traces):
        return None
    for desync in desyncs(traces, "buffers", ("after_step", "at_end"), _WRAPS):
        owners = {_owner(write) for write in writes if write.computed_with and write.name in desync.names}
        found = next((write for write in gathered if write.name in desync.names and _owner(write) in owners), None)
        if found is not None:
            return desync, found
    return None


def _owner(write: Write) -> str:
    """The module that holds a buffer: it gathers in one and may compute with another one that it makes from that."""
    return write.name.rpartition(".")[0]


def _broadcasts(trace: Trace) -> bool:
    """DDP hands rank 0's buffers to the other ranks before a forward (and once the numbers of its buckets, as ints)."""
    calls = (call for call in trace.of(Collective) if call.op == "broadcast" and call.issued_by == "ddp")
    return any("float" in tensor.dtype for call in calls if call.phase == "forward" for tensor in call.tensors)
