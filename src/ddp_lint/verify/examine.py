"""A run as the reports and the oracles see it: its collectives aligned, and where they part."""

from __future__ import annotations

from ddp_lint.verify.match import Ending, mismatches, rows
from ddp_lint.verify.options import RunResult
from ddp_lint.verify.results import Examined
from ddp_lint.verify.trace import Collective

_ENDINGS = {
    "completed": Ending.COMPLETED,
    "stalled": Ending.STALLED,
    "stopped": Ending.UNKNOWN,
    "not_started": Ending.UNKNOWN,
}


def examine(run: RunResult) -> Examined:
    """Aligns the ranks' streams. What a rank would have called that the launcher stopped is unknown, not missing."""
    streams = {outcome.rank: tuple(outcome.trace.of(Collective)) for outcome in run.ranks}
    endings = {outcome.rank: _ENDINGS.get(outcome.how, Ending.FAILED) for outcome in run.ranks}
    return Examined(run, tuple(rows(streams, endings)), tuple(mismatches(streams, endings)))
