"""What the text of a file shows, without its syntax: results depend on that alone, not on the whole text."""

from __future__ import annotations

import ast
import contextlib
import hashlib
import importlib
import os
import pathlib
from typing import get_args

from ddp_lint.knowledge import frameworks
from ddp_lint.knowledge.project_names import Names, wrapping_pattern
from ddp_lint.project.contents import Contents
from ddp_lint.project.facts import ModuleFacts
from ddp_lint.project.parts import SAYS, SHOWS, TESTED, TESTS
from ddp_lint.project.paths import Paths
from ddp_lint.project.results import KeptResults
from ddp_lint.source.file import SourceFile
from ddp_lint.source.occurring import occurs
from ddp_lint.source.parsing import CannotParse, parse
from ddp_lint.source.wrap_evidence import in_code

#: The questions that are answered here.
OF_TEXT = frozenset({SAYS, SHOWS, TESTED})


class Texts:
    """What the texts of a project's files show. `names`: what the configuration lists."""

    def __init__(self, results: KeptResults, paths: Paths, contents: Contents, names: Names) -> None:
        self._results = results
        self._paths = paths
        self._contents = contents
        self._names = names

    def shows(self, facts: ModuleFacts, what: str) -> bool:
        """Whether the text of a module shows something (`frameworks.Shown`), or, for ``wraps``, has one of the
        project's own wrappers."""
        question = f"{SHOWS}:{what}:{facts.source.inside}"
        self._results.note(question)
        known = self._results.known_answers
        if question not in known:
            known[question] = self._shown_by(facts.source, what, facts.tree)
        return known[question] == "1"

    def tested(self, path: str | pathlib.Path, test: str) -> str:
        """A digest of what one of the `TESTS` finds in the text of a file, '' for nothing: the caller depends on that
        alone."""
        key = os.path.normpath(path)
        question = f"{TESTED}:{test}:{self._paths.relative(key)}"
        self._results.note(question)
        known = self._results.known_answers
        if question not in known:
            known[question] = _tested(self._contents.read(key), test)
        return known[question]

    def answer(self, kind: str, what: str, file: SourceFile | None) -> str:
        """The answer of a text to a question of one of the kinds `OF_TEXT`."""
        if kind == SAYS:
            return str(int(file is not None and what in file.text))
        return self._shown_by(file, what) if kind == SHOWS else _tested(file, what)

    def _shown_by(self, file: SourceFile | None, what: str, tree: ast.Module | None = None) -> str:
        if file is None or what not in get_args(frameworks.Shown):
            return "?"
        pattern = wrapping_pattern(self._names) if what == "wraps" else frameworks.shows(what)
        shown = occurs(pattern, file.text)
        if shown and what == "wraps":
            with contextlib.suppress(CannotParse):
                shown = occurs(pattern, in_code(file.text, tree or parse(file.text)))
        return str(int(shown))


def _tested(file: SourceFile | None, test: str) -> str:
    if test not in TESTS:
        return "?"
    module, name = TESTS[test]
    found = getattr(importlib.import_module(module), name)(file.text) if file is not None else ""
    return hashlib.sha256(found.encode("utf-8", "surrogatepass")).hexdigest()[:20] if found else ""
