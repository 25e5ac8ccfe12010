"""The projects of an editor's documents: their summaries stay in memory, and texts count before they are saved."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Iterable

from ddp_lint.config import FILES, ConfigError, Configuration, Settings
from ddp_lint.engine.checking import Checker
from ddp_lint.engine.report import FileResult
from ddp_lint.files import reason_of
from ddp_lint.findings import Finding
from ddp_lint.rules.registry import is_for_rules
from ddp_lint.source import SourceFile, Unreadable
from ddp_lint.source.notebook import SUFFIX, Lines

#: Projects whose summaries are kept, the last used.
_KEPT = 4


@dataclasses.dataclass(frozen=True)
class Document:
    """A text in the editor. `cells` are those of a notebook, whose `text` is its module."""

    path: pathlib.Path
    text: str
    cells: Lines | None = None


@dataclasses.dataclass(frozen=True)
class Checked:
    """What was found in a text; `problem` says why it could not be checked."""

    document: Document
    findings: tuple[Finding, ...] = ()
    problem: str = ""


class Workplace:
    """Checks documents, one at a time. All methods are for one thread."""

    def __init__(self) -> None:
        self._configuration = Configuration()
        self._checkers: dict[int, tuple[Settings, Checker]] = {}
        self._open: dict[pathlib.Path, Document] = {}
        #: What was found in the texts that are open.
        self._found: dict[pathlib.Path, Checked] = {}

    def look(self, document: Document) -> Checked | None:
        """A first look at a document that was edited within functions: what is in them. None for any other change.

        `check` has the last word; it takes several times as long.
        """
        path = document.path
        known, before = self._open.get(path), self._found.get(path)
        if known is None or before is None or before.document != known or before.problem or document.cells is not None:
            return None
        lines, earlier = document.text.split("\n"), known.text.split("\n")
        try:
            checker, is_new = self._checker(self._configuration.of(path.parent))
        except (ConfigError, OSError):
            return None
        if is_new or len(lines) != len(earlier) or lines == earlier:
            return None
        file = _file(document, checker)
        self._open[path] = document
        if not checker.change(path, file):
            return None
        edited = {number for number, pair in enumerate(zip(lines, earlier, strict=True), 1) if pair[0] != pair[1]}
        found = checker.look(file, path, before.findings, edited)
        if found is None:
            return None
        self._found[path] = checked = Checked(document, found)
        return checked

    def check(self, document: Document) -> Checked:
        """The findings of a document, which is from now on the content of its file until it is closed."""
        path = document.path
        known = self._open.get(path)
        self._open[path] = document
        try:
            settings = self._configuration.of(path.parent)
            if not _is_checked(document, settings):
                return Checked(document)
            checker, is_new = self._checker(settings)
            file = _file(document, checker)
        except (ConfigError, Unreadable, OSError) as e:  # a path that no file can have
            return Checked(document, problem=reason_of(e))
        if is_new or known is None or (known.text, known.cells) != (document.text, document.cells):
            checker.change(path, file)
        key = ("checked in an editor", file.path, file.digest)
        result: FileResult = checker.project.remember(key, lambda: checker.check_file(file, path))
        self._found[path] = checked = Checked(document, result.findings, result.error)
        return checked

    def close(self, path: pathlib.Path) -> None:
        """What is on disk is the content of the file again."""
        self._found.pop(path, None)
        if self._open.pop(path, None) is not None:
            self._changed(path)

    def changed_on_disk(self, paths: Iterable[pathlib.Path], *, listing: bool) -> None:
        """Files have changed; with `listing` some were created or deleted. An open document is what the editor
        shows."""
        paths = list(paths)
        if listing or any(path.name in FILES for path in paths):
            self._configuration = Configuration()
            self._checkers.clear()
            return
        for path in paths:
            if path not in self._open:
                self._changed(path)

    def _changed(self, path: pathlib.Path) -> None:
        for settings, checker in self._checkers.values():
            if path.is_relative_to(settings.root):
                checker.change(path, None)

    def _checker(self, settings: Settings) -> tuple[Checker, bool]:
        key = id(settings)
        kept = self._checkers.pop(key, None)
        checker = kept[1] if kept else Checker(settings, changing=True)
        self._checkers[key] = (settings, checker)  # the last used is the last
        while len(self._checkers) > _KEPT:
            del self._checkers[next(iter(self._checkers))]
        if kept is None:
            for path, document in self._open.items():
                if path.is_relative_to(settings.root):
                    self._take(checker, document)
        return checker, kept is None

    def _take(self, checker: Checker, document: Document) -> None:
        try:
            checker.change(document.path, _file(document, checker))
        except Unreadable:  # a notebook's JSON that is being written
            return


def _file(document: Document, checker: Checker) -> SourceFile:
    """Raises Unreadable."""
    shown, inside = checker.project.paths.shown(document.path), checker.project.paths.inside(document.path)
    if document.cells is not None:
        return SourceFile(shown, document.text, inside, document.cells)
    return SourceFile.of_text(shown, document.text, inside)


def _is_checked(document: Document, settings: Settings) -> bool:
    """Whether `ddp-lint check` would look at the file when it searches its folder."""
    if any(globs.decide(str(document.path)) for globs in settings.exclude):
        return False
    if document.path.suffix == SUFFIX:
        return document.cells is not None  # as JSON an editor has no lines to show findings at
    return is_for_rules(document.path.name, document.text.partition("\n")[0])
