"""Focus: of a file, only the definitions that some active rule can have an interest in are parsed with LibCST.

A scan for words picks the rules that concern a file at all; `ast`, ten times cheaper than LibCST, tells its
definitions apart. What is kept is concatenated into a shorter source, with a map back to the lines of the file.
"""

from __future__ import annotations

import ast
import bisect
import dataclasses
import functools
import operator
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from ddp_lint.knowledge.project_names import Names, wrapping
from ddp_lint.project.facts import Definition, FunctionNode, ModuleFacts
from ddp_lint.project.words import words
from ddp_lint.source.syntax import statements

if TYPE_CHECKING:
    from ddp_lint.rules.base import Rule
    from ddp_lint.rules.registry import Declaration

#: Methods that say what an object is made of: kept whole in a class that is kept.
_CONSTRUCTORS = {"__init__", "__new__", "__post_init__", "setup", "configure_model", "configure_optimizers", "build"}
#: Statements outside of functions are kept without a trigger up to this many lines and characters: they bind names.
_SHORT, _NARROW = 10, 2000


@dataclasses.dataclass(frozen=True)
class _Interest:
    """What a rule declares, ready for the scan."""

    said: Declaration
    triggers: frozenset[bytes]
    requires: frozenset[bytes]

    @classmethod
    def of(cls, said: Declaration, names: Names) -> _Interest:
        triggers, requires = (
            (*words, *names.beside(words), *wrapping(words)) for words in (said.triggers, said.requires)
        )
        return cls(said, frozenset(map(str.encode, triggers)), frozenset(map(str.encode, requires)))

    @property
    def whole(self) -> bool:
        """Whether the rule must see every definition."""
        return self.said.visits and not self.said.triggers and not self.said.wants

    def concerns(self, found: frozenset[bytes]) -> bool:
        """Whether a file with these words can be of interest. A predicate on definitions stands in for triggers."""
        if self.requires and self.requires.isdisjoint(found):
            return False
        return not self.triggers or self.said.wants or not self.triggers.isdisjoint(found)


class Selection:
    """The rules of a run, asked file by file which of them have any business there. `names` of the project's own count
    as the words that they stand beside."""

    def __init__(self, declarations: Iterable[Declaration], names: Names | None = None) -> None:
        self._interests = [_Interest.of(said, names or Names()) for said in declarations]

    def concerned(self, text: str, *, test: bool = False) -> Focus:
        """The rules that a file with this text concerns, which is a `test` or none."""
        found = words(text)
        asked = (interest for interest in self._interests if interest.said.in_tests or not test)
        return Focus([interest for interest in asked if interest.concerns(found)])


@dataclasses.dataclass(frozen=True)
class Source:
    """What LibCST is to parse. `line_map[i]` is the file's line of line i+1; None when it is the whole file.
    `concern` tells which rules each definition is kept for, None: all see all."""

    text: str
    line_map: list[int] | None = None
    concern: Concern | None = None


class Focus:
    """The rules that one file concerns, and what of it they need to see."""

    def __init__(self, interests: Sequence[_Interest]) -> None:
        self._interests = interests
        self._visitors = [interest for interest in interests if interest.said.visits]

    @functools.cached_property
    def rules(self) -> list[type[Rule]]:
        """The rules themselves: imported when first asked for."""
        return [interest.said.rule() for interest in self._interests]

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
        parts.add_body(facts.tree.body, within_class=False)
        if not parts.useful:
            return Source("", [])
        return Source("\n".join(parts.lines) + "\n", parts.line_map, concern)


class Concern:
    """Which of some rules the definitions of a file concern. Sets of rules are numbers, a bit for each rule."""

    def __init__(self, interests: Sequence[_Interest], facts: ModuleFacts) -> None:
        self._codes = [interest.said.code for interest in interests]
        self._whole_classes = sum(1 << bit for bit, interest in enumerate(interests) if interest.said.whole_class)
        self._curious = sum(1 << bit for bit, interest in enumerate(interests) if interest.said.sees_all_kept)
        wanting = ((1 << bit, i.said.rule().wants) for bit, i in enumerate(interests) if i.said.wants)
        self._wanting = [(bit, wants) for bit, wants in wanting if wants is not None]
        self._wanted: dict[FunctionNode, int] = {}
        told = _told_by_word(interests, facts)
        known, prose = told.keys(), facts.prose
        self._lines: list[int] = []
        self._rules: list[int] = []
        for number, line in enumerate(facts.file.lines, 1):
            if number not in prose and (hits := known & words(line)):
                self._lines.append(number)
                self._rules.append(_either(told[word] for word in hits))

    def in_lines(self, first: int, last: int) -> int:
        """The rules with a trigger from line `first` to `last`."""
        start, end = bisect.bisect_left(self._lines, first), bisect.bisect_right(self._lines, last)
        return _either(self._rules[start:end])

    def of(self, node: Definition) -> int:
        """The rules that a definition concerns: by a trigger, by what it or one of its methods does."""
        wanted = 0
        if self._wanting:
            inside = statements(node) if isinstance(node, ast.ClassDef) else (node,)
            functions = (n for n in inside if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef)))
            wanted = _either(map(self._wanting_rules, functions))
        return wanted | self.in_lines(_start(node), node.end_lineno or node.lineno)

    def _wanting_rules(self, function: FunctionNode) -> int:
        if function not in self._wanted:
            self._wanted[function] = _either(bit for bit, wants in self._wanting if wants(function))
        return self._wanted[function]

    def within(self, node: Definition, owner: int) -> int:
        """The rules that a definition in the body of a class concerns, which itself concerns the rules `owner`."""
        constructs = not isinstance(node, ast.ClassDef) and node.name in _CONSTRUCTORS
        return owner if constructs else self.of(node) | self.whole(owner)

    def whole(self, rules: int) -> int:
        """Those of the rules that see a class with all its methods."""
        return rules & self._whole_classes

    def codes(self, rules: int) -> frozenset[str]:
        rules |= self._curious
        return frozenset(code for bit, code in enumerate(self._codes) if rules & 1 << bit)


