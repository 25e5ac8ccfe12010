"""Comments that suppress a finding, written where Python takes a comment."""

from __future__ import annotations

import io
import re
import tokenize

from ddp_lint.findings import Edit, Finding, Span
from ddp_lint.rules.registry import rules_for_text

_OURS = re.compile(r"#\s*ddp-lint:\s*ignore\[(?P<codes>[^\]]*)\]")


def ignoring(finding: Finding, lines: list[str]) -> Edit | None:
    """The edit that adds `# ddp-lint: ignore[CODE]` for a finding; None where no line of it takes a comment.

    A comment that is there gets one more code. A comment covers a finding on any line of its span, so the last line
    that can take one gets it: behind a call over several lines, not within its arguments.
    """
    span = finding.span
    is_text = bool(rules_for_text(span.path.rpartition("/")[2], lines[0] if lines else ""))
    free = set(range(1, len(lines) + 1)) if is_text else _free_lines(lines)
    for number in range(min(span.end_line, len(lines)), span.line - 1, -1):
        line = lines[number - 1]
        if number not in free or line.rstrip().endswith("\\"):
            continue
        if found := _OURS.search(line):
            column = found.end("codes") + 1
            return Edit(Span(span.path, number, column, number, column, span.cell), f", {finding.code}")
        column = len(line.rstrip()) + 1
        place = Span(span.path, number, column, number, len(line) + 1, span.cell)
        return Edit(place, f"  # ddp-lint: ignore[{finding.code}]")
    return None


def _free_lines(lines: list[str]) -> set[int]:
    """The lines whose end is code or a comment, and no part of a string that goes on."""
    free = set(range(1, len(lines) + 1))
    try:
        for token in tokenize.generate_tokens(io.StringIO("\n".join(lines) + "\n").readline):
            if token.type not in (tokenize.NEWLINE, tokenize.NL, tokenize.DEDENT, tokenize.INDENT):
                free.difference_update(range(token.start[0], token.end[0]))
    except (tokenize.TokenError, SyntaxError, IndentationError):
        return set()
    return free
