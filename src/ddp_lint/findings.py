"""The one currency of ddp-lint: rules make findings, everything after them is a function of findings.

All types are frozen and picklable: they cross process borders and live in the cache.
Lines and columns are 1-based; columns count characters; the end column is exclusive.
"""

from __future__ import annotations

import dataclasses
import enum
import re
from collections.abc import Iterator

#: The codes of what could not be checked. They are reported unless ignored by name: an unchecked file must not look
#: clean.
UNCHECKED = frozenset({"DDP000", "DDP001"})
#: Characters that the message of a finding may have.
HEADLINE = 120
_CODE = re.compile(r"`([^`]+)`")
#: Code is not cut below this many characters.
_SHORTEST = 12


class Confidence(str, enum.Enum):
    """How sure the analysis is that the hazard is real where it points."""

    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"

    def at_most(self, other: Confidence) -> Confidence:
        """The less sure of the two."""
        return max(self, other, key=list(Confidence).index)


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

    def starts_in(self, region: Span) -> bool:
        """Whether it begins on a line of another span."""
        return self.place == region.place and region.line <= self.line <= region.end_line


@dataclasses.dataclass(frozen=True)
class Label:
    """A related span, in this or another file, and what the reader should see there."""

    span: Span
    message: str


@dataclasses.dataclass(frozen=True)
class CallSite:
    """A call on the way from a finding to what it is about: where it is, and the callee as it is written."""

    span: Span
    callee: str


class Sharing(str, enum.Enum):
    """Whether findings that lead to one callee have one cause, the callee."""

    #: Each has its own: what makes the ranks diverge lies in their data, not in who calls.
    NEVER = "never"
    #: Only if nobody reaches the callee in another way: a ``barrier()`` of the project's own is called rightly, too.
    ALONE = "alone"
    #: The callee hides that it communicates, which all of them overlook.
    ALWAYS = "always"


@dataclasses.dataclass(frozen=True)
class Cause:
    """What a finding depends on. Findings with the same cause are reported as one (`ddp_lint.grouping`).

    `place` is the branch, the loop or the statement that has to change; `way` the calls that lead into functions of the
    project: that of the finding first, the collective itself last. `beside` are the calls of what the finding says
    besides. `shared`: whether the collective at the end of the way is a cause that others have, too.
    """

    place: Span
    way: tuple[CallSite, ...] = ()
    beside: tuple[CallSite, ...] = ()
    shared: Sharing = Sharing.NEVER


@dataclasses.dataclass(frozen=True)
class RankTrace:
    """What one rank does around the mismatch: its steps in order, each at a place in the source."""

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
    `fingerprint` identifies the finding across line shifts and is set by the engine. `cause` is its cause, which other
    findings may share; `paths` are those that do, with which it was made one.
    `needs_cuda`: a run on the CPU cannot show it, as it can others of its rule; `needs_nodes`: nor can one on one node.
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
    cause: Cause | None = None
    paths: tuple[Label, ...] = ()
    needs_cuda: bool = False
    needs_nodes: bool = False

    @property
    def sort_key(self) -> tuple[str, int, int, int, str, str]:
        return (self.span.path, self.span.cell, self.span.line, self.span.column, self.code, self.message)


def spans_in(value: object) -> Iterator[Span]:
    """All places that a finding, or a part of one, holds."""
    if isinstance(value, Span):
        yield value
    elif isinstance(value, tuple):
        for item in value:
            yield from spans_in(item)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from spans_in(getattr(value, field.name))


def fitted(message: str, room: int = HEADLINE) -> str:
    """A message cut to `room` characters: code in backquotes loses its middle, the longest first; then the end goes."""
    message = " ".join(message.split())
    while len(message) > room:
        longest = max(_CODE.finditer(message), key=lambda match: len(match[1]), default=None)
        if longest is None or len(longest[1]) <= _SHORTEST:
            return message[: room - 1].rstrip() + "…"
        keep = max(_SHORTEST, len(longest[1]) - (len(message) - room)) - 1
        head = (keep + 1) // 2
        tail = longest[1][len(longest[1]) - (keep - head) :]
        message = f"{message[: longest.start(1)]}{longest[1][:head]}…{tail}{message[longest.end(1) :]}"
    return message
