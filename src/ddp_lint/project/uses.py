"""Uses of a name: the expressions that may refer to a function of a project, called or passed on."""

from __future__ import annotations

import ast
import bisect
import dataclasses
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from ddp_lint.project.bound import bound_in
from ddp_lint.project.facts import ModuleFacts, assigned_in, statements_of
from ddp_lint.project.parts import kept_by_node, touch
from ddp_lint.source.imports import last_part
from ddp_lint.source.syntax import FunctionNode, below, calls_below, either_of, first_line, parameters, walk

if TYPE_CHECKING:
    from ddp_lint.project.project import Project


_WORD = re.compile(r"\w+")
#: Statements of a body that are looked up by their lines. Fewer are gone through faster.
_MANY = 16


@dataclasses.dataclass(frozen=True)
class Use:
    """An expression by a name (``f``, ``x.f``). `call`: the call of it, if it is called; `given`: the call that it
    is an argument of; `around` and `owner`: the function and the class that it is in."""

    node: ast.Name | ast.Attribute
    call: ast.Call | None
    given: ast.Call | None
    around: FunctionNode | None
    owner: ast.ClassDef | None


def uses(facts: ModuleFacts, name: str) -> Iterator[Use]:
    """The uses of a name in a file, by the last part of dotted names."""
    touch(facts.tree)
    index = _index(facts.tree, facts.source.text)
    if name not in index.places:  # looked up for each method of a name: all classes of a file may have one
        index.places[name] = tuple(_places(facts, index, name))
    for node, around, owner, above in index.places[name]:
        call = above if isinstance(above, ast.Call) else None
        called = call is not None and call.func is node
        yield Use(node, call if called else None, None if called else call, around, owner)


_Place = tuple[ast.Name | ast.Attribute, FunctionNode | None, ast.ClassDef | None, ast.AST | None]


def _places(facts: ModuleFacts, index: _Index, name: str) -> Iterator[_Place]:
    """Where a name is: with the function and the class that it is in, and the call around it. Statements whose lines
    do not hold the word are passed over."""
    lines = index.lines.get(name, ())
    stack: list[tuple[ast.AST, FunctionNode | None, ast.ClassDef | None, ast.AST | None]]
    stack = [(facts.tree, None, None, None)] if lines else []
    while stack:
        node, around, owner, above = stack.pop()
        if isinstance(node, ast.stmt):
            place = bisect.bisect_left(lines, first_line(node))
            if place == len(lines) or lines[place] > (node.end_lineno or node.lineno):
                continue
        if isinstance(node, (ast.Attribute, ast.Name)):
            if last_part(node) == name and not (isinstance(node, ast.Name) and _is_own(around, node)):
                yield node, around, owner, above
            if isinstance(node, ast.Name):
                continue
        elif isinstance(node, FunctionNode):
            around = node
        elif isinstance(node, ast.ClassDef):
            around, owner = None, node
        of_child = above if isinstance(node, ast.keyword) else node
        stack += [(child, around, owner, of_child) for child in index.on_lines(node, lines)]


def _is_own(function: FunctionNode | None, use: ast.Name) -> bool:
    """Whether a name is a parameter or a variable of a function: in its body it is nothing else of the project. Its
    defaults and decorators are evaluated outside."""
    first = function.body[0] if function is not None else None
    if function is None or first is None or (use.lineno, use.col_offset) < (first_line(first), first.col_offset):
        return False
    name = use.id
    if any(each.arg == name for each in parameters(function)):
        return True
    declared = (n.names for n in statements_of(function) if isinstance(n, (ast.Global, ast.Nonlocal)))
    return bool(assigned_in(function, name)) and not any(name in names for names in declared)


class _Index:
    """Where the words of a file are, and where the statements of its long bodies begin."""

    def __init__(self, text: str) -> None:
        self.lines: dict[str, list[int]] = {}
        for number, line in enumerate(text.split("\n"), 1):
            for word in set(_WORD.findall(line)):
                self.lines.setdefault(word, []).append(number)
        self._bodies: dict[ast.AST, tuple[list[int], list[ast.AST]]] = {}
        #: By name: where it was found.
        self.places: dict[str, tuple[_Place, ...]] = {}

    def on_lines(self, node: ast.AST, lines: Sequence[int]) -> Iterable[ast.AST]:
        """What a node consists of; of many statements those that begin before one of the lines alone."""
        body: Any = getattr(node, "body", None)
        if not isinstance(body, list) or len(body) < _MANY:
            return below(node)
        if node not in self._bodies:
            statements = set(body)
            besides = [each for each in below(node) if each not in statements]
            self._bodies[node] = list(map(first_line, body)), besides
        firsts, besides = self._bodies[node]
        numbers = {bisect.bisect_right(firsts, line) - 1 for line in lines}
        return [*besides, *(body[number] for number in sorted(numbers) if number >= 0)]


# One name after the other is looked up in a file, each file while it is checked.
@kept_by_node(32)
def _index(tree: ast.AST, text: str) -> _Index:
    return _Index(text)


def calls_through(project: Project, facts: ModuleFacts, use: Use) -> Sequence[tuple[ModuleFacts, Use, ast.Call]] | None:
    """The calls of a variable that a use gives a class to, and that is called alone: ``kind = First if first else
    Second``, ``kind(4)``. None where the class goes anywhere else."""
    if use.around is None:
        return None
    held = [
        name
        for name, bound in bound_in(use.around).items()
        for each in bound
        if each.value is not None and not each.steps and not each.put_in and use.node in _one_of(each.value)
    ]
    if len(held) != 1:
        return None
    calls: list[tuple[ModuleFacts, Use, ast.Call]] = []
    called: set[ast.AST] = set()
    for call in calls_below(use.around):
        if isinstance(call.func, ast.Name) and call.func.id == held[0]:
            called.add(call.func)
            calls.append((facts, use, call))
    reads = (n for n in walk(use.around) if isinstance(n, ast.Name) and n.id == held[0] and isinstance(n.ctx, ast.Load))
    return calls if all(each in called for each in reads) else None


def _one_of(value: ast.expr) -> Iterator[ast.expr]:
    """The values that an expression may be: of ``a if x else b if y else c`` three."""
    for each in either_of(value):
        yield from _one_of(each) if isinstance(each, ast.IfExp) else (each,)


def constructions(project: Project, name: str, most: int) -> Sequence[tuple[ModuleFacts, Use, ast.Call]]:
    """The calls that make objects of a class, by its canonical name, without those of tests; none where its name is
    called in more than `most` files."""

    def found() -> Iterator[tuple[ModuleFacts, Use, ast.Call]]:
        word = name.rpartition(".")[2]
        paths = project.contents.holding(f"{word}(")
        for path in paths if len(paths) <= most else ():
            facts = project.modules.facts_of(path)
            for use in uses(facts, word) if facts is not None and not facts.source.is_test else ():
                if facts is None or project.meanings.of(facts, use.node) != name:
                    continue
                if use.call is not None:
                    yield facts, use, use.call
                else:
                    yield from calls_through(project, facts, use) or ()

    return project.remember(("made by", name, most), lambda: tuple(found()))  # needed for each parameter of the class
