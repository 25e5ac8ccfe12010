"""Names of a project's own, as its configuration lists them: what they say, and the words to look for them by."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, cast

from ddp_lint.knowledge import table
from ddp_lint.knowledge.frameworks import shows, wrappers

if TYPE_CHECKING:
    from ddp_lint.knowledge.communication import RankValue


@dataclasses.dataclass(frozen=True)
class Names:
    """Names of the project's own that the analyses should know, as dotted names or bare identifiers."""

    rank_expressions: tuple[str, ...] = ()
    wrappers: tuple[str, ...] = ()
    collectives: tuple[str, ...] = ()

    @functools.cached_property
    def words(self) -> frozenset[str]:
        """The identifiers that are in all code that has one of the names, but for imports under another name."""
        return frozenset(map(last, self.all))

    @property
    def all(self) -> tuple[str, ...]:
        return (*self.rank_expressions, *self.wrappers, *self.collectives)

    def beside(self, words: Iterable[str]) -> tuple[str, ...]:
        """The words to look for besides some that a rule declares: those of the names that are of the same kind."""
        if not self.words:
            return ()
        beside, found = table("own")["beside"], frozenset(words)
        kinds = (kind for kind, like in beside.items() if not found.isdisjoint(like))
        return tuple(last(name) for kind in kinds for name in getattr(self, kind))


def wrapping(words: Iterable[str]) -> tuple[str, ...]:
    """The wrappers of all frameworks, as words to look for besides those of a rule that looks for PyTorch's."""
    if frozenset(words).isdisjoint(table("own")["beside"]["wrappers"]):
        return ()
    return tuple(map(last, wrappers()))


def wrapping_pattern(names: Names) -> re.Pattern[str]:
    """What the text of a file has that wraps models for several ranks, by a framework or by a wrapper of the
    project."""
    return shows("wraps", *(rf"\b{re.escape(last(name))}\b" for name in names.wrappers))


def last(name: str) -> str:
    return name.rpartition(".")[2]


@functools.cache
def rank_value(name: str) -> RankValue:
    """What a rank expression says about the rank, by its name."""
    entries = table("own")["rank"]
    found = (entry["value"] for entry in entries if re.search(entry["pattern"], last(name), re.IGNORECASE))
    return cast("RankValue", next(found, "rank"))
