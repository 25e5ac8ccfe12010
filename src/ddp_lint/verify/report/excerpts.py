"""Source code on the page: the lines around a message, with the marked ranges that it is about."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from html import escape

from ddp_lint.findings import Finding, Label, Span
from ddp_lint.output import Sources

#: Lines of context around the primary span.
_CONTEXT = 2


def of_finding(finding: Finding, sources: Sources) -> str:
    """The lines around the finding and its labels, file by file."""
    return excerpts([Label(finding.span, ""), *finding.labels], finding.span, sources)


def of_line(path: str, line: int, sources: Sources) -> str:
    """The lines around a line, "" where the file cannot be read."""
    span = whole_line(path, line, sources)
    return excerpts([Label(span, "")], span, sources) if span else ""


def of_branch(path: str, lines: Sequence[int], sources: Sources) -> str:
    """The calls at these lines of one file, with the conditions that decide who makes them."""
    spans = [span for line in dict.fromkeys(lines) if (span := whole_line(path, line, sources))]
    if not spans:
        return ""
    branches = {
        number: f"decides whether line {span.line} runs"
        for span in spans
        for number in _branches(sources.lines(path), span.line)
        if number not in lines
    }
    labels = [Label(span, "") for span in spans]
    for number, message in branches.items():
        span = whole_line(path, number, sources)
        labels += [Label(span, message)] if span else []
    return excerpts(labels, spans[0], sources)


def whole_line(path: str, line: int, sources: Sources) -> Span | None:
    """The span of a line without its indentation, None when there is no such line."""
    lines = sources.lines(path) if path else []
    if not 0 < line <= len(lines):
        return None
    text = lines[line - 1]
    return Span(path, line, len(text) - len(text.lstrip()) + 1, line, len(text.rstrip()) + 1)


def _branches(lines: Sequence[str], line: int) -> Iterator[int]:
    """The lines of the innermost condition or loop around a line, and of a condition before it that leaves."""
    try:
        tree = ast.parse("\n".join(lines))
    except (SyntaxError, ValueError, RecursionError):
        return
    around = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.If | ast.While | ast.For) and node.lineno < line <= (node.end_lineno or node.lineno)
    ]
    if around:
        yield max(around, key=lambda node: node.lineno).lineno
    for node in ast.walk(tree):
        leaves = (ast.Return, ast.Break, ast.Continue, ast.Raise)
        if isinstance(node, ast.If) and (node.end_lineno or 0) < line and isinstance(node.body[-1], leaves):
            shared = [outer for outer in around if outer.lineno < node.lineno <= (outer.end_lineno or 0)]
            if shared:
                yield node.lineno


def excerpts(labels: Sequence[Label], primary: Span, sources: Sources) -> str:
    """The lines around the labels, file by file."""
    paths = dict.fromkeys(label.span.path for label in labels)
    tables = []
    for path in paths:
        lines = sources.lines(path)
        here = [label for label in labels if label.span.path == path]
        if lines:
            tables.append(_excerpt(path, lines, here, primary))
    return "".join(tables)


def _excerpt(path: str, lines: Sequence[str], labels: Sequence[Label], primary: Span) -> str:
    wanted: set[int] = set()
    for label in labels:
        context = _CONTEXT if label.span == primary else 0
        wanted |= set(range(label.span.line - context, min(label.span.end_line, label.span.line + 6) + context + 1))
    rows, previous = [], 0
    for number in sorted(line for line in wanted if 1 <= line <= len(lines)):
        if previous and number > previous + 1:
            rows.append('<tr class="gap"><td>⋮</td><td></td></tr>')
        previous = number
        rows.append(f"<tr><td>{number}</td><td>{_marked(lines[number - 1], number, labels, primary)}</td></tr>")
        for label in labels:
            if label.span.end_line == number and label.message:
                kind = "note primary" if label.span == primary else "note"
                rows.append(f'<tr class="{kind}"><td></td><td>↑ {escape(label.message)}</td></tr>')
    return f'<div class="code"><table><caption class="mono">{escape(path)}</caption>{"".join(rows)}</table></div>'


def _marked(text: str, number: int, labels: Sequence[Label], primary: Span) -> str:
    """The line with its marked ranges; where marks overlap, the one that starts first is used."""
    out, at = [], 0
    marks = sorted((*_columns(text, number, label.span), label.span == primary) for label in labels)
    for start, end, is_primary in marks:
        if start < max(at, 0) or end <= start:
            continue
        kind = "" if is_primary else ' class="label"'
        out.append(f"{escape(text[at:start])}<mark{kind}>{escape(text[start:end])}</mark>")
        at = end
    return "".join(out) + escape(text[at:])


def _columns(text: str, number: int, span: Span) -> tuple[int, int]:
    """The stretch of a line that a span covers, as character offsets; empty when it does not touch the line."""
    if not span.line <= number <= span.end_line:
        return 0, 0
    start = span.column - 1 if number == span.line else len(text) - len(text.lstrip())
    end = span.end_column - 1 if number == span.end_line else len(text.rstrip())
    return start, min(end, len(text))
