"""The wrapped run against one process without a wrapper: what silent damage cannot hide from."""

from __future__ import annotations

from ddp_lint.verify.compare import deviation
from ddp_lint.verify.oracles import Case, Opinion
from ddp_lint.verify.trace import Reference


def testify(case: Case) -> Opinion:
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
