"""A run as the reports and the oracles see it: its collectives aligned, and where they diverge."""

from __future__ import annotations

from ddp_lint.verify.match import mismatches, rows
from ddp_lint.verify.options import RunResult
from ddp_lint.verify.outcome import aligned
from ddp_lint.verify.results import Examined


def examine(run: RunResult) -> Examined:
    """Aligns the ranks' streams."""
    streams, endings = aligned(run.ranks)
    return Examined(run, tuple(rows(streams, endings)), tuple(mismatches(streams, endings)))
