"""The machine-readable contract: findings as in `check`, with verdict and evidence; discoveries; runs, rank by rank."""

from __future__ import annotations

import json
from typing import Any

from ddp_lint import __version__
from ddp_lint.output import Sources
from ddp_lint.output.json import as_dict
from ddp_lint.verify.options import RankOutcome
from ddp_lint.verify.oracles.case import shown
from ddp_lint.verify.report.notes import notes
from ddp_lint.verify.results import Discovery, Evidence, Examined, Judged, Verification


def render(verification: Verification, sources: Sources, color: bool) -> str:
    return json.dumps(document(verification), indent=2, ensure_ascii=False) + "\n"


def document(verification: Verification) -> dict[str, Any]:
    """The whole contract as plain values."""
    return {
        "version": __version__,
        "target": verification.target,
        "environment": dict(verification.environment),
        "findings": [_finding(judged) for judged in verification.findings],
        "discovered": [_discovery(discovery) for discovery in verification.discovered],
        "not_run": list(verification.not_run),
        "lacks": verification.lacks,
        "runs": [_run(examined) for examined in verification.runs],
    }


def _finding(judged: Judged) -> dict[str, Any]:
    return {
        **as_dict(judged.finding),
        "verdict": judged.verdict.value,
        "reason": judged.reason,
        "evidence": [_evidence(evidence) for evidence in judged.evidence],
    }


def _picked(one: object, *names: str) -> dict[str, Any]:
    return {name: getattr(one, name) for name in names}


def _evidence(evidence: Evidence) -> dict[str, Any]:
    return _picked(evidence, "wrap", "rank", "kind", "message", "path", "line")


def _discovery(discovery: Discovery) -> dict[str, Any]:
    fields = _picked(discovery, "kind", "code", "message", "path", "line", "cause", "fix")
    return {**fields, "evidence": [_evidence(evidence) for evidence in discovery.evidence]}


def _run(examined: Examined) -> dict[str, Any]:
    run = examined.run
    return {
        **_picked(run, "wrap", "model"),
        "stimuli": list(run.stimuli),
        **_picked(run, "outcome", "message"),
        "seconds": round(run.seconds, 3),
        "inputs": run.inputs,
        "notes": notes(examined),
        "mismatch": str(examined.mismatches[0]) if examined.mismatches else None,
        "ranks": [_rank(outcome) for outcome in run.ranks],
    }


def _rank(outcome: RankOutcome) -> dict[str, Any]:
    frame = outcome.last.frame
    last = {
        **_picked(outcome.last, "collective", "module"),
        "path": shown(frame.path) if frame else "",
        "line": frame.line if frame else 0,
        "function": frame.function if frame else "",
    }
    return {**_picked(outcome, "rank", "how", "exit", "signal", "message"), "last": last}
