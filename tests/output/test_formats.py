"""Every format: its golden text, and what its readers require of it."""

from __future__ import annotations

import dataclasses
import json
import pathlib
import re
import xml.etree.ElementTree as ET
from collections.abc import Callable
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddp_lint.config import FORMATS
from ddp_lint.findings import Confidence, Finding, Label, Span
from ddp_lint.output import Run, Sources, render
from ddp_lint.rules.registry import documented

from .samples import BARRIER, ERRORS, FINDINGS, SOURCES, run

SARIF = json.loads((pathlib.Path(__file__).parent / "sarif-2.1.0.schema.json").read_text())
EMPTY = Run([])
_PLACE = ("path", "line", "column", "end_line", "end_column")


@pytest.mark.parametrize("output_format", [f for f in FORMATS if f != "sarif"])
def test_golden(output_format: str, golden: Callable[[str, str], None]) -> None:
    golden(f"{output_format}.txt", re.sub(r'"version": ".*?"', '"version": "X"', render(run(), output_format)))


@pytest.mark.parametrize("output_format", ["full", "concise"])
def test_golden_in_color(output_format: str, golden: Callable[[str, str], None]) -> None:
    text = render(run(color=True), output_format)
    golden(f"{output_format}.color.txt", text)
    assert re.sub(r"\x1b\[[0-9;]*m", "", text) == render(run(), output_format)


def test_json_is_the_contract() -> None:
    document = json.loads(render(run(), "json"))
    assert document.keys() == {"version", "findings", "errors"}
    row = next(f for f in document["findings"] if f["code"] == "DDP101")
    contract = {"code", "slug", "message", *_PLACE, "confidence", "labels", "notes", "fix", "fingerprint"}
    assert contract <= row.keys()
    assert (row["path"], row["line"], row["column"], row["end_line"], row["end_column"]) == (
        "src/train.py",
        9,
        9,
        9,
        23,
    )
    assert row["labels"][0].keys() == {*_PLACE, "message"}
    assert next(f for f in document["findings"] if f["code"] == "DDP103")["fix"] is None


# ---- SARIF


def sarif(given: Run) -> dict[str, object]:
    log = json.loads(render(given, "sarif"))
    jsonschema.Draft4Validator(SARIF, format_checker=jsonschema.FormatChecker()).validate(log)
    (only,) = log["runs"]
    return dict(only)


def test_sarif_is_valid_and_complete(golden: Callable[[str, str], None]) -> None:
    log: dict[str, list[dict[str, object]]] = sarif(run())  # type: ignore[assignment]
    results = [{key: value for key, value in each.items() if key != "ruleIndex"} for each in log["results"]]
    golden("sarif.results.txt", json.dumps(results, indent=2, ensure_ascii=False) + "\n")
    assert log["invocations"][0]["executionSuccessful"] is False
    assert "SRCROOT" in log["originalUriBaseIds"]
    assert sarif(EMPTY)["results"] == []


def test_sarif_describes_every_rule() -> None:
    rules = sarif(EMPTY)["tool"]["driver"]["rules"]  # type: ignore[index]
    assert [rule["id"] for rule in rules] == list(documented())
    for rule in rules:
        assert rule["help"]["markdown"].startswith(f"# {rule['id']}: {rule['name']}\n")
        assert rule["helpUri"].endswith(f"{rule['id']}.md")


def test_sarif_results_point_at_their_rules() -> None:
    log: dict[str, Any] = sarif(run())
    rules = log["tool"]["driver"]["rules"]
    of_rules = [result for result in log["results"] if "ruleIndex" in result]
    assert of_rules
    assert [rules[result["ruleIndex"]]["id"] for result in of_rules] == [result["ruleId"] for result in of_rules]


# ---- services


def test_github_commands_are_one_line_each() -> None:
    lines = render(run(), "github").splitlines()
    assert len(lines) == len(FINDINGS) + len(ERRORS)
    assert all(line.startswith(("::error ", "::warning ")) for line in lines)
    assert any("file=a%3Ab.py" in line for line in lines)


def test_gitlab_has_what_gitlab_requires() -> None:
    rows = json.loads(render(run(), "gitlab"))
    for row in rows:
        assert row.keys() >= {"description", "check_name", "fingerprint", "severity", "location"}
        assert row["severity"] in ("info", "minor", "major", "critical", "blocker")
    assert len({row["fingerprint"] for row in rows}) == len(rows)
    # The same file in two projects of one repository: its findings differ by their paths alone.
    twins = [dataclasses.replace(BARRIER, span=dataclasses.replace(BARRIER.span, path=p)) for p in ("a/t.py", "b/t.py")]
    marks = [row["fingerprint"] for row in json.loads(render(Run(twins), "gitlab"))]
    assert marks[0] == BARRIER.fingerprint
    assert marks[1] != marks[0]


@pytest.mark.parametrize(("given", "failures", "errors"), [(run(), len(FINDINGS), len(ERRORS)), (EMPTY, 0, 0)])
def test_junit_counts(given: Run, failures: int, errors: int) -> None:
    root = ET.fromstring(render(given, "junit"))
    for tag, attribute, number in (("failure", "failures", failures), ("error", "errors", errors)):
        assert len(root.findall(f".//{tag}")) == number
        assert sum(int(suite.get(attribute, "")) for suite in root) == number
    assert sum(int(suite.get("tests", "")) for suite in root) >= 1


# ---- anything


@pytest.mark.parametrize("output_format", FORMATS)
def test_nothing_to_say(output_format: str) -> None:
    text = render(EMPTY, output_format)
    assert text == "" or text.endswith("\n")


def _span(line: int, column: int, lines: int, end: int) -> Span:
    return Span("src/train.py", line, column, line + lines, end if lines else max(end, column))


_text = st.text(st.characters(codec="utf-8"), max_size=30)
_spans = st.builds(_span, st.integers(1, 20), st.integers(1, 60), st.integers(0, 8), st.integers(1, 80))
_labels = st.lists(st.builds(Label, _spans, _text), max_size=4).map(tuple)
_findings = st.builds(
    Finding, st.just("DDP101"), st.just("s"), _text, _spans, st.sampled_from(Confidence), labels=_labels, help=_text
)


@given(_findings)
@settings(max_examples=60)
def test_any_spans_and_any_text(finding: Finding) -> None:
    given = Run([finding], [], Sources(SOURCES))
    for output_format in FORMATS:
        render(given, output_format)
    ET.fromstring(render(given, "junit"))


@pytest.mark.parametrize("source", ["", "\n", "\t" * 5000, "a" * 1_000_000, "日" * 300])
def test_any_source(source: str) -> None:
    finding = Finding("DDP101", "s", "m", Span("t.py", 1, 1, 1, 500_000), Confidence.HIGH)
    shown = render(Run([finding], [], Sources({"t.py": source})), "full")
    assert max(map(len, shown.splitlines())) < 400


def test_the_excerpt_marks_what_the_span_says() -> None:
    rows = render(Run([BARRIER], [], Sources(SOURCES)), "full").splitlines()
    marked = next(n for n, row in enumerate(rows) if "^" in row)
    start, end = rows[marked].index("^"), rows[marked].rindex("^") + 1
    assert rows[marked - 1][start:end] == "dist.barrier()"
