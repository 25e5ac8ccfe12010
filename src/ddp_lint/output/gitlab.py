"""GitLab's Code Quality report (the Code Climate subset that GitLab reads)."""

from __future__ import annotations

import json

from ddp_lint.findings import Confidence
from ddp_lint.output import Run

_SEVERITY = {Confidence.HIGH: "major", Confidence.MEDIUM: "minor", Confidence.LOW: "info"}


def render(run: Run) -> str:
    rows = [
        {
            "description": f"{f.code}: {f.message}",
            "check_name": f.slug,
            "fingerprint": f.fingerprint,
            "severity": _SEVERITY[f.confidence],
            "location": {"path": f.span.path, "lines": {"begin": f.span.line, "end": f.span.end_line}},
        }
        for f in run.findings
    ]
    return json.dumps(rows, indent=2, ensure_ascii=False) + "\n"
