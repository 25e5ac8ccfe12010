"""The project's own names that its configuration lists: which expressions match them."""

from __future__ import annotations

import ast
import dataclasses
import functools
from collections.abc import Iterator

from ddp_lint.knowledge import canonical
from ddp_lint.knowledge.frameworks import wrappers
from ddp_lint.knowledge.project_names import Names, last
from ddp_lint.project.facts import ModuleFacts
from ddp_lint.project.meanings import Meanings
from ddp_lint.project.results import KeptResults
from ddp_lint.project.types import is_class_name
from ddp_lint.source.imports import dotted_ast
from ddp_lint.source.syntax import walk

#: Calls within calls that are followed to what a wrapper wraps with.
_DEPTH = 3
_EITHER = "either"


@dataclasses.dataclass(frozen=True)
class Wrapping:
    """How a function or class of the project wraps: `kind` as for `knowledge.frameworks.Wrapper`, ddp where its code
    does not show it, either where it wraps in several ways; `given` are the keywords that it passes to the wrapper that
    comes back, None where that cannot be seen."""

    kind: str
    given: frozenset[str] | None


class Own:
    """What the configuration says of a project's own names, by key. It is false where it says nothing."""

    def __init__(self, results: KeptResults, meanings: Meanings, names: Names) -> None:
        self.names = names
        self.ranks = Listed(results, meanings, names.rank_expressions)
        self.wrappers = Listed(results, meanings, names.wrappers)
        self.collectives = Listed(results, meanings, names.collectives)
        self._results = results
        self._meanings = meanings

    def __bool__(self) -> bool:
        return bool(self.names.words)

    def find(self, *spelled: str) -> str:
        """The listed name of any key that an expression has, as `Listed.find`."""
        return self.ranks.find(*spelled) or self.wrappers.find(*spelled) or self.collectives.find(*spelled)

    def is_class(self, name: str) -> bool:
        """Whether an absolute name is that of a class whose methods or attributes are listed."""
        return is_class_name(name) and any(listed.startswith(f"{name}.") for listed in self.names.all)

    def of_class(self, names: tuple[str, ...]) -> frozenset[str]:
        """What is listed of the methods and attributes of a class with these absolute names."""
        dotted = (name for name in self.names.all if "." in name)
        heads = ((name, Listed(self._results, self._meanings, (name.rpartition(".")[0],))) for name in dotted)
        return frozenset(name for name, head in heads if head.find(*names))

    def wrapping(self, name: str) -> Wrapping:
        """How the wrapper of this absolute name wraps, as far as its code shows it."""
        found = self._results.remember(("wraps", name), lambda: frozenset(self._wrappings(name, _DEPTH)))
        if len(found) == 1:
            return next(iter(found))
        kinds = {wrapping.kind for wrapping in found} or {"ddp"}
        return Wrapping(_EITHER if len(kinds) > 1 else kinds.pop(), None)

    def _wrappings(self, name: str, depth: int) -> Iterator[Wrapping]:
        found = self._meanings.split(name) if name and depth else None
        definition = found[0].definitions.get(found[1].partition(".")[0]) if found is not None else None
        if found is None or definition is None:
            return
        for node in walk(definition):
            if isinstance(node, ast.Call):
                called = self._meanings.of(found[0], node.func)
                kind = _kinds().get(called)
                if kind is not None:
                    plain = isinstance(definition, ast.FunctionDef) and len(node.args) <= 1
                    keywords = [keyword.arg for keyword in node.keywords]
                    yield Wrapping(kind, frozenset(filter(None, keywords)) if plain and None not in keywords else None)
                elif called != name:
                    yield from self._wrappings(called, depth - 1)
        for base in getattr(definition, "bases", ()):
            kind = _kinds().get(self._meanings.of(found[0], base))
            if kind is not None:
                yield Wrapping(kind, None)


@functools.cache
def _kinds() -> dict[str, str]:
    return {name: entry.kind for name, entry in wrappers().items()}


class Listed:
    """The names under one key. It is false where there are none."""

    def __init__(self, results: KeptResults, meanings: Meanings, names: tuple[str, ...]) -> None:
        self._results = results
        self._meanings = meanings
        self._names = names
        self._ending: dict[str, list[str]] = {}
        for name in names:
            self._ending.setdefault(last(name), []).append(name)

    def __bool__(self) -> bool:
        return bool(self._names)

    @property
    def words(self) -> frozenset[str]:
        """The last parts of the names: one of them is in all code that has one, but for imports under another."""
        return frozenset(self._ending)

    def find(self, *spelled: str) -> str:
        """The listed name that matches an expression, '' for none: it is that name, or ends in it at a dot.

        An expression is spelled as it is in the code, and absolutely as far as that is known. A name that is passed
        on (``from .core import sync_all`` in a package) is the one that it is passed on from.
        """
        for spelling in spelled if self._names else ():
            for name in self._ending.get(last(spelling), ()):
                if spelling == name or spelling.endswith(f".{name}"):
                    return name
        passed_on = (name for name in self._names if "." in name and self._meaning(name) in spelled)
        return next(passed_on, "")

    def _meaning(self, name: str) -> str:
        return canonical(self._meanings.canonical(name))

    def spelled_in(self, facts: ModuleFacts) -> tuple[str, ...]:
        """How a file can spell the names: as they are listed, and as its imports and definitions shorten them."""
        key = ("spelled", self._names, facts.name, hash(facts.file.text))
        return self._results.remember(key, lambda: self._spelled_in(facts))

    def _spelled_in(self, facts: ModuleFacts) -> tuple[str, ...]:
        local = {f"{facts.name}.{name}": name for name in (*facts.definitions, *facts.values)}
        local |= {target: name for name, target in facts.imports.names.items()}
        found = dict.fromkeys(self._names)
        for name in self._names:
            for target, short in local.items():
                if f"{name}.".startswith(f"{target}."):
                    found[short + name.removeprefix(target)] = None
                elif self._meaning(target) == self._meaning(name):
                    found[short] = None
        return tuple(found)


def written(node: ast.AST) -> str:
    """The spelling of a dotted expression as it is in the code; what is not dotted in it is left out."""
    name = dotted_ast(node)
    return name or (f".{node.attr}" if isinstance(node, ast.Attribute) else "")
