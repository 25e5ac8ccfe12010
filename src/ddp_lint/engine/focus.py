"""Focus: of a file, only the definitions that some active rule can have an interest in are parsed with LibCST.

A scan for words picks the rules that concern a file at all; `ast`, ten times cheaper than LibCST, finds its
definitions. What is kept is concatenated into a shorter source, with a map back to the lines of the file.
"""

from __future__ import annotations

import ast
import bisect
import dataclasses
import functools
import operator
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from ddp_lint.engine.traits import traits
from ddp_lint.knowledge.project_names import Names, wrapping
from ddp_lint.project.facts import Definition, ModuleFacts
from ddp_lint.project.words import words
from ddp_lint.rules.triggers import Trait, Triggers
from ddp_lint.source.syntax import FunctionNode, first_line, statements

if TYPE_CHECKING:
    from ddp_lint.rules.base import Rule
    from ddp_lint.rules.registry import Declaration

#: Statements outside of functions are kept without a trigger up to this many lines and characters: they bind names.
_SHORT, _NARROW = 10, 2000


@dataclasses.dataclass(frozen=True)
class _Interest:
    """What a rule declares, ready for the scan."""

    rule: Declaration
    words: frozenset[bytes]
    #: The file must hold all words of one of these.
    file: tuple[frozenset[bytes], ...]

    @classmethod
    def of(cls, rule: Declaration, names: Names) -> _Interest:
        def known(words: tuple[str, ...]) -> frozenset[bytes]:
            return frozenset(map(str.encode, (*words, *names.beside(words), *wrapping(words))))

        file = tuple(frozenset(name.split(b".")) for name in known(rule.triggers.file))
        return cls(rule, known(rule.triggers.words), file)

    @property
    def traits(self) -> frozenset[Trait]:
        return self.rule.triggers.traits

    @property
    def whole(self) -> bool:
        """Whether the rule must see every definition."""
        return self.rule.visits and not self.rule.triggers.what

    def concerns(self, found: frozenset[bytes]) -> bool:
        """Whether a file with these words can be of interest. What has a trait is not known before it is parsed."""
        if self.file and not any(together <= found for together in self.file):
            return False
        return not self.words or bool(self.traits) or not self.words.isdisjoint(found)


class Selection:
    """The rules of a run, and which of them apply to a file. `names` of the project's own count as the words that they
    are listed with."""

    def __init__(self, declarations: Iterable[Declaration], names: Names | None = None) -> None:
        self._interests = [_Interest.of(rule, names or Names()) for rule in declarations]

    def concerned(self, text: str, *, test: bool = False, communicating: bool = True) -> Focus:
        """The rules that a file with this text concerns, which is a `test` or none, and can communicate or not."""
        found = words(text)

        def is_of_such(where: Triggers) -> bool:
            return (where.tests or not test) and (communicating or not where.communicating)

        asked = (interest for interest in self._interests if is_of_such(interest.rule.triggers))
        return Focus([interest for interest in asked if interest.concerns(found)])


@dataclasses.dataclass(frozen=True)
class Source:
    """What LibCST is to parse. `line_map[i]` is the file's line of line i+1; None when it is the whole file.
    `concern` says which rules each definition is kept for, None: all see all."""

    text: str
    line_map: list[int] | None = None
    concern: Concern | None = None


class Focus:
    """The rules that one file concerns, and what of it they need to see."""

    def __init__(self, interests: Sequence[_Interest]) -> None:
        self._interests = interests
        self._visitors = [interest for interest in interests if interest.rule.visits]

    @functools.cached_property
    def rules(self) -> list[type[Rule]]:
        """The rules themselves: imported at the first use."""
        return [interest.rule.rule() for interest in self._interests]

    @property
    def visitors(self) -> list[type[Rule]]:
        """Those of the rules that visit nodes; the others work on whole files."""
        return [interest.rule.rule() for interest in self._visitors]

    @property
    def visits(self) -> bool:
        return bool(self._visitors)

    def __bool__(self) -> bool:
        return bool(self._interests)

    def source(self, facts: ModuleFacts) -> Source:
        """The kept parts of a file, '' when no rule visits any of it."""
        text = facts.file.text
        if not self.visits:
            return Source("", [])
        if any(interest.whole for interest in self._visitors):
            return Source(text)
        concern = Concern(self._visitors, facts)
        parts = _Parts(facts, concern)
        parts.add(facts.tree.body)
        if not parts.useful:
            return Source("", [])
        return Source("\n".join(parts.lines) + "\n", parts.line_map, concern)


