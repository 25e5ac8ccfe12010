"""Applying the fixes of findings to source text.

A fix is applied whole or not at all, never where it overlaps another one, and only if the file still parses after it.
Findings that a comment suppresses carry no fix this far: they are gone before anybody looks at fixes.
"""

from __future__ import annotations

import dataclasses
import difflib
import itertools
import pathlib
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TypeVar

from ddp_lint import files
from ddp_lint.findings import Applicability, Edit, Finding, Fix, Span
from ddp_lint.source.file import as_written

_NEWLINE = re.compile(r"\r\n|\r|\n")
#: A round of fixes can make the next one possible; more rounds than this mean that two rules undo each other.
_ROUNDS = 10
K = TypeVar("K")


@dataclasses.dataclass(frozen=True)
class Fixed:
    """Text after fixes, and the findings whose fixes were applied."""

    text: str
    applied: tuple[Finding, ...]


def applicable(fix: Fix | None, *, unsafe: bool) -> bool:
    """Whether a fix may be applied: safe ones always, unsafe ones on request, display-only ones never."""
    return fix is not None and (
        fix.applicability is Applicability.SAFE or (unsafe and fix.applicability is Applicability.UNSAFE)
    )


def fixed(text: str, findings: Iterable[Finding], *, unsafe: bool) -> Fixed:
    """One round: the text after all fixes that do not overlap. What overlaps waits for the next round."""
    candidates = [f for f in findings if applicable(f.fix, unsafe=unsafe) and _in_one_file(f)]
    chosen = _disjoint(candidates)
    after = apply_edits(text, _edits(chosen))
    if not chosen or _parses(after) or not _parses(text):
        return Fixed(after, tuple(chosen))
    return _one_by_one(text, chosen)


def fixpoint(text: str, check: Callable[[str], Iterable[Finding]], *, unsafe: bool) -> Fixed:
    """Round after round until no fix is left; `check` finds the findings of a text."""
    return fixpoint_of_all({"": text}, lambda texts, left: {"": check(texts[""])}, unsafe=unsafe)[""]


def fixpoint_of_all(
    texts: Mapping[K, str],
    check: Callable[[Mapping[K, str], Collection[K]], Mapping[K, Iterable[Finding]]],
    *,
    unsafe: bool,
) -> dict[K, Fixed]:
    """The same for texts that are checked together; `check` finds the findings of those that are left, the ones that
    the round before has changed."""
    done = {key: Fixed(text, ()) for key, text in texts.items()}
    left = list(texts)
    for _ in range(_ROUNDS):
        found = check({key: each.text for key, each in done.items()}, left)
        steps = {key: fixed(done[key].text, found[key], unsafe=unsafe) for key in left}
        left = [key for key, step in steps.items() if step.text != done[key].text]
        if not left:
            break
        done |= {key: Fixed(steps[key].text, (*done[key].applied, *steps[key].applied)) for key in left}
    return done


def apply_edits(text: str, edits: Iterable[Edit]) -> str:
    """The text after edits that do not overlap. Line ends inside an edit become those of the text."""
    starts = _line_starts(text)
    newline = match[0] if "\r" in text and (match := _NEWLINE.search(text)) else "\n"
    out: list[str] = []
    done = 0
    for begin, end, new in sorted((*_range(starts, text, edit.span), edit.text) for edit in edits):
        if begin < done:
            raise ValueError("edits overlap")
        out += [text[done:begin], new.replace("\n", newline)]
        done = end
    return "".join([*out, text[done:]])


def preview(fix: Fix, lines: Sequence[str]) -> list[tuple[str, int, str]]:
    """What a fix changes in one file or cell, as (sign, line number, line) with the signs `-` and `+`."""
    edits = [edit for edit in fix.edits if edit.span.place == fix.edits[0].span.place]
    first = min(edit.span.line for edit in edits)
    last = max(edit.span.end_line for edit in edits)
    before = list(lines[first - 1 : last])
    moved = [
        Edit(dataclasses.replace(e.span, line=e.span.line - first + 1, end_line=e.span.end_line - first + 1), e.text)
        for e in edits
    ]
    after = apply_edits("\n".join(before), moved).split("\n")
    rows: list[tuple[str, int, str]] = []
    for tag, a, b, c, d in difflib.SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
        if tag != "equal":
            rows += [("-", first + n, before[n]) for n in range(a, b)]
            rows += [("+", first + n, after[n]) for n in range(c, d)]
    return rows


