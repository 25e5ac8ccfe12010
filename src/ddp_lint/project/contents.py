"""What the files of a project hold: on disk, or in an editor instead. Nothing is read before it is needed."""

from __future__ import annotations

import functools
import hashlib
import os
import pathlib
from collections.abc import Iterator, Mapping

from ddp_lint import files
from ddp_lint.project.layout import Layout
from ddp_lint.project.parts import SAYS
from ddp_lint.project.paths import Paths
from ddp_lint.project.results import KeptResults
from ddp_lint.project.words import WordSearch
from ddp_lint.source.file import SourceFile, Unreadable


@functools.lru_cache(maxsize=65_536)
def _path(name: str) -> pathlib.Path:
    """A path by its name. To take a name apart costs as much as it is long, for each file that asks and each found."""
    return pathlib.Path(name)


class Contents:
    """The texts of the files below one root, and which of them hold a word."""

    def __init__(self, results: KeptResults, paths: Paths, layout: Layout) -> None:
        self._results = results
        self._paths = paths
        self._layout = layout
        self._held: dict[str, SourceFile] = {}
        #: Of these the ones that an editor has open.
        self._open: dict[str, SourceFile] = {}
        #: What is taken as the content of files instead of what is on disk.
        self._instead: dict[str, SourceFile] = {}
        self._holding: dict[str, tuple[str, ...]] = {}
        self._words = WordSearch(layout.files)
        self._searched: list[str] = []

    # ---- texts

    def text(self, path: pathlib.Path) -> str | None:
        """The text of any file, Python or not; None when it cannot be read."""
        key = os.path.normpath(path)
        self._results.note(f"file:{self._paths.relative(key)}")
        file = self.read(key)
        return file.text if file else None

    def read(self, path: str) -> SourceFile | None:
        """A file, for who says what of it a result depends on."""
        file = self.at_hand(path)
        if file is None:
            try:
                file = SourceFile.read(pathlib.Path(path), self._paths.shown(path), self._paths.relative(path))
            except Unreadable:
                file = None
        self._results.known_answers[f"file:{self._paths.relative(path)}"] = file.digest if file else ""
        return file

    def at_hand(self, path: str) -> SourceFile | None:
        """What is taken as the content of a file instead of what is on disk, if anything."""
        return self._held.get(path) or self._instead.get(path)

    def held(self, path: str) -> SourceFile | None:
        """What was given to `hold` for a file."""
        return self._held.get(path)

    def digest_now(self, path: str) -> str:
        """The digest of a file as it is on disk, '' where it cannot be read."""
        try:
            return SourceFile.read(pathlib.Path(path), path, self._paths.relative(path)).digest
        except Unreadable:
            return ""

    def hold(self, path: str, file: SourceFile) -> None:
        """Take `file` as the content of `path`, until the next one is held."""
        self._held = {**self._open, path: file}
        self._results.ask(f"file:{self._paths.relative(path)}", file.digest)

    def open(self, path: str, file: SourceFile | None) -> None:
        """From now on `file` is the content of `path`, regardless of the disk; None: the file on disk, as it is now."""
        if file is not None:
            self._open[path] = file
        else:
            self._open.pop(path, None)
            self._look_again(path)
        self._held = dict(self._open)

    def take_instead(self, texts: Mapping[pathlib.Path, SourceFile]) -> None:
        """Before anything is asked: take these as what is on disk."""
        self._instead = {os.path.normpath(path): file for path, file in texts.items()}
        self._words = WordSearch(self._layout.files, read=self._bytes)

    def _bytes(self, path: str) -> bytes:
        file = self._instead.get(path)
        return file.text.encode("utf-8", "surrogatepass") if file is not None else files.read_or_nothing(path)

    # ---- words

    def holding(self, word: str) -> tuple[pathlib.Path, ...]:
        """The Python files below the root whose text holds `word`, by a scan of all of them, once a word."""
        question = f"holding:{word}"
        if word not in self._holding:
            # Where files change, they are read again.
            words = WordSearch(self._layout.files) if self._results.is_changing else self._words
            self._holding[word] = words.holding(word)
            self._searched.append(word)
            inside = "\n".join(map(self._paths.relative, self._holding[word]))
            answer = hashlib.sha256(inside.encode("utf-8", "surrogatepass")).hexdigest()
            self._results.known_answers[question] = answer
        self._results.ask(question, self._results.known_answers[question])
        # What is held counts with the text at hand, which need not be the one on disk.
        found = [path for path in self._holding[word] if path not in self._held]
        found += [path for path, file in self._held.items() if file.holds(word)]
        return tuple(map(_path, sorted(found)))

    def is_held_otherwise(self, word: str) -> bool:
        """Whether the text at hand of a file has a word which the one on disk has not, or the reverse."""
        return any((path in self._holding[word]) is not file.holds(word) for path, file in self._held.items())

    def says(self, words: str, path: str) -> bool:
        """Whether the text of a file has the words."""
        inside = self._paths.relative(path)
        is_known = f"file:{inside}" in self._results.known_answers
        if not self._results.is_changing and path not in self._held and is_known and words.isascii():
            says = self._words.holds(path, words)  # its digest is known, so that it need not be decoded again
        else:
            file = self.read(path)
            says = file is not None and words in file.text
        self._results.ask(f"{SAYS}:{words}:{inside}", str(int(says)))
        return says

    def searched(self) -> Iterator[tuple[str, tuple[str, ...]]]:
        """The words that were searched for since the last call, each with the paths below the root that hold it."""
        words, self._searched = self._searched, []
        return ((word, tuple(map(self._paths.relative, self._holding[word]))) for word in words)

    def search_with(self, words: WordSearch) -> None:
        """Search for words with what is known of them from an earlier run."""
        self._words = words

    def prepare_search(self) -> None:
        """Read all files, for a run that is going to search them for many words."""
        self._words.prepare()

    def words_in(self, path: str) -> set[str]:
        """Those of the words that were searched for that a file holds."""
        file = self._held.get(path)
        return {word for word, paths in self._holding.items() if (word in file.text if file else path in paths)}

    def _look_again(self, path: str) -> None:
        """Which of the words that were searched for a file on disk holds now."""
        data = files.read_or_nothing(path) if path.endswith(".py") else b""
        for word, paths in self._holding.items():
            if (word.encode() in data) is not (path in paths):
                self._holding[word] = tuple(sorted({*paths} ^ {path}))

    # ---- names of files

    def named(self, patterns: str) -> tuple[str, ...]:
        """The files that lie in the folders of the project's Python files, or around them, and have a name like one of
        the patterns (between spaces, in lower case): their paths below the root, sorted."""
        found = tuple(map(self._paths.relative, self._layout.named(patterns)))
        digest = hashlib.sha256("\n".join(found).encode("utf-8", "surrogatepass")).hexdigest()
        self._results.ask(f"named:{patterns}", digest)
        return found
