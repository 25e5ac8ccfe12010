"""The machine-readable contract: every field of every finding. Lines and columns are 1-based, end columns exclusive."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from ddp_lint import __version__
from ddp_lint.findings import Finding, Fix, Label, RankTrace, Span
from ddp_lint.output import Run


def render(run: Run) -> str:
    errors = [{"path": path, "message": message} for path, message in run.errors]
    document = {"version": __version__, "findings": [as_dict(f) for f in run.findings], "errors": errors}
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def as_dict(finding: Finding) -> dict[str, Any]:
    """One finding as the contract has it."""
    return {
        "code": finding.code,
        "slug": finding.slug,
        "message": finding.message,
        **_place(finding.span),
        "confidence": finding.confidence.value,
        "labels": [_label(label) for label in finding.labels],
        "notes": list(finding.notes),
        "help": finding.help,
        "witness": [_trace(trace) for trace in finding.witness],
        "fix": _fix(finding.fix) if finding.fix else None,
        "fingerprint": finding.fingerprint,
        "paths": [_label(label) for label in finding.paths],
    }


def _place(span: Span) -> dict[str, Any]:
    place = dataclasses.asdict(span)
    if not span.cell:
        del place["cell"]
    return place


def _label(label: Label) -> dict[str, Any]:
    return {**_place(label.span), "message": label.message}


def _trace(trace: RankTrace) -> dict[str, Any]:
    return {"rank": trace.rank, "steps": [_label(step) for step in trace.steps]}


def _fix(fix: Fix) -> dict[str, Any]:
    edits = [{**_place(edit.span), "text": edit.text} for edit in fix.edits]
    return {"message": fix.message, "applicability": fix.applicability.value, "edits": edits}