def unified_diff(path: str, before: str, after: str) -> str:
    """A patch that `git apply` and `patch -p0` take."""
    rows = difflib.unified_diff(before.splitlines(keepends=True), after.splitlines(keepends=True), path, path)
    return "".join(row if row.endswith("\n") else row + "\n\\ No newline at end of file\n" for row in rows)


# ---- files, byte for byte


@dataclasses.dataclass(frozen=True)
class Text:
    """A source file with its line ends as they are, and how to write it back."""

    path: pathlib.Path
    content: str
    encoding: str

    @classmethod
    def read(cls, path: pathlib.Path) -> Text:
        """Raises OSError or Unreadable where the file cannot be read as text."""
        return cls.of(path, files.read(path))

    @classmethod
    def of(cls, path: pathlib.Path, data: bytes) -> Text:
        """What a file would be with this content. Raises as `read` does."""
        return cls(path, *as_written(data))

    def encoded(self, content: str) -> bytes:
        """New content in the file's own encoding. Raises UnicodeEncodeError."""
        return content.encode(self.encoding)

    def write(self, content: str, root: pathlib.Path) -> None:
        """Write new content in the file's own encoding; through a link to a file below `root`, never to one outside.

        Raises OSError or UnicodeEncodeError.
        """
        files.write(files.behind_links(self.path, root), self.encoded(content))


# ---- choosing


def _in_one_file(finding: Finding) -> bool:
    assert finding.fix is not None
    return all(edit.span.path == finding.span.path for edit in finding.fix.edits)


def _edits(findings: Iterable[Finding]) -> set[Edit]:
    """All edits, the same one (an import that two fixes need) once."""
    return {edit for f in findings if f.fix for edit in f.fix.edits}


def _disjoint(findings: Iterable[Finding]) -> list[Finding]:
    """The findings, first come first, whose fixes do not touch one another."""
    chosen: list[Finding] = []
    taken: set[Edit] = set()
    for f in sorted(findings, key=lambda f: f.sort_key):
        edits = _edits([f])
        others = taken - edits
        clash = any(_touch(a.span, b.span) for a, b in itertools.product(edits - taken, others))
        if not clash and not any(_touch(a.span, b.span) for a, b in itertools.combinations(edits, 2)):
            chosen.append(f)
            taken |= edits
    return chosen


def _touch(a: Span, b: Span) -> bool:
    """Whether two edits overlap or insert at the same place; those that merely adjoin do not touch."""
    a_start, a_end = (a.line, a.column), (a.end_line, a.end_column)
    b_start, b_end = (b.line, b.column), (b.end_line, b.end_column)
    return (a_start, a_end) == (b_start, b_end) or (a_start < b_end and b_start < a_end)


def _one_by_one(text: str, findings: Iterable[Finding]) -> Fixed:
    """The fixes that leave the file parsable, when together they would not."""
    good: list[Finding] = []
    for f in findings:
        if _parses(apply_edits(text, _edits([*good, f]))):
            good.append(f)
    return Fixed(apply_edits(text, _edits(good)), tuple(good))


def _parses(text: str) -> bool:
    # LibCST takes long to import, and who prints findings only previews fixes
    from ddp_lint.engine.parsing import parses

    return parses(text)


# ---- positions


def _line_starts(text: str) -> list[int]:
    if "\r" in text:
        return [0, *(match.end() for match in _NEWLINE.finditer(text))]
    starts = [0]
    while end := text.find("\n", starts[-1]) + 1:  # faster than a pattern: of each finding in a long line it is asked
        starts.append(end)
    return starts


def _range(starts: list[int], text: str, span: Span) -> tuple[int, int]:
    """The character offsets of a span; what lies beyond the end of a line or of the text is its end."""
    return _offset(starts, text, span.line, span.column), _offset(starts, text, span.end_line, span.end_column)


def _offset(starts: list[int], text: str, line: int, column: int) -> int:
    if line > len(starts):
        return len(text)
    end = starts[line] if line < len(starts) else len(text)
    if line < len(starts):
        end -= 2 if text.endswith("\r\n", 0, end) else 1
    return min(starts[line - 1] + column - 1, end)
