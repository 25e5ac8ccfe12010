"""The format for people: headline, source with labels, what each rank does, notes, help, and the fix.

DDP101 slug: rank 0 enters barrier() and waits; the other ranks never call it
  --> train.py:41:9
   |
38 |     if rank == 0:
   |        --------- only rank 0 is here
...
41 |         dist.barrier()
   |         ^^^^^^^^^^^^^^
   |
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import unicodedata
from collections.abc import Iterable, Sequence

from ddp_lint.findings import Applicability, Confidence, Finding, Fix, Label, Span
from ddp_lint.fixes import preview
from ddp_lint.output import Run, Sources, call_paths, one_line, without_brackets
from ddp_lint.output.style import Style

#: Lines of context before and after the primary span.
_CONTEXT = 2
#: A span over more lines is shown by its first and last one.
_WHOLE_SPAN = 4
#: Wider source lines are cut around what is marked.
_WIDTH = 120
_TAB = 4
#: A fix that changes more lines than this is shown by its message alone.
_FIX_LINES = 12
_CONTROL_PICTURES = 0x2400


def render(run: Run) -> str:
    return "".join(block(f, run.sources, Style(run.color)) + "\n" for f in run.findings)


def block(finding: Finding, sources: Sources, style: Style) -> str:
    """One finding; ends with a newline."""
    rows = [headline(finding, style), *excerpt(finding, sources, style)]
    rows += _witness(finding, style)
    rows += [f"{style.cyan('note')}: {note}" for note in (*finding.notes, call_paths(finding)) if note]
    if finding.help:
        rows.append(f"{style.cyan('help')}: {finding.help}")
    if finding.fix:
        rows += _fix(finding.fix, sources, style)
    return "".join(f"{row.rstrip()}\n" for row in rows)


def headline(finding: Finding, style: Style) -> str:
    sure = "" if finding.confidence is Confidence.HIGH else style.dim(f" ({finding.confidence.value} confidence)")
    return f"{style.red(finding.code)} {finding.slug}: {style.bold(finding.message)}{sure}"


# ---- the excerpt


@dataclasses.dataclass(frozen=True)
class _Mark:
    """A span to underline and what to say about it."""

    span: Span
    message: str
    primary: bool


@dataclasses.dataclass(frozen=True)
class _Underline:
    """The part of a mark on one line, in columns of the terminal from 0; the text is on a mark's first line."""

    start: int
    end: int
    message: str
    primary: bool


def excerpt(finding: Finding, sources: Sources, style: Style) -> list[str]:
    """The source around the primary span and the labels, file by file."""
    marks = _marks(finding)
    by_file: dict[tuple[str, int], list[_Mark]] = {}
    for mark in marks:
        by_file.setdefault((mark.span.path, mark.span.cell), []).append(mark)
    shown = {place: _shown_lines(of_file, sources.lines(*place)) for place, of_file in by_file.items()}
    width = max((len(str(line)) for lines in shown.values() for line in lines), default=1)
    rows: list[str] = []
    for place, of_file in by_file.items():
        own = place == (finding.span.path, finding.span.cell)
        first = of_file[0].span if own else min(mark.span for mark in of_file)
        arrow = style.blue("-->" if own else ":::")
        rows.append(f"{' ' * width}{arrow} {one_line(first.place)}:{first.line}:{first.column}")
        rows += _file_rows(of_file, shown[place], sources.lines(*place), width, style)
    return rows


def _marks(finding: Finding) -> list[_Mark]:
    """The primary span first; a label on the very same span is its text."""
    own = [label.message for label in finding.labels if label.span == finding.span]
    marks = [_Mark(finding.span, "; ".join(own), True)]
    marks += [_Mark(label.span, label.message, False) for label in finding.labels if label.span != finding.span]
    return list(dict.fromkeys(marks))


def _shown_lines(marks: Iterable[_Mark], lines: Sequence[str]) -> list[int]:
    wanted: set[int] = set()
    for mark in marks:
        wanted.update(_marked_lines(mark))
        if mark.primary:
            wanted.update(_context(mark.span.line, -1, lines))
            wanted.update(_context(mark.span.end_line, 1, lines))
    for line in sorted(wanted):  # a gap of one line is no shorter than the line
        if line + 2 in wanted:
            wanted.add(line + 1)
    return sorted(line for line in wanted if 1 <= line <= len(lines))


