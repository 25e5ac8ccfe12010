"""What an error text means: `signatures.toml`, which serves `verify` and `diagnose` alike."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Iterator

from ddp_lint.knowledge import table

#: A part of a regular expression: an escape, a class, a repetition, or one character.
_PART = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\{\d*,?\d*\}|[\s\S]")
#: Shorter texts are in every other line.
_SHORTEST = 3


@dataclasses.dataclass(frozen=True)
class Signature:
    """A known error text.

    `kind` is what happened, a name under `[kinds]`; `role` is own, diverged, hang, exit, launcher, secondary (another
    rank's fault), warning or note; `subkind` what this text shows of a kind that has several, '' for nothing.
    """

    id: str
    pattern: str
    kind: str
    role: str
    cause: str
    fix: str
    seen: str
    #: The rules that look for the cause.
    codes: tuple[str, ...] = ()
    subkind: str = ""

    @property
    def code(self) -> str:
        """The one rule that looks for the cause, '' when there are several or none."""
        return self.codes[0] if len(self.codes) == 1 else ""

    @functools.cached_property
    def searches(self) -> re.Pattern[str]:
        return re.compile(self.pattern)


@functools.cache
def signatures() -> tuple[Signature, ...]:
    return tuple(Signature(**{**row, "codes": tuple(row["codes"])}) for row in table("signatures")["signature"])


@functools.cache
def signature(id: str) -> Signature:
    """The entry with this id, which must exist."""
    return next(known for known in signatures() if known.id == id)


@functools.lru_cache(maxsize=4096)
def explain(text: str) -> Signature | None:
    """The first signature that the text shows."""
    every, needed = _needed()
    possible = sorted({*every, *(number for part, number in needed if part in text)})
    known = signatures()
    return next((known[number] for number in possible if known[number].searches.search(text)), None)


@functools.cache
def _needed() -> tuple[tuple[int, ...], tuple[tuple[str, int], ...]]:
    """The numbers of the signatures that each text is searched for; and texts, with the number of the signature that
    is searched for where a text holds one of them: most lines hold none, and that is known ten times as fast."""
    parts = [needed_by(known.pattern) for known in signatures()]
    every = tuple(number for number, each in enumerate(parts) if not each)
    return every, tuple((part, number) for number, each in enumerate(parts) for part in each)


def needed_by(pattern: str) -> frozenset[str]:
    """Texts of which all that a regular expression matches has at least one; none where they are not known.

    Of each alternative it is the longest run of plain characters outside of groups.
    """
    if pattern.startswith("(?i)"):
        return frozenset()
    found = frozenset(max(runs, key=len) for runs in _alternatives(pattern))
    return found if all(len(run) >= _SHORTEST for run in found) else frozenset()


def _alternatives(pattern: str) -> Iterator[list[str]]:
    """Of each alternative of a regular expression, the runs of characters that stand for themselves."""
    runs, depth = [""], 0
    for part in _PART.findall(pattern):
        depth += (part == "(") - (part == ")")
        if depth == 0 and part == "|":
            yield runs
            runs = [""]
        elif depth == 0 and (part in ("?", "*") or (part[0] == "{" and len(part) > 1)):
            runs[-1:] = [runs[-1][:-1], ""]  # the character before it may be missing
        elif depth == 0 and (plain := _plain(part)):
            runs[-1] += plain
        else:
            runs.append("")
    yield runs


def _plain(part: str) -> str:
    """The character that a part of a regular expression stands for, '' for one that stands for several or none."""
    if len(part) == 1:
        return "" if part in ".^$+()" else part
    return part[1] if part[0] == "\\" and not part[1].isalnum() else ""


def secondary(text: str) -> bool:
    """The text reports another rank's failure."""
    known = explain(text)
    return known is not None and known.role == "secondary"


def verdict(kind: str) -> str:
    """The word that an answer of this kind begins with: ROOT, HANG, DIVERGENCE, KILLED, VANISHED, LAUNCH or UNKNOWN."""
    return str(table("signatures")["kinds"][kind]["verdict"])


def of_subkind(subkind: str, *, rank_known: bool) -> tuple[str, str] | None:
    """Cause and fix of a sub-kind of hangs and mismatches, which say more than the error text.

    Where the log does not show which rank it was, the words are those of `unnamed`, if the sub-kind has any.
    """
    entry = table("signatures")["subkinds"].get(subkind)
    if entry and not rank_known:
        entry = entry.get("unnamed", entry)
    return (str(entry["cause"]), str(entry["fix"])) if entry else None


def kind_in_words(kind: str) -> str:
    """A kind in words."""
    return str(table("signatures")["kinds"][kind]["says"])


def next_of(kind: str) -> str:
    """What to run next where no line of the user's code is known, '' for nothing in particular."""
    return str(table("signatures")["kinds"][kind].get("next", "")) if kind in table("signatures")["kinds"] else ""
