"""What can communicate in the files of a project, as far as names and imports show it."""

from __future__ import annotations

import functools
import hashlib
import pathlib
from collections.abc import Callable, Mapping

from ddp_lint.project.contents import Contents
from ddp_lint.project.framework_imports import SHARDING, FrameworkImports
from ddp_lint.project.layout import Layout
from ddp_lint.project.modules import Modules
from ddp_lint.project.paths import Paths
from ddp_lint.project.project_names import Own
from ddp_lint.project.results import KeptResults
from ddp_lint.source.file import SourceFile, Unreadable

#: By file, the names of the functions that can communicate ('' for the file's own statements). A file that is missing
#: could not be read: nothing is known of it.
Reach = Mapping[str, frozenset[str]]


class Communication:
    """Which files and functions of a project can communicate."""

    def __init__(
        self, results: KeptResults, paths: Paths, layout: Layout, contents: Contents, modules: Modules, own: Own
    ) -> None:
        self._results = results
        self._paths = paths
        self._layout = layout
        self._contents = contents
        self._modules = modules
        self._own = own
        #: Which functions can communicate, once a run looks at a large part of the project.
        self.reach: Reach | None = None
        self._read_reach: Callable[[], Reach | None] = lambda: None

    def uses_frameworks(self, inside: str) -> bool:
        """Whether a file, by its path below the root, or one that it imports, uses a framework of several ranks, in a
        project that has several ranks anywhere."""
        imports, path = self._framework_imports, self._paths.absolute(inside)
        uses = bool(self._own) or (imports.reach(path) and imports.has_ranks(path))
        self._results.ask(f"uses:{inside}", str(int(uses)))
        return uses

    def may_be_in(self, inside: str) -> bool:
        """Whether anything in a file, by its path below the root, can communicate: it uses a framework, or the project
        shards parts of models, which any file may call."""
        return not inside or self.uses_frameworks(inside) or any(map(self._contents.holding, SHARDING))

    @functools.cached_property
    def _framework_imports(self) -> FrameworkImports:
        return FrameworkImports(self._layout, self._text_now)

    def _text_now(self, path: str) -> str | None:
        """The text of a file, for who says what of it a result depends on."""
        facts = self._modules.known_facts(path)
        file = facts.source if facts is not None else self._contents.at_hand(path)
        try:  # as it is read to be checked: a notebook is its cells
            return (file or SourceFile.read(pathlib.Path(path), path)).text
        except Unreadable:
            return None

    def changed(self, path: str) -> list[str]:
        """A file has changed: the questions that may have other answers now, which are forgotten."""
        if not self._framework_imports.changed(path):
            return []
        return self._results.forget_answers(q for q in self._results.known_answers if q.startswith("uses:"))

    def functions_in(self, inside: str) -> frozenset[str] | None:
        """The functions that can communicate in a file, by its path below the root: their names, '' for the file's own
        statements (`program.reach`). None where that is not known, and any may."""
        if self.reach is None:
            return None
        found = self.reach.get(self._paths.absolute(inside))
        self._results.ask(f"reach:{inside}", _digest_of(found))
        return found

    def find_reach_by(self, read: Callable[[], Reach | None]) -> None:
        """How to learn what can communicate, when an earlier result depends on it; None: only by more work than the
        result saves."""
        self._read_reach = read

    def answer(self, inside: str) -> str:
        """A digest of what can communicate in a file, "?" where that is not known without going through the whole
        project."""
        if self.reach is None:
            self.reach, self._read_reach = self._read_reach(), lambda: None
        return "?" if self.reach is None else _digest_of(self.reach.get(self._paths.absolute(inside)))


def _digest_of(names: frozenset[str] | None) -> str:
    if names is None:
        return "-"
    return hashlib.sha256("\n".join(sorted(names)).encode("utf-8", "surrogatepass")).hexdigest()
