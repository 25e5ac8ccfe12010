"""Environment variables: what the script wrote against what is in force for who reads it."""

from __future__ import annotations

from ddp_lint.knowledge import table
from ddp_lint.verify.oracles import Case, Opinion
from ddp_lint.verify.trace import Environment


def testify(case: Case) -> Opinion:
    writes = [(rank, event, frame) for rank, event, frame in case.hits(Environment) if not event.final]
    if not writes:
        return Opinion(silent="the line wrote no environment variable")
    asked = False
    for rank, event, frame in writes:
        if event.name in table("environment")["unread"]:
            text = f"the line sets {event.name}, a name that the sources and libraries of torch and NCCL do not contain"
            return Opinion((case.evidence("environment", text, rank=rank, frame=frame),))
        final = _final(case, rank, event)
        in_force = final.in_force if final else event.in_force
        asked = asked or in_force is not None
        if in_force is not None and in_force != event.value:
            text = f"{event.name}={event.value} has no effect: {_when(event)}, and {in_force!r} is in force"
            return Opinion((case.evidence("environment", text, rank=rank, frame=frame),))
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
