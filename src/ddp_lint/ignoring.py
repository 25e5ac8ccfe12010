"""Comments that accept findings, written into source text: ``# ddp-lint: ignore[DDP101] TODO: say why``.

A comment goes behind the line that it is about where there is room, else on a line of its own above the statement. No
line is broken: the text means what it did, or stays as it is.
"""

from __future__ import annotations

import ast
import dataclasses
import io
import re
import tokenize
from collections.abc import Iterable, Sequence

from ddp_lint.findings import UNCHECKED, Edit, Finding, Span
from ddp_lint.source.parsing import CannotParse, parse

#: What the author replaces by the reason.
REASON = "TODO: say why"
_WIDTH = 100
_OURS = re.compile(r"#\s*ddp-lint:\s*ignore\[(?P<codes>[^\]#]*)\]")
#: No comment hides these: they are about the file, or about a comment.
_NEVER = UNCHECKED | {"DDP002"}


@dataclasses.dataclass(frozen=True)
class _Line:
    """A physical line of code: whether it can end with a comment, and where its statement starts."""

    takes_comment: bool
    statement: int


def with_ignores(text: str, findings: Iterable[Finding], *, python: bool) -> str:
    """The text with a comment for each of the findings that can be suppressed; lines count as `findings` count them."""
    lines = text.split("\n")
    layout = _python_layout(text) if python else _text_layout(lines)
    behind: dict[int, set[str]] = {}
    above: dict[int, set[str]] = {}
    for finding in findings:
        if finding.code in _NEVER or finding.span.line not in layout:
            continue
        at = _line_behind(finding, lines, layout) if python else None
        if at is not None:
            behind.setdefault(at, set()).add(finding.code)
        else:
            above.setdefault(layout[finding.span.line].statement, set()).add(finding.code)
    for number, codes in behind.items():
        lines[number - 1] = _with_codes(lines[number - 1], codes)
    for number, codes in sorted(above.items(), reverse=True):
        line = lines[number - 1]
        indent, end = line[: len(line) - len(line.lstrip())], "\r" * line.endswith("\r")
        lines.insert(number - 1, f"{indent}{_comment(codes)}{end}")
    after = "\n".join(lines)
    return after if not python or _means_the_same(text, after) else text


def ignoring(finding: Finding, lines: Sequence[str], *, python: bool) -> Edit | None:
    """The same for one finding of a text, as an edit; None where no comment can be written."""
    before = [*lines]
    after = with_ignores("\n".join(before), [finding], python=python).split("\n")
    at = next((n for n, (old, new) in enumerate(zip(before, after, strict=False)) if old != new), None)
    if at is None:
        return None
    old, new = before[at], after[at]
    if len(after) > len(before):  # on a line of its own
        return Edit(Span(finding.span.path, at + 1, 1, at + 1, 1, finding.span.cell), f"{new}\n")
    same = next((n for n, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), len(old))
    return Edit(Span(finding.span.path, at + 1, same + 1, at + 1, len(old) + 1, finding.span.cell), new[same:])


def _line_behind(finding: Finding, lines: list[str], layout: dict[int, _Line]) -> int | None:
    """The first line of the finding that can take the comment; None where it would be too long, or other comments
    are there, which may have to be the last."""
    for number in range(finding.span.line, finding.span.end_line + 1):
        line = lines[number - 1].rstrip("\r")
        if number in layout and layout[number].takes_comment:
            if _OURS.search(line):
                return number
            if "#" not in line and len(line) + len(_comment({finding.code})) + 2 <= _WIDTH:
                return number
    return None


def _with_codes(line: str, codes: set[str]) -> str:
    """The line with the comment, or with the codes in the one that it has."""
    end = "\r" * line.endswith("\r")
    line = line.rstrip("\r")
    if match := _OURS.search(line):
        has = [code.strip() for code in match["codes"].split(",") if code.strip()]
        every = ", ".join([*has, *sorted(codes - {*has})])
        return f"{line[: match.start('codes')]}{every}{line[match.end('codes') :]}{end}"
    return f"{line.rstrip()}  {_comment(codes)}{end}"


def _comment(codes: set[str]) -> str:
    return f"# ddp-lint: ignore[{', '.join(sorted(codes))}] {REASON}"


def _python_layout(text: str) -> dict[int, _Line]:
    """The lines of code. Where one ends within a string or with a backslash, Python has no token for its end."""
    found: dict[int, _Line] = {}
    ends: set[int] = set()
    start = 0
    try:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type in (tokenize.NEWLINE, tokenize.NL):
                ends.add(token.start[0])
            if token.type == tokenize.NEWLINE:
                for number in range(start, token.start[0] + 1):
                    found[number] = _Line(number in ends, start)
                start = 0
            elif token.type not in _LAYOUT and not start:
                start = token.start[0]
    except (tokenize.TokenError, SyntaxError):
        pass
    return found


_LAYOUT = (tokenize.NL, tokenize.COMMENT, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)


def _text_layout(lines: list[str]) -> dict[int, _Line]:
    """Shell, Dockerfiles and YAML: comments are on lines of their own (behind an ENV they would be part of it), and
    none is put into a command that goes on from the line before."""
    ends = [True, *(not line.rstrip().endswith("\\") for line in lines)]
    return {number: _Line(False, number) for number in range(1, len(lines) + 1) if ends[number - 1]}


def _means_the_same(before: str, after: str) -> bool:
    try:
        return ast.dump(parse(before)) == ast.dump(parse(after))
    except CannotParse:
        return False
