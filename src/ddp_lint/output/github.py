"""Workflow commands of GitHub Actions: each finding becomes an annotation of the changed lines."""

from __future__ import annotations

from ddp_lint.findings import Confidence, Finding
from ddp_lint.output import Run, in_file, in_lines, one_line, visible, with_cell


def render(run: Run) -> str:
    return "".join(_command(f) for f in run.findings) + "".join(
        f"::error file={_property(visible(path))}::{_data(reason)}\n" for path, reason in run.errors
    )


def _command(finding: Finding) -> str:
    span = in_file(finding.span)
    level = "error" if finding.confidence is Confidence.HIGH else "warning"
    where = f"file={_property(visible(span.path))},line={span.line},endLine={span.end_line}"
    if span.line == span.end_line:  # GitHub takes columns only for a single line
        where += f",col={span.column},endColumn={span.end_column}"
    text = in_lines(finding, with_cell(finding.span, finding.message))
    title = f"ddp-lint {finding.code} ({finding.slug})"
    # The plain text after the command is what the log shows.
    shown = f"{one_line(span.path)}:{span.line}: {finding.code} {text}"
    return f"::{level} {where},title={_property(title)}::{_data(shown)}\n"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
