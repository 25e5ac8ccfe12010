"""One line a finding: `path:line:column: CODE message`."""

from __future__ import annotations

from ddp_lint.findings import Applicability
from ddp_lint.output import Run, one_line
from ddp_lint.output.style import Style


def render(run: Run) -> str:
    style = Style(run.color)
    lines = []
    for f in run.findings:
        at = style.dim(":")
        fixable = style.blue("[*] ") if f.fix and f.fix.applicability is Applicability.SAFE else ""
        place = f"{style.bold(one_line(f.span.place))}{at}{f.span.line}{at}{f.span.column}{at}"
        lines.append(f"{place} {style.red(f.code)} {fixable}{f.message}\n")
    return "".join(lines)
