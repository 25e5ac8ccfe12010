"""Questions about all files of a project: which hold a word, which import a module."""

from __future__ import annotations

import pathlib
import re
from collections.abc import Iterator

from ddp_lint.project import Project
from ddp_lint.project.facts import ModuleFacts

_IMPORT_LINE = re.compile(r"^[ \t]*(?:from|import)\b[^\n]*(?:\([^)]*\))?", re.MULTILINE)
#: Files that import a module are looked at until this many were read: beyond it the answer is "nobody told".
_READ_LIMIT = 200


def importers(project: Project, name: str, *, holding: tuple[str, ...]) -> Iterator[ModuleFacts]:
    """The modules that import the module `name`, or names from it, and hold one of the words `holding`."""
    package, _, last = name.rpartition(".")
    word = last or package
    if not word:
        return
    found = project.holding(word)
    wanted = set[pathlib.Path]().union(*(project.holding(w) for w in holding))
    for path in [p for p in found if p in wanted][:_READ_LIMIT]:
        text = project.text(path)
        if text is None or not any(re.search(rf"\b{re.escape(word)}\b", line) for line in _IMPORT_LINE.findall(text)):
            continue
        facts = project.facts_of(path)
        if facts is not None and facts.name != name and imports_module(facts, name):
            yield facts


def imports_module(facts: ModuleFacts, name: str) -> bool:
    """Whether a module imports the module `name`, something from it, or all of it."""
    targets = (*facts.imports.names.values(), *facts.imports.stars)
    return any(target == name or target.startswith(f"{name}.") for target in targets)
