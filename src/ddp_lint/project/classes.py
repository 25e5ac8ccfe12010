"""The classes of a project: what they inherit from, and which of them defines a method."""

from __future__ import annotations

import functools
from typing import Any

from ddp_lint.knowledge import canonical, frameworks
from ddp_lint.project.facts import MOST_BASES, ClassFacts, ModuleFacts
from ddp_lint.project.meanings import Meanings
from ddp_lint.project.modules import Modules
from ddp_lint.project.results import KeptResults


class Classes:
    """The classes of one project."""

    def __init__(self, results: KeptResults, modules: Modules, meanings: Meanings) -> None:
        self._results = results
        self._modules = modules
        self._meanings = meanings

    def find(self, name: str) -> ClassFacts | None:
        """A class of the project by its canonical name."""
        if not self._meanings.is_own(name):
            return None
        place = self._results.remember(("class", name), lambda: self._place(name))
        if place is None:
            return None
        path, rest = place
        facts = self._modules.facts_at(path)
        return self.of(facts, facts.definitions[rest]) if facts is not None else None

    def _place(self, name: str) -> tuple[str, str] | None:
        """The file of a class and its name there: the class itself would keep the syntax tree of its file."""
        found = self._meanings.split(name)
        if found is None:
            return None
        facts, rest = found
        path = self._modules.place(name.removesuffix(f".{rest}"))
        is_class = facts.definitions.get(rest).__class__.__name__ == "ClassDef"
        return (path, rest) if is_class and path is not None else None

    def of(self, facts: ModuleFacts, node: Any) -> ClassFacts:
        """A class of a module by its definition."""
        found: ClassFacts = self._results.remember(node, lambda: self._of(facts, node), facts.kept)
        return found

    def _of(self, facts: ModuleFacts, node: Any) -> ClassFacts:
        bases = tuple(self._meanings.of(facts, base) for base in node.bases)
        return ClassFacts(f"{facts.name}.{node.name}" if facts.name else node.name, facts, node, bases)

    def lineage(self, name: str) -> tuple[str, ...]:
        """The canonical names of a class and of all that it inherits from, nearest first, as far as they are known; of
        very many the nearest."""
        return self._results.remember(("lineage", name), lambda: tuple(self._lineage(name)))

    def _lineage(self, name: str) -> list[str]:
        found: dict[str, None] = {}
        queue = [canonical(self._meanings.canonical(name))]
        while queue and len(found) < MOST_BASES:
            name = queue.pop(0)
            if name and name not in found:
                found[name] = None
                facts = self.find(name)
                queue += facts.bases if facts else foreign_bases(name)
            if len(queue) == 1 and self._results.remembers(("lineage", queue[0])):
                return list(dict.fromkeys((*found, *self.lineage(queue[0]))))[:MOST_BASES]
        return list(found)

    def subclass_of(self, name: str, base: str) -> bool:
        """Whether the class `name` is `base` or inherits from it, through the project and through what is known of
        other packages (`Framework.bases`)."""
        return canonical(base) in self.lineage(name)

    def method(self, name: str, method: str) -> tuple[ClassFacts, Any] | None:
        """The class of the project that defines `method` for instances of the class `name`, and the method."""
        for ancestor in self.lineage(name):
            facts = self.find(ancestor)
            if facts is not None and method in facts.methods:
                return facts, facts.methods[method]
        return None


@functools.cache
def foreign_bases(name: str) -> tuple[str, ...]:
    """What is known of the bases of a class outside of the project: `Framework.bases`."""
    entries = frameworks.bases()
    head, _, last = name.rpartition(".")
    bases = entries.get(name) or (entries.get(f"{head}.*") if last[:1].isupper() else None) or ()
    return tuple(base for base in bases if base != name)
