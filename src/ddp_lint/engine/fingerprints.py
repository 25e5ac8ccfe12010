"""Fingerprints: what identifies a finding when the lines around it move."""

from __future__ import annotations

import collections
import dataclasses
import hashlib

from ddp_lint.findings import Finding, Span
from ddp_lint.source.file import SourceFile


def with_fingerprints(findings: list[Finding], file: SourceFile, path: str) -> list[Finding]:
    """The findings of one file, sorted, each with its fingerprint: a digest of the code, the file's `path` inside its
    project, the source text of the primary span without its layout, and the how-maniest of such twins it is."""
    seen: collections.Counter[str] = collections.Counter()
    marked = []
    for finding in sorted(findings, key=lambda f: f.sort_key):
        text = " ".join(_text(file, finding.span).split())
        key = "\0".join((finding.code, path, text))
        number = seen[key]
        seen[key] += 1
        digest = hashlib.sha256(f"{key}\0{number}".encode("utf-8", "surrogatepass")).hexdigest()[:32]
        marked.append(dataclasses.replace(finding, fingerprint=digest))
    return marked


def _text(file: SourceFile, span: Span) -> str:
    lines = file.lines[span.line - 1 : span.end_line]
    if not lines:
        return ""
    lines[-1] = lines[-1][: span.end_column - 1]
    lines[0] = lines[0][span.column - 1 :]
    return "\n".join(lines)
