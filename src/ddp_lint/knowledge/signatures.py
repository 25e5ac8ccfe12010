"""What an error text means: `signatures.toml`, which serves `verify` and `diagnose` alike."""

from __future__ import annotations

import collections
import dataclasses
import functools
import re

from ddp_lint.knowledge import table
from ddp_lint.source.occurring import needed


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
    #: What to run or look at next, '' where its kind says so.
    next: str = ""
    #: Entries whose text this one only passes on.
    reports: tuple[str, ...] = ()

    @property
    def code(self) -> str:
        """The one rule that looks for the cause, '' when there are several or none."""
        return self.codes[0] if len(self.codes) == 1 else ""

    @functools.cached_property
    def searches(self) -> re.Pattern[str]:
        return re.compile(self.pattern)


@functools.cache
def signatures() -> tuple[Signature, ...]:
    tuples = ("codes", "reports")
    return tuple(
        Signature(**{**row, **{name: tuple(row.get(name, ())) for name in tuples}})
        for row in table("signatures")["signature"]
    )


@functools.cache
def signature(id: str) -> Signature:
    """The entry with this id, which must exist."""
    return next(known for known in signatures() if known.id == id)


@functools.lru_cache(maxsize=4096)
def explain(text: str) -> Signature | None:
    """The first signature that the text shows."""
    always, index = _index()
    lowered, possible = text.lower(), {*always}
    for three in index.keys() & _threes(lowered):
        possible.update(number for part, number in index[three] if part in lowered)
    known = signatures()
    return next((known[number] for number in sorted(possible) if known[number].searches.search(text)), None)


@functools.cache
def _index() -> tuple[tuple[int, ...], dict[str, list[tuple[str, int]]]]:
    """The numbers of the signatures that each text is searched for; and, of each of the others, the texts in lower case
    one of which it needs, by the rarest three characters of the text. Most lines hold none of these, and that is known
    ten times as fast as by a search."""
    needs = [needed(known.searches) for known in signatures()]
    parts = [(part.lower(), number) for number, texts in enumerate(needs) for part in texts]
    counts = collections.Counter(three for part, _ in parts for three in _threes(part))
    index: dict[str, list[tuple[str, int]]] = collections.defaultdict(list)
    for part, number in parts:
        index[min(_threes(part), key=lambda three: (counts[three], three))].append((part, number))
    return tuple(number for number, texts in enumerate(needs) if not texts), dict(index)


def _threes(text: str) -> set[str]:
    return {text[place : place + 3] for place in range(len(text) - 2)}


def secondary(text: str) -> bool:
    """The text reports another rank's failure."""
    known = explain(text)
    return known is not None and known.role == "secondary"


def verdict(kind: str) -> str:
    """The word that an answer of this kind begins with: ROOT, HANG, DIVERGENCE, KILLED, VANISHED, LAUNCH or UNKNOWN."""
    return str(table("signatures")["kinds"][kind]["verdict"])


def of_subkind(subkind: str, *, blamed: int) -> tuple[str, str] | None:
    """Cause and fix of a sub-kind of hangs and mismatches, which say more than the error text.

    `blamed` is the number of ranks that the log names for it: where it is not one, the words are those of `unnamed` and
    `several`, if the sub-kind has any.
    """
    entry = table("signatures")["subkinds"].get(subkind)
    if entry and blamed != 1:
        entry = entry.get("several" if blamed else "unnamed", entry)
    return (str(entry["cause"]), str(entry["fix"])) if entry else None


def kind_in_words(kind: str) -> str:
    """A kind in words."""
    return str(table("signatures")["kinds"][kind]["says"])


def next_of(kind: str) -> str:
    """What to run next where no line of the user's code is known, '' for nothing in particular."""
    return str(table("signatures")["kinds"][kind].get("next", "")) if kind in table("signatures")["kinds"] else ""


def meets_all_ranks(kind: str) -> bool:
    """All ranks meet such a failure alike, for they run one program: one that is seen to fail is not to blame."""
    return bool(table("signatures")["kinds"][kind].get("all_ranks"))
