"""What ended a rank, and what hid it: exceptions, deaths, exits."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ddp_lint.knowledge.signatures import Signature, explain, secondary
from ddp_lint.verify.cpu_limits import cpu_limit
from ddp_lint.verify.oracles.case import Case, Opinion
from ddp_lint.verify.results import Evidence
from ddp_lint.verify.trace import Call, End, Exit, NoGrad, Raised, Trace
from ddp_lint.verify.wording import on_one_line

_LOCAL_RANK = re.compile(r"--local[-_]rank\b")
#: The status with which `argparse` ends a program.
_REFUSED = 2


def exception(case: Case) -> Opinion:
    """Exceptions and deaths: at the finding's lines, or with a text that is known to come from what the rule looks
    for."""
    limit = ""
    for trace in case.traces:
        for event in trace.of(Raised):
            text = f"{event.type}: {event.message}"
            if event.where in ("caught", "ignored") or secondary(text):
                continue
            limit = (case.run.device == "cpu" and cpu_limit(text, event.phase)) or limit
            if limit:
                continue
            frame = case.hit(event)
            known = explain(text)
            mine = known is not None and case.situation.finding.code in known.codes
            if frame is not None or (mine and case.ran):
                linked = frame is not None or case.speaks_of(_left_out(trace, known))
                at = frame if linked else event.site
                return case.fires("exception", on_one_line(text), rank=trace.rank, frame=at, linked=linked)
    return _death(case, limit)


def _left_out(trace: Trace, known: Signature | None) -> list[str]:
    """The parameters that an error about missing gradients is about: torch's message gives indices at most."""
    unused = known is not None and known.kind == "ddp-unused-params"
    return [name for event in trace.of(NoGrad) for name in event.names] if unused else []


def _death(case: Case, limit: str) -> Opinion:
    """A rank that a signal ended has raised nothing: its last user line decides."""
    for outcome in case.run.ranks:
        frame = outcome.last.frame
        if outcome.how in ("signal", "oom") and frame and frame.line in case.situation.lines:
            text = f"rank {outcome.rank} died here of {outcome.signal}"
            return case.fires("exception", text, rank=outcome.rank, frame=frame)
    if limit:
        return Opinion(backend=f"{limit}: run with --device cuda")
    return Opinion(silent="no exception was raised here")


def arguments(case: Case) -> Opinion:
    """The parser refused an argument that the launcher passes, and ended the rank with the status of `argparse`."""
    for outcome in case.run.ranks:
        known = explain(outcome.log) if outcome.exit == _REFUSED and case.counts.get(outcome.rank) else None
        if known is not None and case.situation.finding.code in known.codes:
            printed = [line for line in outcome.log.splitlines() if known.searches.search(line)]
            return case.fires("arguments", on_one_line(printed[-1]), rank=outcome.rank)
    ends = [end for trace in case.traces if (end := trace.last(End)) is not None]
    if any(_LOCAL_RANK.match(argument) for end in ends for argument in end.arguments):
        return Opinion(silent="the parser took all arguments")
    return Opinion(backend="no launcher passed --local-rank: start it by torch.distributed.launch")


def exit(case: Case) -> Opinion:
    """Exits that hide a failure: status 0 while an exception is in flight, was swallowed, or while peers still wait."""
    fired = [*_exits(case), *_swallowed(case), *_in_threads(case), *_children(case)]
    if fired:
        return Opinion(tuple(fired))
    exits = [f"{event.how}({event.status})" for _, event, _ in case.hits(Exit)]
    if exits:
        return Opinion(silent=f"{exits[0]} ended the process with no failure in flight")
    return Opinion(silent="no failure was hidden from the launcher")


def _exits(case: Case) -> Iterator[Evidence]:
    """Of the rank that left first, then of those that may have done so because of it."""
    for rank, event, frame in sorted(case.hits(Exit), key=lambda hit: hit[1].t):
        if event.status == 0 and event.pending:
            text = f"{event.how}(0) while {event.pending} is in flight: the launcher reports success"
            yield case.evidence("exit", text, rank=rank, frame=frame)
        elif event.status == 0 and (test := _branch(case)):
            text = f"{event.how}(0) ended the rank here, under `{test}`: the launcher reports success"
            yield case.evidence("exit", text, rank=rank, frame=frame)


def _branch(case: Case) -> str:
    """The test of the `if` that the finding is under: what it reports is no exception, but the rank left there."""
    tests = [guard.text for guard in case.situation.guards if guard.wanted is not None]
    return tests[-1] if tests else ""


def _swallowed(case: Case) -> Iterator[Evidence]:
    """The handler ran, and the rank went on to exit with status 0."""
    for outcome in case.run.ranks:
        if not case.counts.get(outcome.rank) or outcome.exit != 0:
            continue
        for event in outcome.trace.of(Raised):
            function = case.situation.function or "<module>"
            same_place = any(frame.function == function for frame in event.frames)
            if event.where == "caught" and same_place:
                text = f"{event.type}: {event.message} is swallowed here, and the rank exits with status 0"
                yield case.evidence("exit", text, rank=outcome.rank)
                return


def _in_threads(case: Case) -> Iterator[Evidence]:
    for outcome in case.run.ranks:
        for event in outcome.trace.of(Raised):
            frame = case.named(event)
            if event.where == "thread" and frame and outcome.exit == 0:
                text = f"{event.type} ended a thread, and the rank exits with status 0"
                yield case.evidence("exit", text, rank=outcome.rank, frame=frame)


def _children(case: Case) -> Iterator[Evidence]:
    """A process that this rank started failed, and the rank exits with status 0 all the same."""
    for outcome in case.run.ranks:
        if outcome.exit != 0 or not case.counts.get(outcome.rank):
            continue
        for event in outcome.trace.of(Call):
            status = event.arguments.get("status") if event.name == "process_exit" else 0
            if status:
                text = f"a child process ended with status {status}, and the rank exits with status 0"
                yield case.evidence("exit", text, rank=outcome.rank, frame=case.hit(event) or event.site)
                return
