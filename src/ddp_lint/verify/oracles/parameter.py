"""Parameters across ranks: after the wrap and after each step under DDP, before the wrap under FSDP.

DDP broadcasts rank 0's parameters when it wraps; FSDP shards what each rank holds, so ranks that start from
different parameters train a model made of pieces of both. Parameters compared after FSDP's gather prove nothing.
"""

from __future__ import annotations

from ddp_lint.verify.compare import REPLICAS_EQUAL, updates
from ddp_lint.verify.oracles import Case, Opinion, _across_ranks
from ddp_lint.verify.trace import Call, Value


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
    after = _across_ranks.compare(case, "parameters", REPLICAS_EQUAL)
    rates = _unlike_values(case, "rate")
    if rates and not after.fired:
        return Opinion((case.evidence("parameter", f"the scheduler leaves a learning rate of {rates}"),))
    unlike = _unlike_values(case, "plateau")
    if unlike and not after.fired:
        return Opinion(doubt=f"the scheduler is given {unlike}: the decision was the same in this run, but need not be")
    if after.fired or not case.sharded or _synchronised(case):
        return after
    before = _across_ranks.compare(case, "parameters", ("before_wrap",), ("none",))
    return before if before.fired or after.blind else after


def _unequal_steps(case: Case) -> dict[int, int]:
    """By rank the optimizer steps of a wrapped model that all its ranks have and do not update alike; {} without one,
    or where the ranks declared their batches uneven (`Join`)."""
    if any(call.name == "join" for trace in case.traces for call in trace.of(Call)):
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
    return any(
        event.name == "FullyShardedDataParallel" and event.arguments.get("sync_module_states")
        for trace in case.traces
        for event in trace.of(Call)
    )