def _context(line: int, step: int, lines: Sequence[str]) -> list[int]:
    """Up to two lines next to a line, without blank ones at the far end."""
    near = [line + step * n for n in range(1, _CONTEXT + 1)]
    near = [n for n in near if 1 <= n <= len(lines)]
    while near and not lines[near[-1] - 1].strip():
        near.pop()
    return near


def _marked_lines(mark: _Mark) -> list[int]:
    """The lines that are underlined: of the primary span all, of a long one the first and the last; of others the
    first, which is where a branch, a loop or a `try` says what it is.
    """
    span = mark.span
    last = span.end_line - 1 if span.end_column == 1 and span.end_line > span.line else span.end_line
    lines = range(span.line, last + 1)
    if not mark.primary:
        return [span.line]
    return list(lines) if len(lines) <= _WHOLE_SPAN else [span.line, last]


def _file_rows(
    marks: Sequence[_Mark], shown: Sequence[int], lines: Sequence[str], width: int, style: Style
) -> list[str]:
    bar = style.blue("|")
    rows = [f"{' ' * width} {bar}"] if shown else []
    previous = None
    for line in shown:
        if previous is not None and line > previous + 1:
            rows.append(style.blue("..."))
        previous = line
        on_line = [mark for mark in marks if line in _marked_lines(mark)]
        source = _Line(lines[line - 1], [column for mark in on_line for column in _columns(mark, line, lines)])
        rows.append(f"{style.blue(str(line).rjust(width))} {bar} {source.text}")
        underlines = [_underline(mark, line, lines, source) for mark in on_line]
        rows += [f"{' ' * width} {bar} {row}" for row in _underline_rows(underlines, style)]
    return [*rows, f"{' ' * width} {bar}"] if shown else rows


def _columns(mark: _Mark, line: int, lines: Sequence[str]) -> tuple[int, int]:
    """The part of the line that is marked: characters from 0, the end exclusive, without indentation."""
    text = lines[line - 1]
    start = mark.span.column - 1 if line == mark.span.line else len(text) - len(text.lstrip())
    end = mark.span.end_column - 1 if line == mark.span.end_line else len(text.rstrip())
    return min(start, len(text)), min(end, len(text))


def _underline(mark: _Mark, line: int, lines: Sequence[str], source: _Line) -> _Underline:
    start, end = (source.column(n) for n in _columns(mark, line, lines))
    message = mark.message if line == mark.span.line else ""
    return _Underline(start, max(end, start + 1), message, mark.primary)


#: Of a line without a mark no more is shown than its beginning: few characters have no width.
_UNMARKED = 4 * _WIDTH


class _Line:
    """A source line as the terminal shows it: tabs as spaces, wide characters two columns wide, long lines cut."""

    def __init__(self, text: str, marked: Sequence[int]) -> None:
        self._offsets: Sequence[int]
        if len(text) <= _WIDTH and text.isascii() and text.isprintable() and "##" not in text:  # nearly all
            self._first, self._last, self.text, self._offsets = 0, len(text), text, range(len(text) + 1)
            return
        cells, widths, ends = _cells(text if marked else text[: _UNMARKED + 1])
        first, last = 0, len(cells)
        if ends[-1] > _WIDTH:
            if marked and ends[min(max(marked), last)] > _WIDTH - 10:
                first = max(0, min(marked) - 30)
            last = first
            room = _WIDTH
            while last < len(cells) and room >= widths[last]:
                room -= widths[last]
                last += 1
        self._first, self._last = first, last
        lead = "…" if first else ""
        self._offsets = [*itertools.accumulate(widths[first:last], initial=len(lead))]
        self.text = lead + "".join(cells[first:last]) + ("…" if last < len(cells) else "")

    def column(self, character: int) -> int:
        """The column on the terminal of a character of the line, both from 0."""
        return self._offsets[min(max(character - self._first, 0), self._last - self._first)]


@functools.lru_cache(maxsize=8)  # thousands of findings may be in one line, which is as long
def _cells(text: str) -> tuple[list[str], list[int], list[int]]:
    """What the terminal shows for each character of a line, its columns, and the columns before each and after all."""
    cells = [_cell(character) for character in without_brackets(text)]
    widths = [_width(cell) for cell in cells]
    return cells, widths, [*itertools.accumulate(widths, initial=0)]


