"""What a dotted name means in a project, through the re-exports of its modules."""

from __future__ import annotations

from typing import Any

from ddp_lint.knowledge import canonical
from ddp_lint.project.contents import Contents
from ddp_lint.project.facts import Definition, ModuleFacts
from ddp_lint.project.layout import Layout
from ddp_lint.project.modules import Modules
from ddp_lint.project.results import KeptResults
from ddp_lint.source.imports import ImportTable, dotted_ast

_REEXPORT_LIMIT = 16


class Meanings:
    """What the names of a project's modules, functions and classes mean."""

    def __init__(self, results: KeptResults, layout: Layout, contents: Contents, modules: Modules) -> None:
        self._results = results
        self._layout = layout
        self._contents = contents
        self._modules = modules

    def split(self, name: str) -> tuple[ModuleFacts, str] | None:
        """The project module that a dotted name starts with, and the rest of the name inside it."""
        head, rest = name, ""
        while head:
            facts = self._modules.facts(head)
            if facts is not None:
                return facts, rest
            head, _, last = head.rpartition(".")
            rest = f"{last}.{rest}" if rest else last
        return None

    def definition(self, name: str) -> tuple[ModuleFacts, Definition] | None:
        """The function or class of the project with a canonical dotted name, with its module."""
        found = self.split(name) if name else None
        node = found[0].definitions.get(found[1]) if found is not None else None
        return (found[0], node) if found is not None and node is not None else None

    def of(self, facts: ModuleFacts, node: Any) -> str:
        """The canonical name of an expression of a module, '' when it is neither imported nor defined there."""
        name = facts.qualified(node) or self.star_target(facts.imports, dotted_ast(node))
        return canonical(self.canonical(name)) if name else ""

    def canonical(self, name: str) -> str:
        """Follow re-exports: `pkg.all_reduce` -> `torch.distributed.all_reduce` where pkg/__init__ imports it.

        A name that the project defines itself, or does not know, is returned as it is.
        """
        if not self.is_own(name):
            return name
        return self._results.remember(("canonical", name), lambda: self._canonical(name))

    def is_own(self, name: str) -> bool:
        """Whether the project has anything by the first part of the name: cheap, and no for most names."""
        first = name.partition(".")[0]
        own = self._layout.holds(first)
        self._results.ask(f"own:{first}", str(int(own)))
        return own

    def _canonical(self, name: str) -> str:
        for _ in range(_REEXPORT_LIMIT):
            found = self.split(name)
            if found is None or not found[1]:
                return name
            facts, rest = found
            first = rest.partition(".")[0]
            if first in facts.definitions:
                return f"{facts.name}.{rest}"
            target = facts.imports.resolve(rest)
            if target is None and first not in facts.values:
                target = self.star_target(facts.imports, rest)
            if target is None or target == name:
                return name
            name = target
        return name

    def star_target(self, imports: ImportTable, name: str) -> str | None:
        """What a name means that came by ``from module import *``, as far as the project's modules show."""
        first = name.partition(".")[0]
        if not imports.stars or first.startswith("_"):  # a star leaves those behind
            return None
        return next((f"{star}.{name}" for star in self.own_stars(imports) if self._exports(star, first)), None)

    def own_stars(self, imports: ImportTable) -> tuple[str, ...]:
        """The modules of ``from module import *`` that are the project's: each unknown name is looked for in them."""
        stars = imports.stars
        if not stars:
            return ()
        return self._results.remember(("own stars", stars), lambda: tuple(s for s in stars if self._modules.place(s)))

    def _exports(self, module: str, name: str) -> bool:
        return self._results.remember(("exports", module, name), lambda: self._has(module, name))

    def _has(self, module: str, name: str, seen: frozenset[str] = frozenset()) -> bool:
        path = None if module in seen else self._modules.place(module)
        # Without the word it has the name from nowhere but another star: no reason to parse it.
        if path is None or not (self._contents.says(name, path) or self._contents.says("import *", path)):
            return False
        facts = self._modules.facts_at(path)
        if facts is None:
            return False
        if name in facts.definitions or name in facts.imports.names or name in facts.values:
            return True
        return any(self._has(star, name, seen | {module}) for star in facts.imports.stars)
