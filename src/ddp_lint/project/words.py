"""Which files of a project hold a word: found by an index of the words of all files."""

from __future__ import annotations

import bisect
import dataclasses
import functools
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

from ddp_lint import files
from ddp_lint.source.searching import SearchedText

_LETTER = re.compile(rb"[A-Za-z0-9_\x80-\xff]")
_RUN = re.compile(rb"[A-Za-z0-9_\x80-\xff]+")
#: The search for the files that define a name, which is the most frequent one.
_DEFINING = re.compile(r"def (\w+)\(")
_DEFINED = re.compile(rb"def ([A-Za-z0-9_\x80-\xff]+)\(")
#: Makes of a text its words, between spaces.
_SPACED = bytes(code if _LETTER.match(bytes([code])) else 32 for code in range(256))
#: Bytes of all files of a project that are kept for the search.
_KEPT_CONTENT = 100_000_000
#: Bytes of a file that is not searched from its start each time, and how many of these are kept.
_LARGE, _KEPT_LARGE = 50_000, 8
#: Searches through all files after which an index pays.
_WORTH_AN_INDEX = 8


def words(text: str) -> frozenset[bytes]:
    """The words of a text, in comments and strings too."""
    return frozenset(_words(text.encode("utf-8", "surrogatepass")))


def _words(content: bytes) -> list[bytes]:
    return content.translate(_SPACED).split()


@dataclasses.dataclass(frozen=True)
class Earlier:
    """What an earlier run has found: the files that hold a word, without those that have `changed` since."""

    holding: Mapping[str, Collection[str]]
    changed: frozenset[str]


class WordSearch:
    """Finds the files that hold a word, or any other text. Files are read when they are first searched, and once as
    far as what they hold may be kept. `paths`: the files to search; `earlier`: what is known of them; `read`: what
    gives the content of a file."""

    def __init__(
        self,
        paths: Callable[[], Sequence[str]],
        earlier: Callable[[], Earlier] | None = None,
        read: Callable[[str], bytes] = files.read_or_nothing,
    ) -> None:
        self._paths = paths
        self._read = read
        self._earlier = earlier or (lambda: Earlier({}, frozenset()))
        self._contents: dict[str, bytes] = {}
        self._often: dict[str, SearchedText] = {}
        self._size = 0
        self._searches = 0
        self._index: _Index | None = None

    @functools.cached_property
    def earlier(self) -> Earlier:
        """What an earlier run has found."""
        return self._earlier()

    def holding(self, word: str) -> tuple[str, ...]:
        """The files that hold the word, sorted."""
        data = word.encode("utf-8", "surrogatepass")
        known = self.earlier.holding.get(word)
        if known is not None:
            return tuple(sorted((*known, *(path for path in self.earlier.changed if data in self._content(path)))))
        if defining := _DEFINING.fullmatch(word):
            return self._defined.get(defining[1].encode("utf-8", "surrogatepass"), ())
        self._searches += 1
        if self._index is None and self._searches > _WORTH_AN_INDEX:
            self.prepare()
        paths = self._paths() if self._index is None else self._index.candidates(data)
        return tuple(sorted(path for path in paths if self._holds(path, word, data)))

    def holds(self, path: str, word: str) -> bool:
        """Whether one file holds the word."""
        return self._holds(path, word, word.encode("utf-8", "surrogatepass"))

    def _holds(self, path: str, word: str, data: bytes) -> bool:
        content = self._content(path)
        if len(content) < _LARGE:
            return data in content
        if path not in self._often:
            if len(self._often) == _KEPT_LARGE:
                self._often.clear()
            self._often[path] = SearchedText(content.decode("utf-8", "surrogateescape"))
        return self._often[path].holds(word)

    def prepare(self) -> None:
        """Make the index now: before processes are forked off, which then share it."""
        if self._index is None:
            self._index = _Index((path, self._content(path)) for path in self._paths())
            _ = self._defined

    @functools.cached_property
    def _defined(self) -> dict[bytes, tuple[str, ...]]:
        """The files that define each name, sorted."""
        found: dict[bytes, list[str]] = {}
        for path in self._paths():
            for name in set(_DEFINED.findall(self._content(path))):
                found.setdefault(name, []).append(path)
        return {name: tuple(sorted(paths)) for name, paths in found.items()}

    def _content(self, path: str) -> bytes:
        content = self._contents.get(path)
        if content is None:
            content = self._read(path)
            self._size += len(content)
            if self._size <= _KEPT_CONTENT:
                self._contents[path] = content
        return content


class _Index:
    """The files that may hold a text, by the words of all files."""

    def __init__(self, contents: Iterable[tuple[str, bytes]]) -> None:
        self._holders: dict[bytes, list[str]] = {}
        for path, content in contents:
            for word in set(_words(content)):
                self._holders.setdefault(word, []).append(path)
        self._sorted = sorted(self._holders)
        self._reversed = sorted(word[::-1] for word in self._sorted)
        self._joined = b"\n".join(self._sorted)

    def candidates(self, data: bytes) -> Iterable[str]:
        """All files that hold a text, and perhaps others: those with a word that its longest word can be part of."""
        longest = max(_RUN.finditer(data), key=lambda found: len(found[0]), default=None)
        if longest is None:
            return {path for paths in self._holders.values() for path in paths}
        run, starts, ends = longest[0], longest.start() > 0, longest.end() < len(data)
        if starts and ends:
            return self._holders.get(run, ())
        found: Iterator[bytes]
        if ends:
            found = (word[::-1] for word in _starting_with(self._reversed, run[::-1]))
        else:
            found = _starting_with(self._sorted, run) if starts else self._with(run)
        return {path for word in found for path in self._holders[word]}

    def _with(self, run: bytes) -> Iterator[bytes]:
        """The words that a run of letters is part of."""
        place = self._joined.find(run)
        while place >= 0:
            start = self._joined.rfind(b"\n", 0, place) + 1
            end = self._joined.find(b"\n", place)
            yield self._joined[start : end if end >= 0 else None]
            place = self._joined.find(run, end) if end >= 0 else -1


def _starting_with(ordered: list[bytes], start: bytes) -> Iterator[bytes]:
    for place in range(bisect.bisect_left(ordered, start), len(ordered)):
        if not ordered[place].startswith(start):
            return
        yield ordered[place]