class Concern:
    """Which of some rules the definitions of a file concern. Sets of rules are numbers, a bit for each rule."""

    def __init__(self, interests: Sequence[_Interest], facts: ModuleFacts) -> None:
        self._codes = [interest.rule.code for interest in interests]
        self._by_trait = {
            trait: _either(1 << bit for bit, interest in enumerate(interests) if trait in interest.traits)
            for trait in Trait
        }
        by_word = _rules_by_word(interests, facts)
        known, prose = by_word.keys(), facts.prose
        self._known: dict[Definition, int] = {}
        self._lines: list[int] = []
        self._rules: list[int] = []
        for number, line in enumerate(facts.file.lines, 1):
            if number not in prose and (hits := known & words(line)):
                self._lines.append(number)
                self._rules.append(_either(by_word[word] for word in hits))

    def in_lines(self, first: int, last: int) -> int:
        """The rules with a trigger from line `first` to `last`."""
        start, end = bisect.bisect_left(self._lines, first), bisect.bisect_right(self._lines, last)
        return _either(self._rules[start:end])

    def of(self, node: Definition) -> int:
        """The rules that a definition concerns: by a word, by what it or one of its methods does."""
        if node not in self._known:
            self._known[node] = self._of(node)
        return self._known[node]

    def _of(self, node: Definition) -> int:
        rules = self.in_lines(first_line(node), node.end_lineno or node.lineno)
        if any(self._by_trait.values()):
            inside = statements(node) if isinstance(node, ast.ClassDef) else (node,)
            functions = (n for n in inside if isinstance(n, FunctionNode))
            rules |= _either(self._by_trait[trait] for function in functions for trait in traits(function))
        return rules

    def codes(self, rules: int) -> frozenset[str]:
        return frozenset(code for bit, code in enumerate(self._codes) if rules & 1 << bit)


def _rules_by_word(interests: Sequence[_Interest], facts: ModuleFacts) -> dict[bytes, int]:
    """The rules that a word is a trigger of, or the name under which the file imports what a trigger names."""
    found: dict[bytes, int] = {}
    for bit, interest in enumerate(interests):
        for word in interest.words:
            found[word] = found.get(word, 0) | 1 << bit
    aliases = {
        name.encode(): _either(found.get(part, 0) for part in target.encode().split(b"."))
        for name, target in facts.imports.names.items()
    }
    return found | {name: rules | found.get(name, 0) for name, rules in aliases.items() if rules}


def _either(rules: Iterable[int]) -> int:
    return functools.reduce(operator.or_, rules, 0)


class _Parts:
    """Collects the lines that are kept."""

    def __init__(self, facts: ModuleFacts, concern: Concern) -> None:
        self.lines: list[str] = []
        self.line_map: list[int] = []
        #: Whether anything was kept because a rule may care for it, and not just to go with the rest.
        self.useful = False
        self._source = facts.file.lines
        self._concern = concern

    def add(self, body: list[ast.stmt]) -> None:
        for unit, first, last in _units(body):
            node = unit[0]
            if len(unit) == 1 and isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                self._add_definition(node, first, last)
            elif self._concern.in_lines(first, last):
                self.useful = True
                self._add_lines(first, last)
            elif self._short(first, last) and not all(_is_idle(statement) for statement in unit):
                self._add_lines(first, last)

    def _add_definition(self, node: Definition, first: int, last: int) -> None:
        if self._concern.of(node):
            self.useful = True
            self._add_lines(first, last)
        else:
            self._add_header(node, first, last)

    def _add_header(self, node: Definition, first: int, last: int) -> None:
        """A definition without its body: what it is called, its bases or parameters, its decorators."""
        start = first_line(node.body[0])
        if not self._starts_line(node.body[0]):
            self._add_lines(first, last)
            return
        self._add_lines(first, start - 1)
        self._add_ellipsis(start, _indent(self._source[node.lineno - 1]) + " ")

    def _add_lines(self, first: int, last: int) -> None:
        # An empty line ends ``x = 1 \``: without it the next part that is kept would go on with the statement.
        self.lines += [*self._source[first - 1 : last - 1], self._source[last - 1].removesuffix("\\")]
        self.line_map += range(first, last + 1)

    def _add_ellipsis(self, line: int, indent: str) -> None:
        self.lines.append(f"{indent}...")
        self.line_map.append(line)

    def _starts_line(self, node: ast.stmt) -> bool:
        """Whether a statement is the first thing on its line: not the `pass` of ``): pass``."""
        line = self._source[first_line(node) - 1]
        decorated = bool(getattr(node, "decorator_list", ()))
        return line.lstrip().startswith("@") if decorated else len(_indent(line)) == node.col_offset

    def _short(self, first: int, last: int) -> bool:
        return last - first < _SHORT and sum(map(len, self._source[first - 1 : last])) < _NARROW


def _units(body: list[ast.stmt]) -> Iterator[tuple[list[ast.stmt], int, int]]:
    """The statements with their first and last line; those that share a line together."""
    unit: list[ast.stmt] = []
    first = last = 0
    for node in body:
        start, end = first_line(node), node.end_lineno or node.lineno
        if unit and start <= last:
            unit.append(node)
            last = max(last, end)
            continue
        if unit:
            yield unit, first, last
        unit, first, last = [node], start, end
    if unit:
        yield unit, first, last


def _is_idle(node: ast.stmt) -> bool:
    """Imports (the import table has them), docstrings and `pass`."""
    constant = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    return constant or isinstance(node, (ast.Import, ast.ImportFrom, ast.Pass))


def _indent(line: str) -> str:
    return line[: len(line) - len(line.lstrip())]
