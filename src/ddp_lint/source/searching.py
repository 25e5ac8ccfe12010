"""One text that is searched for many words, one after the other."""

from __future__ import annotations

import bisect
import re

_CALL = re.compile(r"\w+\(")
_WORD = re.compile(r"\w+")
#: Searches through the whole text after which an index pays.
_WORTH_AN_INDEX = 64


class SearchedText:
    """Whether a text holds other texts.

    Many searches for calls (``name(``), and for words that occur as they are, cost little more than one: by indexes.
    """

    def __init__(self, text: str) -> None:
        self._text = text
        self._found: dict[str, bool] = {}
        self._searches = 0
        self._calls: list[str] | None = None
        self._words: frozenset[str] | None = None

    def holds(self, word: str) -> bool:
        """Whether the text holds a word, or any other text."""
        if word not in self._found:
            self._found[word] = self._holds(word)
        return self._found[word]

    def _holds(self, word: str) -> bool:
        self._searches += 1
        if self._searches <= _WORTH_AN_INDEX:
            return word in self._text
        if _CALL.fullmatch(word):
            return self._calls_end_in(word)
        if self._words is None:
            self._words = frozenset(_WORD.findall(self._text))
        return word in self._words or word in self._text

    def _calls_end_in(self, word: str) -> bool:
        if self._calls is None:
            self._calls = sorted({call[::-1] for call in _CALL.findall(self._text)})
        backwards = word[::-1]
        place = bisect.bisect_left(self._calls, backwards)
        return self._calls[place : place + 1] != [] and self._calls[place].startswith(backwards)
