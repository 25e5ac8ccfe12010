"""The state of a project when results were stored, and what has changed since.

Where nothing has, every kept result is still valid, without a look at what it depends on: the states of the files
(times and size) and the listings of the folders decide. Where something has, only that is read.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import pathlib
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ddp_lint.files import MALFORMED, read, write
from ddp_lint.project import Project, states
from ddp_lint.project.layout import FILES_LIMIT, NO_SOURCES
from ddp_lint.project.parts import OF_FILE, file_of
from ddp_lint.project.words import Earlier, WordSearch

_NAME = "project.json"
#: Bytes; what is larger was not written by us.
_LIMIT = 256 * 2**20
#: Changed files for which all words that are kept are searched again; where more have changed, only those that are
#: needed.
_FEW = 20


@dataclasses.dataclass(frozen=True)
class _Kept:
    """What an earlier run has written: the files by their paths below the root, each with its state and the digest of
    its text (None where nothing depends on it); the listings of the folders; the files whose results hold as of then;
    as JSON, the words that were searched for; what was worked out of files that have changed under results that
    hold."""

    files: Mapping[str, tuple[str, str | None]]
    folders: Mapping[str, str]
    results: frozenset[str]
    words: bytes
    #: By question about a part of a file: the digest of the file, and the answer.
    answers: Mapping[str, tuple[str, str]]

    def holding(self) -> dict[str, list[str]]:
        """The files that hold a word, by their paths below the root."""
        with contextlib.suppress(*MALFORMED):
            paths, words = json.loads(self.words)
            if all(isinstance(path, str) for path in paths):
                return {word: [paths[number] for number in numbers] for word, numbers in words.items()}
        return {}


class Snapshot:
    """The files of a project as a run finds them, before it reads any, next to those that an earlier run has stored in
    `folder`."""

    def __init__(self, project: Project, folder: pathlib.Path) -> None:
        self._project = project
        self._place = folder / _NAME
        self._kept = kept = _read(self._place)
        self._before = time.time_ns() - states.YOUNG
        layout = project.layout
        self._python = {project.paths.inside(path): path for path in layout.files()}
        others = {inside: project.paths.absolute(inside) for inside in kept.files.keys() - self._python.keys()}
        paths = {**self._python, **others}
        self._states = {inside: states.state_of(path, self._before) for inside, path in paths.items()}
        self._folders = {project.paths.inside(folder): states.listing_of(layout, folder) for folder in layout.folders()}
        self._is_bounded = len(self._python) < FILES_LIMIT and not layout.has_links()
        same = {inside for inside, (state, _) in kept.files.items() if state and state == self._states[inside]}
        self._is_same = len(same) == len(kept.files) and self._python.keys() <= same and kept.folders == self._folders
        self._results = set(kept.results) if self._is_same else set[str]()
        self._words: dict[str, list[str]] = {}
        digests = ((inside, kept.files[inside][1]) for inside in same)
        self._digests = {inside: digest for inside, digest in digests if digest is not None}
        self._search = WordSearch(layout.files, self._earlier)
        answers = {
            question: answer
            for question, (digest, answer) in kept.answers.items()
            if self._digests.get(file_of(question) or "") == digest
        }
        project.answers.know(self._digests, answers)
        project.contents.search_with(self._search)

    def holds(self, inside: str) -> bool:
        """Whether the kept result for a file holds, as far as that is known without a look at what it depends on."""
        return inside in self._results

    def keep(self, inside: str) -> None:
        """The result for a file holds as long as nothing changes: `note` says so of all that it depends on."""
        self._results.add(inside)

    def note(self, question: str, digest: str | None = None) -> bool:
        """Whether the answer to a question that a result depends on is known to be the same as long as the files and
        folders are what they are now. `digest`: of the file that it is about, where that is known."""
        inside = file_of(question)
        if inside is not None and inside not in self._digests:
            self._digests[inside] = self._project.answers.answer(f"file:{inside}") if digest is None else digest
        kind, _, rest = question.partition(":")
        return self._is_bounded and self._is_within(kind, rest)

    def _is_within(self, kind: str, rest: str) -> bool:
        """Whether the answer to a question depends on the files and folders of the snapshot alone."""
        if kind == "locate":
            _, rest, folder = rest.split(":", 2)
            if folder not in self._folders:
                return False
        if kind in ("find", "locate"):
            return NO_SOURCES.isdisjoint(rest.split(".")) and "\N{MIDDLE DOT}" not in rest
        return kind in ("file", "holding", "named", "own", "reach", "uses") or kind in OF_FILE

    def add_words(self, found: Iterable[tuple[str, Iterable[str]]]) -> None:
        """Words that were searched for, with the files that hold them."""
        self._words.update((word, list(paths)) for word, paths in found)

    # ---- words

    def _earlier(self) -> Earlier:
        """What the words that were searched for are held by, and the files for which that is no longer known."""
        known = {inside: path for inside, path in self._python.items() if self._is_unchanged(inside)}
        holding = {word: [known[f] for f in found if f in known] for word, found in self._kept.holding().items()}
        return Earlier(holding, frozenset(self._python.values()) - frozenset(known.values()))

    def _is_unchanged(self, inside: str) -> bool:
        """Whether the text of a Python file is as it was."""
        state, digest = self._kept.files.get(inside, ("", None))
        if state and state == self._states[inside]:
            return True
        return digest is not None and self._project.answers.answer(f"file:{inside}") == digest

    # ---- on disk

    def write(self) -> None:
        """Keep what is new. Raises OSError."""
        new = {word: paths for word, paths in self._words.items() if word not in self._search.earlier.holding}
        if not new and len(self._results) * 2 < len(self._kept.results):
            return  # a look at some files of many: what is kept of the others is worth more
        if self._is_same and not new and self._results == self._kept.results:
            return
        files = {inside: (self._state_of(inside), self._digests.get(inside)) for inside in self._all_files()}
        results, answers = sorted(self._results), dict(self._answers())
        head = json.dumps({"files": files, "folders": self._folders, "results": results, "answers": answers})
        tail = self._kept.words if self._is_same and not new else self._encoded(new)
        self._place.parent.mkdir(parents=True, exist_ok=True)
        write(self._place, head.encode() + b"\n" + tail)

    def _answers(self) -> Iterator[tuple[str, tuple[str, str]]]:
        for question, answer in self._project.answers.of_parts.items():
            digest = self._digests.get(file_of(question) or "")
            if digest is not None:
                yield question, (digest, answer)

    def _all_files(self) -> Iterator[str]:
        return iter(sorted(self._states.keys() | self._digests.keys()))

    def _state_of(self, inside: str) -> str:
        """The state of a file before it was read."""
        state = self._states.get(inside)
        if state is None:  # first needed in this run: it counts if the text is the same after its state was read
            path = self._project.paths.absolute(inside)
            state = states.state_of(path, self._before)
            if self._project.contents.digest_now(path) != self._digests[inside]:
                return ""
        return state

    def _encoded(self, new: Mapping[str, list[str]]) -> bytes:
        inside = {path: number for number, path in enumerate(self._python)}
        places = {path: inside for inside, path in self._python.items()}
        earlier = self._search.earlier
        kept = earlier.holding if len(earlier.changed) <= _FEW else ()
        words = {word: sorted(inside[places[path]] for path in self._search.holding(word)) for word in kept}
        words |= {word: [inside[path] for path in paths if path in inside] for word, paths in new.items()}
        return json.dumps([list(inside), words], separators=(",", ":")).encode()


def _read(place: pathlib.Path) -> _Kept:
    """What a file holds, nothing where it is not well formed."""
    with contextlib.suppress(*MALFORMED):
        head, _, words = read(place, _LIMIT).partition(b"\n")
        kept: dict[str, Any] = json.loads(head)
        files = {str(inside): (str(state), _digest(digest)) for inside, (state, digest) in kept["files"].items()}
        answers = {str(question): (str(digest), str(answer)) for question, (digest, answer) in kept["answers"].items()}
        return _Kept(files, dict(kept["folders"]), frozenset(map(str, kept["results"])), words, answers)
    return _Kept({}, {}, frozenset(), b"", {})


def _digest(value: object) -> str | None:
    return value if isinstance(value, str) else None


__all__ = ["Snapshot"]
