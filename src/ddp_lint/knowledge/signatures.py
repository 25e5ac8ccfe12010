"""What an error text means: `signatures.toml`, which serves `verify` and `diagnose` alike."""

from __future__ import annotations

import dataclasses
import functools
import re

from ddp_lint.knowledge import table


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
    return next((known for known in signatures() if known.searches.search(text)), None)


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
