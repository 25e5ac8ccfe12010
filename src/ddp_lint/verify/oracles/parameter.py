"""Parameters across ranks: after the wrap and after each step under DDP, before the wrap under FSDP.

DDP broadcasts rank 0's parameters when it wraps; FSDP shards whatever each rank holds, so ranks that start from
different parameters train a model made of pieces of both. Parameters compared after FSDP's gather prove nothing.
"""

from __future__ import annotations

from ddp_lint.verify.compare import REPLICAS_EQUAL, updates
from ddp_lint.verify.oracles import Case, Opinion, _across
from ddp_lint.verify.trace import Call


def testify(case: Case) -> Opinion:
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
    after = _across.compare(case, "parameters", REPLICAS_EQUAL)
    if after.fired or not case.sharded or _synchronised(case):
        return after
    before = _across.compare(case, "parameters", ("before_wrap",), ("none",))
    return before if before.fired or after.blind else after


def _unequal_steps(case: Case) -> dict[int, int]:
    """By rank the optimizer steps of a wrapped model that all ranks have and do not update alike; {} without one."""
    counts = {trace.rank: updates(trace) for trace in case.traces}
    for model in next(iter(counts.values()), {}):
        steps = {rank: of_rank[model] for rank, of_rank in counts.items() if model in of_rank}
        if len(steps) == len(counts) and len(set(steps.values())) > 1:
            return steps
    return {}


def _synchronised(case: Case) -> bool:
    """FSDP1 was told to broadcast rank 0's parameters."""
    return any(
        event.name == "FullyShardedDataParallel" and event.arguments.get("sync_module_states")
        for trace in case.traces
        for event in trace.of(Call)
    )
