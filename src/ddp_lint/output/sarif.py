"""SARIF 2.1.0, for code scanning services and editors."""

from __future__ import annotations

import functools
import json
import os
import pathlib
import urllib.parse
from collections.abc import Iterable
from typing import Any

from ddp_lint import __version__
from ddp_lint.findings import Applicability, Confidence, Finding, Fix, Label, RankTrace, Span
from ddp_lint.output import DOCS, Run, in_file, in_lines, with_cell
from ddp_lint.rules.base import Documented
from ddp_lint.rules.page import Page
from ddp_lint.rules.registry import documented

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
#: The name, with its version, of how the engine makes fingerprints.
FINGERPRINT = "ddpLint/v1"
_LEVEL = {Confidence.HIGH: "error", Confidence.MEDIUM: "warning", Confidence.LOW: "note"}
_PRECISION = {Confidence.HIGH: "high", Confidence.MEDIUM: "medium", Confidence.LOW: "low"}
_ROOT = "SRCROOT"


def render(run: Run) -> str:
    return json.dumps(document([result(f) for f in run.findings], run.errors), indent=2, ensure_ascii=False) + "\n"


def document(results: list[dict[str, Any]], errors: Iterable[tuple[str, str]] = ()) -> dict[str, Any]:
    """The whole log around results; each result's `ruleIndex` is filled in here."""
    index = {code: n for n, code in enumerate(documented())}
    notifications = [_notification(path, reason) for path, reason in errors]
    driver = {
        "name": "ddp-lint",
        "version": __version__,
        "informationUri": DOCS.partition("/blob/")[0],
        "rules": _rules(),
    }
    run = {
        "tool": {"driver": driver},
        "columnKind": "unicodeCodePoints",
        "originalUriBaseIds": {_ROOT: {"uri": pathlib.Path.cwd().as_uri() + "/"}},
        "automationDetails": {"id": "ddp-lint/"},
        "invocations": [{"executionSuccessful": not notifications, "toolExecutionNotifications": notifications}],
        "results": [{**result, "ruleIndex": index.get(result["ruleId"], -1)} for result in results],
    }
    return {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}


def result(finding: Finding) -> dict[str, Any]:
    """One finding. Labels become related locations, the witness a code flow with a thread for each rank."""
    text = in_lines(finding, with_cell(finding.span, finding.message))
    out: dict[str, Any] = {
        "ruleId": finding.code,
        "level": _LEVEL[finding.confidence],
        "message": {"text": text},
        "locations": [location(finding.span)],
        "partialFingerprints": {FINGERPRINT: finding.fingerprint},
        "properties": {"confidence": finding.confidence.value},
    }
    if related := (*finding.labels, *finding.paths):
        out["relatedLocations"] = [{"id": n, **location(at.span, at.message)} for n, at in enumerate(related, 1)]
    if threads := [_thread(trace) for trace in finding.witness if trace.steps]:
        out["codeFlows"] = [{"threadFlows": threads}]
    in_text = finding.fix and not any(edit.span.cell for edit in finding.fix.edits)
    if finding.fix and in_text and finding.fix.applicability is not Applicability.DISPLAY:
        out["fixes"] = [_fix(finding.fix)]
    return out


def _notification(path: str, reason: str) -> dict[str, Any]:
    location = {"physicalLocation": {"artifactLocation": _artifact(path)}}
    return {"level": "error", "message": {"text": reason}, "locations": [location]}


@functools.cache
def _rules() -> list[dict[str, Any]]:
    return [_rule(rule) for rule in documented().values()]


def _rule(rule: type[Documented]) -> dict[str, Any]:
    markdown = Page.of(rule).markdown()
    return {
        "id": rule.code,
        "name": rule.slug,
        "shortDescription": {"text": rule.summary},
        "fullDescription": {"text": Page.of(rule).sections.get("What it does", rule.summary)},
        "help": {"text": markdown, "markdown": markdown},
        "helpUri": DOCS.format(code=rule.code),
        "defaultConfiguration": {"enabled": rule.default, "level": _LEVEL[rule.confidence]},
        "properties": {"precision": _PRECISION[rule.confidence], "tags": ["distributed", "pytorch"]},
    }


def _artifact(path: str) -> dict[str, Any]:
    """Paths below the working directory are relative to it; others are what they are."""
    if pathlib.PurePath(path).is_absolute():
        return {"uri": pathlib.PurePath(path).as_uri()}
    return {"uri": urllib.parse.quote(os.fsencode(path)), "uriBaseId": _ROOT}


def _region(span: Span) -> dict[str, int]:
    return {"startLine": span.line, "startColumn": span.column, "endLine": span.end_line, "endColumn": span.end_column}


def location(span: Span, message: str = "") -> dict[str, Any]:
    """A span as SARIF has it."""
    physical = {"artifactLocation": _artifact(span.path), "region": _region(in_file(span))}
    text = with_cell(span, message) if message else ""
    return {"physicalLocation": physical, **({"message": {"text": text}} if text else {})}


def _thread(trace: RankTrace) -> dict[str, Any]:
    return {"id": trace.rank, "locations": [_step(n, step) for n, step in enumerate(trace.steps, 1)]}


def _step(number: int, step: Label) -> dict[str, Any]:
    return {"executionOrder": number, "location": location(step.span, step.message)}


def _fix(fix: Fix) -> dict[str, Any]:
    changes = []
    for path in dict.fromkeys(edit.span.path for edit in fix.edits):
        replacements = [
            {"deletedRegion": _region(edit.span), "insertedContent": {"text": edit.text}}
            for edit in fix.edits
            if edit.span.path == path
        ]
        changes.append({"artifactLocation": _artifact(path), "replacements": replacements})
    return {"description": {"text": fix.message}, "artifactChanges": changes}
