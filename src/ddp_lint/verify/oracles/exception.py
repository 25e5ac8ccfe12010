"""Exceptions and deaths: at the finding's lines, or with a text that is known to come from what the rule looks for."""

from __future__ import annotations

from ddp_lint.knowledge.signatures import explain, secondary
from ddp_lint.verify.cpu_limits import cpu_limit, on_one_line
from ddp_lint.verify.oracles import Case, Opinion
from ddp_lint.verify.trace import Raised


def testify(case: Case) -> Opinion:
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
                at = frame or event.site
                return Opinion(
                    (case.evidence("exception", on_one_line(text), rank=trace.rank, frame=at, linked=bool(frame)),)
                )
    return _death(case, limit)


def _death(case: Case, limit: str) -> Opinion:
    """A rank that a signal ended has raised nothing: its last user line decides."""
    for outcome in case.run.ranks:
        frame = outcome.last.frame
        if outcome.how in ("signal", "oom") and frame and frame.line in case.situation.lines:
            text = f"rank {outcome.rank} died here of {outcome.signal}: {on_one_line(outcome.message)}"
            return Opinion((case.evidence("exception", text, rank=outcome.rank, frame=frame),))
    if limit:
        return Opinion(backend=f"{limit}: run with --device cuda")
    return Opinion(silent="no exception was raised here")