def _cell(character: str) -> str:
    if character == "\t":
        return " " * _TAB
    if ord(character) < 0x20:  # a form feed or an escape sequence must not reach the terminal
        return chr(_CONTROL_PICTURES + ord(character))
    if unicodedata.category(character) in ("Cc", "Cf", "Cs"):
        return "\N{REPLACEMENT CHARACTER}"
    return character


def _width(cell: str) -> int:
    if len(cell) != 1:
        return len(cell)
    if unicodedata.combining(cell):
        return 0
    return 2 if unicodedata.east_asian_width(cell) in "WF" else 1


def _underline_rows(underlines: Sequence[_Underline], style: Style) -> list[str]:
    """The rows below a source line: all underlines on the first, with the text of the rightmost behind it; the texts of
    the others further down, each hanging from its underline.
    """
    if not underlines:
        return []
    ordered = sorted(underlines, key=lambda u: (u.start, u.end))
    row = _drawn(ordered, style)
    texts = [u for u in ordered if u.message]
    last = ordered[-1]
    if last.message and all(u.end <= last.start for u in ordered[:-1]):
        row += f" {_paint(last.message, last.primary, style)}"
        texts.pop()
    rows = [row]
    if texts:
        rows.append(_hanging(texts, style))
    while texts:
        lowest = texts.pop()
        rows.append(_hanging([u for u in texts if u.start < lowest.start], style, lowest))
    return rows


def _drawn(underlines: Sequence[_Underline], style: Style) -> str:
    """`^` under what is primary, over `-` under the rest."""
    characters = [" "] * max(u.end for u in underlines)
    for u in sorted(underlines, key=lambda u: u.primary):
        characters[u.start : u.end] = ["^" if u.primary else "-"] * (u.end - u.start)
    runs = itertools.groupby(characters)
    return "".join(_paint("".join(run), kind == "^", style) if kind != " " else "".join(run) for kind, run in runs)


def _hanging(threads: Sequence[_Underline], style: Style, text: _Underline | None = None) -> str:
    """A `|` below the start of each of `threads`, then a text."""
    row, width = "", 0
    for u in {u.start: u for u in threads}.values():
        row += " " * (u.start - width) + _paint("|", u.primary, style)
        width = u.start + 1
    return row + (" " * (text.start - width) + _paint(text.message, text.primary, style) if text else "")


def _paint(text: str, primary: bool, style: Style) -> str:
    return style.red(text) if primary else style.blue(text)


# ---- below the excerpt


def _witness(finding: Finding, style: Style) -> list[str]:
    """What each rank does, step by step, with the place of every step."""
    rows: list[str] = []
    names = max((len(trace.rank) for trace in finding.witness), default=0)
    places = {
        step.span: str(step.span.line)
        if step.span.place == finding.span.place
        else f"{one_line(step.span.place)}:{step.span.line}"
        for trace in finding.witness
        for step in trace.steps
    }
    width = max(map(len, places.values()), default=0)
    for trace in finding.witness:
        head = style.yellow(trace.rank) + " " * (names - len(trace.rank))
        for step in trace.steps or (None,):
            rows.append(f"  {head}  {_step(step, places, width, style)}")
            head = " " * names
    return rows


def _step(step: Label | None, places: dict[Span, str], width: int, style: Style) -> str:
    if step is None:
        return "makes no calls here"
    return f"{style.blue(places[step.span].rjust(width))}  {step.message}"


_WHO = {
    Applicability.SAFE: "--fix applies it",
    Applicability.UNSAFE: "--fix --unsafe-fixes applies it",
    Applicability.DISPLAY: "apply it by hand",
}


def _fix(fix: Fix, sources: Sources, style: Style) -> list[str]:
    rows = [f"{style.cyan('fix')}: {fix.message} {style.dim(f'({_WHO[fix.applicability]})')}"]
    changes = preview(fix, sources.lines(fix.edits[0].span.path, fix.edits[0].span.cell)) if fix.edits else []
    if len(changes) <= _FIX_LINES:
        width = max((len(str(line)) for _, line, _ in changes), default=0)
        for sign, line, text in changes:
            row = f"{str(line).rjust(width)} {sign} {_Line(text, ()).text}".rstrip()
            rows.append(style.red(row) if sign == "-" else style.green(row))
    return rows
