"""One text that is searched for many words, one after the other."""

from __future__ import annotations

import bisect
import re

_CALL = re.compile(r"\w+\(")
#: Searches for a call through the whole text after which an index of its calls pays.
_WORTH_AN_INDEX = 64


class SearchedText:
    """Says what a text holds. Many searches for calls (``name(``) cost what one costs: by an index."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._found: dict[str, bool] = {}
        self._searches = 0
        self._calls: list[str] = []

    def holds(self, word: str) -> bool:
        """Whether the text holds a word, or any other text."""
        if word not in self._found:
            self._found[word] = self._holds(word)
        return self._found[word]

    def _holds(self, word: str) -> bool:
        if not _CALL.fullmatch(word):
            return word in self._text
        self._searches += 1
        if self._searches <= _WORTH_AN_INDEX:
            return word in self._text
        if self._searches == _WORTH_AN_INDEX + 1:
            self._calls = sorted({call[::-1] for call in _CALL.findall(self._text)})
        backwards = word[::-1]
        place = bisect.bisect_left(self._calls, backwards)
        return self._calls[place : place + 1] != [] and self._calls[place].startswith(backwards)
