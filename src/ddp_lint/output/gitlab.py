"""GitLab's Code Quality report (the Code Climate subset that GitLab reads)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator

from ddp_lint.findings import Confidence, Finding, Span
from ddp_lint.output import Run, in_file, with_cell

_SEVERITY = {Confidence.HIGH: "major", Confidence.MEDIUM: "minor", Confidence.LOW: "info"}


def render(run: Run) -> str:
    rows = [
        {
            "description": f"{f.code}: {with_cell(f.span, f.message)}",
            "check_name": f.slug,
            "fingerprint": fingerprint,
            "severity": _SEVERITY[f.confidence],
            "location": {"path": f.span.path, "lines": _lines(in_file(f.span))},
        }
        for f, fingerprint in zip(run.findings, _unique(run.findings), strict=True)
    ]
    return json.dumps(rows, indent=2, ensure_ascii=False) + "\n"


def _lines(span: Span) -> dict[str, int]:
    return {"begin": span.line, "end": span.end_line}


def _unique(findings: Iterable[Finding]) -> Iterator[str]:
    """Fingerprints that no two findings share: GitLab shows one of those that do. Projects within one repository may
    have the same file in the same place."""
    seen: set[str] = set()
    for f in findings:
        mark = f.fingerprint
        if mark in seen:
            mark = hashlib.sha256(f"{mark}\0{f.span.path}".encode("utf-8", "surrogatepass")).hexdigest()[:32]
        seen.add(mark)
        yield mark
