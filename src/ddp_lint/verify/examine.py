"""A run as the reports and the oracles see it: its collectives aligned, and where they diverge."""

from __future__ import annotations

import dataclasses

from ddp_lint.verify.match import mismatches, rows
from ddp_lint.verify.options import RunResult
from ddp_lint.verify.outcome import aligned
from ddp_lint.verify.replica_drift import averaged_flat
from ddp_lint.verify.results import Examined


def examine(run: RunResult) -> Examined:
    """Aligns the ranks' streams."""
    traces = averaged_flat([outcome.trace for outcome in run.ranks]) if run.ranks else []
    ranks = tuple(dataclasses.replace(one, trace=trace) for one, trace in zip(run.ranks, traces, strict=True))
    run = dataclasses.replace(run, ranks=ranks)
    streams, endings = aligned(run.ranks)
    return Examined(run, tuple(rows(streams, endings)), tuple(mismatches(streams, endings)))
