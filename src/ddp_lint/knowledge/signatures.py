"""What an error text means: `signatures.toml`, which serves `verify` and `diagnose` alike."""

from __future__ import annotations

import collections
import dataclasses
import functools
import re
from collections.abc import Iterator, Sequence
from typing import TypeAlias

from ddp_lint.knowledge import table

#: A part of a regular expression: the start of a group, an escape, a class, a repetition, or one character.
_PART = re.compile(r"\(\?(?:i\)|:|<?[=!])|\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\{\d*,?\d*\}|[\s\S]")
#: Shorter texts are in every other line.
_SHORTEST = 3
#: Texts one of which is needed.
_OneOf: TypeAlias = "frozenset[str]"
#: By three characters: a text that has them, the number of a signature that needs it, and what it needs besides.
_Index: TypeAlias = "dict[str, list[tuple[str, int, tuple[_OneOf, ...]]]]"


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
    every, index = _needed()
    lowered, possible = text.lower(), {*every}
    for three in index.keys() & {lowered[place : place + _SHORTEST] for place in range(len(lowered))}:
        for part, number, others in index[three]:
            if part in lowered and all(any(other in lowered for other in one_of) for one_of in others):
                possible.add(number)
    known = signatures()
    return next((known[number] for number in sorted(possible) if known[number].searches.search(text)), None)


@functools.cache
def _needed() -> tuple[tuple[int, ...], _Index]:
    """The numbers of the signatures that each text is searched for, and of what the others need: most lines hold
    nothing of it, and that is known ten times as fast. Of the texts that one of them needs it has the rarest three
    characters."""
    alternatives = [(n, needs) for n, known in enumerate(signatures()) for needs in needed_by(known.pattern)]
    best = [(part, n, needs) for n, needs in alternatives if needs for part in _best(needs)]
    counts = collections.Counter(three for part, *_ in best for three in _threes(part))
    index: _Index = collections.defaultdict(list)
    for part, number, needs in best:
        others = tuple(one_of for one_of in needs if part not in one_of)
        index[min(_threes(part), key=lambda three: (counts[three], three))].append((part, number, others))
    return tuple({n: None for n, needs in alternatives if not needs}), dict(index)


def _threes(text: str) -> set[str]:
    return {text[place : place + _SHORTEST] for place in range(len(text) - _SHORTEST + 1)}


def needed_by(pattern: str) -> list[tuple[_OneOf, ...]]:
    """What a text has, in lower case, that a regular expression matches: for each alternative, sets of texts of each of
    which it has one."""
    return [tuple(needs) for needs in _alternatives(iter(_PART.findall(pattern)))]


def _alternatives(parts: Iterator[str]) -> list[list[_OneOf]]:
    """Of each alternative of a group, up to its end, what a match of it holds."""
    found: list[list[_OneOf]] = [[]]
    run, before = "", 0  # characters that stand for themselves; what the alternative needed before the last group
    for part in parts:
        if run and (plain := _plain(part)):
            run += plain
            continue
        if optional := part in ("?", "*") or (part[0] == "{" and len(part) > 1):
            run = run[:-1]  # the character before it may be missing
        if len(run) >= _SHORTEST:
            found[-1].append(frozenset({run.lower()}))
        elif optional and not run:
            del found[-1][before:]  # and so may the group
        run, before = _plain(part), len(found[-1])
        if part == ")":
            return found
        if part == "|":
            found.append([])
            run = ""
        elif part[0] == "(" and part != "(?i)":
            inner = _alternatives(parts)
            if part in ("(", "(?:") and all(inner):
                found[-1].append(frozenset[str]().union(*map(_best, inner)))
    if len(run) >= _SHORTEST:
        found[-1].append(frozenset({run.lower()}))
    return found


def _best(needs: Sequence[_OneOf]) -> _OneOf:
    """The one that the fewest texts have: short texts are in many."""
    return max(needs, key=lambda one_of: min(map(len, one_of)))


def _plain(part: str) -> str:
    """The character that a part of a regular expression stands for, '' for one that stands for several or none."""
    if len(part) == 1:
        return "" if part in ".^$+()|?*" else part
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


def meets_all_ranks(kind: str) -> bool:
    """All ranks meet such a failure alike, for they run one program: one that is seen to fail is not to blame."""
    return bool(table("signatures")["kinds"][kind].get("all_ranks"))
