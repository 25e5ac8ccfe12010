"""The one currency of ddp-lint: rules make findings, everything after them is a function of findings.

All types are frozen and picklable: they cross process borders and live in the cache.
Lines and columns are 1-based; columns count characters; the end column is exclusive.
"""

from __future__ import annotations

import dataclasses
import enum


class Confidence(str, enum.Enum):
    """How sure the analysis is that the hazard is real where it points."""

    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"


class Applicability(str, enum.Enum):
    """Who may apply a fix: anyone (safe), a user who asked (unsafe), nobody but the reader (display)."""

    SAFE = "safe"
    UNSAFE = "unsafe"
    DISPLAY = "display"


@dataclasses.dataclass(frozen=True, order=True)
class Span:
    """A stretch of one source file. `path` is relative to the working directory, with forward slashes.

    In a notebook lines count within the cell with the number `cell`, from 1; in any other file it is 0.
    """

    path: str
    line: int
    column: int
    end_line: int
    end_column: int
    cell: int = 0

    @property
    def place(self) -> str:
        """The file, and the cell of a notebook: what lines are counted in."""
        return f"{self.path}:cell {self.cell}" if self.cell else self.path


@dataclasses.dataclass(frozen=True)
class Label:
    """A related span, in this or another file, and what the reader should see there."""

    span: Span
    message: str


@dataclasses.dataclass(frozen=True)
class RankTrace:
    """What one rank does around the parting: its steps in order, each at a place in the source."""

    rank: str
    steps: tuple[Label, ...]


@dataclasses.dataclass(frozen=True)
class Edit:
    """Replace the text of `span` by `text`; an empty span inserts."""

    span: Span
    text: str


@dataclasses.dataclass(frozen=True)
class Fix:
    """Edits that belong together: all are applied or none."""

    message: str
    applicability: Applicability
    edits: tuple[Edit, ...]


@dataclasses.dataclass(frozen=True)
class Finding:
    """One hazard at one place.

    `message` is one line that says what happens, on which rank; `help` what to do instead; `labels` the related
    places; `notes` further facts, one line each; `witness` the word of each rank (divergence rules);
    `fingerprint` identifies the finding across line shifts and is set by the engine.
    """

    code: str
    slug: str
    message: str
    span: Span
    confidence: Confidence
    labels: tuple[Label, ...] = ()
    notes: tuple[str, ...] = ()
    help: str = ""
    witness: tuple[RankTrace, ...] = ()
    fix: Fix | None = None
    fingerprint: str = ""

    @property
    def sort_key(self) -> tuple[str, int, int, int, str, str]:
        return (self.span.path, self.span.cell, self.span.line, self.span.column, self.code, self.message)
