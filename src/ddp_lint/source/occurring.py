"""Whether a pattern occurs in a text, decided without a search by it where the text lacks what every match has.

A regular expression goes through a text character by character. That a text has none of a few words Python finds out a
hundred times faster, and most files have none of them.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import re
import sys
from collections.abc import Iterable
from typing import Any, Final

#: The parser of regular expressions, which has no public name: without it each search is made.
_PARSER: Final = "re._parser" if sys.version_info >= (3, 11) else "sre_parse"
#: A shorter text is in nearly every file.
_SHORTEST: Final = 3
#: Parts of a pattern that take no characters.
_EMPTY: Final = frozenset({"AT", "ASSERT", "ASSERT_NOT"})


def occurs(pattern: re.Pattern[str], text: str) -> bool:
    """Whether a pattern occurs in a text."""
    return may_occur(pattern, text) and pattern.search(text) is not None


def may_occur(pattern: re.Pattern[str], text: str) -> bool:
    """False only where a pattern surely does not occur in a text, nor in a text made of pieces of its lines."""
    texts = needed(pattern)
    if not texts:
        return True
    if pattern.flags & re.IGNORECASE:
        if not text.isascii():  # a letter may equal one that is longer
            return True
        text = text.lower()
    return any(each in text for each in texts)


@functools.lru_cache(maxsize=1024)
def needed(pattern: re.Pattern[str]) -> tuple[str, ...]:
    """Texts, one of which is in every match of a pattern, in lower case where it ignores case; none where that is not
    known."""
    with contextlib.suppress(ImportError, AttributeError, re.error):
        parts = importlib.import_module(_PARSER).parse(pattern.pattern, pattern.flags & ~re.DEBUG)
        found = _of_sequence(parts)
        if pattern.flags & re.IGNORECASE:
            found = {each.lower() for each in found} if all(map(str.isascii, found)) else set()
        return tuple(sorted(each for each in found if not any(o != each and o in each for o in found)))
    return ()


def _of_sequence(parts: Iterable[tuple[Any, Any]]) -> set[str]:
    """Texts, one of which is in whatever matches these parts one after the other; the rarest ones."""
    candidates: list[set[str]] = []
    run: list[str] = []
    for kind, value in parts:
        name = str(kind)
        if name == "LITERAL":
            run.append(chr(value))
            continue
        if name in _EMPTY:
            continue
        candidates += [{"".join(run)}, _of_part(name, value)]
        run = []
    candidates.append({"".join(run)})
    return max(filter(_tells, candidates), key=lambda found: min(map(len, found)), default=set())


def _of_part(name: str, value: Any) -> set[str]:
    if name == "SUBPATTERN":
        _, added, _, inside = value
        return set() if added & re.IGNORECASE else _of_sequence(inside)
    if name in ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT"):
        return _of_sequence(value[2]) if value[0] else set()
    if name == "BRANCH":
        branches = [_of_sequence(branch) for branch in value[1]]
        return set[str]().union(*branches) if all(branches) else set()
    return set()


def _tells(found: set[str]) -> bool:
    return bool(found) and all(len(each) >= _SHORTEST and "\n" not in each for each in found)


__all__ = ["may_occur", "needed", "occurs"]