def _told_by_word(interests: Sequence[_Interest], facts: ModuleFacts) -> dict[bytes, int]:
    """The rules that a word is a trigger of, or the name under which the file imports what a trigger names."""
    told: dict[bytes, int] = {}
    for bit, interest in enumerate(interests):
        for word in interest.triggers:
            told[word] = told.get(word, 0) | 1 << bit
    aliases = {
        name.encode(): _either(told.get(part, 0) for part in target.encode().split(b"."))
        for name, target in facts.imports.names.items()
    }
    return told | {name: rules | told.get(name, 0) for name, rules in aliases.items() if rules}


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

    def add_body(self, body: list[ast.stmt], *, within_class: bool) -> None:
        for unit, first, last in _units(body):
            node = unit[0]
            if len(unit) == 1 and isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                self._add_function(node, first, last, within_class)
            elif len(unit) == 1 and isinstance(node, ast.ClassDef):
                self._add_class(node, first, last)
            elif self._concern.in_lines(first, last):
                self.useful = True
                self._add_lines(first, last)
            elif self._short(first, last) and not all(_is_idle(statement) for statement in unit):
                self._add_lines(first, last)

    def _add_function(self, node: FunctionNode, first: int, last: int, within_class: bool) -> None:
        if self._concern.of(node):
            self.useful = True
            self._add_lines(first, last)
        elif within_class and node.name in _CONSTRUCTORS:
            self._add_lines(first, last)
        else:
            self._add_header(node, first, last)

    def _add_class(self, node: ast.ClassDef, first: int, last: int) -> None:
        if not self._concern.of(node):
            self._add_header(node, first, last)
            return
        self.useful = True
        start = _start(node.body[0])
        if not self._starts_line(node.body[0]) or self._concern.whole(self._concern.in_lines(first, last)):
            self._add_lines(first, last)
            return
        self._add_lines(first, start - 1)
        before = len(self.lines)
        self.add_body(node.body, within_class=True)
        if len(self.lines) == before:
            self._add_ellipsis(start, _indent(self._source[start - 1]))

    def _add_header(self, node: Definition, first: int, last: int) -> None:
        """A definition without its body: what it is called, its bases or parameters, its decorators."""
        start = _start(node.body[0])
        if not self._starts_line(node.body[0]):
            self._add_lines(first, last)
            return
        self._add_lines(first, start - 1)
        self._add_ellipsis(start, _indent(self._source[node.lineno - 1]) + " ")

    def _add_lines(self, first: int, last: int) -> None:
        self.lines += self._source[first - 1 : last]
        self.line_map += range(first, last + 1)

    def _add_ellipsis(self, line: int, indent: str) -> None:
        self.lines.append(f"{indent}...")
        self.line_map.append(line)

    def _starts_line(self, node: ast.stmt) -> bool:
        """Whether a statement is the first thing on its line: not the `pass` of ``): pass``."""
        line = self._source[_start(node) - 1]
        decorated = bool(getattr(node, "decorator_list", ()))
        return line.lstrip().startswith("@") if decorated else len(_indent(line)) == node.col_offset

    def _short(self, first: int, last: int) -> bool:
        return last - first < _SHORT and sum(map(len, self._source[first - 1 : last])) < _NARROW


def _units(body: list[ast.stmt]) -> Iterator[tuple[list[ast.stmt], int, int]]:
    """The statements with their first and last line; those that share a line together."""
    unit: list[ast.stmt] = []
    first = last = 0
    for node in body:
        start, end = _start(node), node.end_lineno or node.lineno
        if unit and start <= last:
            unit.append(node)
            last = max(last, end)
            continue
        if unit:
            yield unit, first, last
        unit, first, last = [node], start, end
    if unit:
        yield unit, first, last


def _start(node: ast.stmt) -> int:
    """The first line of a statement, decorators included."""
    decorators: list[ast.expr] = getattr(node, "decorator_list", [])
    return min([node.lineno, *(d.lineno for d in decorators)])


def _is_idle(node: ast.stmt) -> bool:
    """Imports (the import table has them), docstrings and `pass`."""
    constant = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    return constant or isinstance(node, (ast.Import, ast.ImportFrom, ast.Pass))


def _indent(line: str) -> str:
    return line[: len(line) - len(line.lstrip())]
