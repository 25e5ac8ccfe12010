"""The statements of a method that decide what it stores in one attribute of its object: a backward slice.

What `train()` stores as `self.fetcher` depends on few of its statements. The others are left out where only the
attribute is needed.
"""

from __future__ import annotations

import ast
import bisect
import collections
import copy
import dataclasses
import re
from collections.abc import Iterator

from ddp_lint.divergence.calls_by_name import CHANGING, is_agreement
from ddp_lint.project.parts import kept_by_node
from ddp_lint.source.imports import dotted_ast, last_part
from ddp_lint.source.syntax import FunctionNode, first_name, walk

_BLOCKS = ("body", "orelse", "finalbody")
#: Blocks that are no statements themselves.
_PARTS = ("handlers", "cases")
#: What a compound statement evaluates or binds besides its blocks.
_HEADS = ("test", "target", "iter", "subject", "items")
#: What ends the way through a block, and what names the function has.
_EXITS = (ast.Return, ast.Raise, ast.Break, ast.Continue)
_NAMING = (ast.Global, ast.Nonlocal, ast.Import, ast.ImportFrom, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
#: Exits before a store that are looked at; where there are more, it is taken to be reached.
_MOST_EXITS = 64
#: What distinguishes two objects of a class: ``Timer(group=group, is_main=rank == 0)``.
_TELLING = re.compile(r"group|pg$|mesh|rank|main|master|primary|world|sync|distrib|^is_|model|sampler|loader")
#: Statements that a store may depend on, all exits before it included; where there are more, the names in it are
#: unknown, but for what its own block binds.
_MOST = 60


def storing(method: FunctionNode, attribute: str) -> list[ast.stmt]:
    """The body of a method without the statements that the attribute of its object does not depend on."""
    return _statements_of(method).deciding(f"{first_name(method)}.{attribute}")


@dataclasses.dataclass(eq=False, slots=True)
class _Statement:
    """A simple statement, or a compound one without its blocks."""

    node: ast.stmt
    number: int
    #: The compound statement and the block of it that it is in.
    around: _Statement | None
    block: int
    names: set[str] = dataclasses.field(default_factory=set)
    #: The names by whose need it is needed: those that it binds, or hands to a call, which may change what they hold.
    changes: set[str] = dataclasses.field(default_factory=set)


class _Statements:
    """All statements of one method; `this` is the name of its object."""

    def __init__(self, this: str, body: list[ast.stmt]) -> None:
        self._this = this
        self._count = 0
        self._changing: dict[str, list[_Statement]] = {}
        self._storing: dict[str, list[_Statement]] = {}
        self._exits: list[_Statement] = []
        self._naming: list[_Statement] = []
        self._read(body, None, 0)

    def _read(self, block: list[ast.stmt], around: _Statement | None, number: int) -> None:
        for node in block:
            self._count += 1
            statement = _Statement(node, self._count, around, number)
            for part in _evaluated(node):
                self._note(part, statement)
            for name in statement.changes:
                self._changing.setdefault(name, []).append(statement)
            if isinstance(node, _EXITS):
                self._exits.append(statement)
            elif isinstance(node, _NAMING):
                self._naming.append(statement)
            for place, inner in enumerate(_blocks(node)):
                self._read(inner, statement, place)

    def _note(self, part: ast.AST, statement: _Statement) -> None:
        for node in walk(part):
            if isinstance(node, ast.Name):
                statement.names.add(node.id)
                if not isinstance(node.ctx, ast.Load):
                    statement.changes.add(node.id)
            elif isinstance(node, ast.Attribute) and not isinstance(node.ctx, ast.Load):
                self._storing.setdefault(dotted_ast(node), []).append(statement)
        made = part.value if isinstance(part, ast.Assign) else None
        if isinstance(made, ast.Call) and last_part(made.func)[:1].isupper():
            arguments = {n.id for a in (*made.args, *made.keywords) for n in walk(a) if isinstance(n, ast.Name)}
            statement.names -= {name for name in arguments if _TELLING.search(name) is None}
        statement.names.discard(self._this)
        if isinstance(part, ast.Expr) and isinstance(part.value, ast.Call):
            self._note_call(part.value, statement)

    def _note_call(self, call: ast.Call, statement: _Statement) -> None:
        """A call for what it does: it may change what it is given (``all_reduce(x)``, ``fully_shard(self.vision)``)."""
        for given in (*call.args, *(keyword.value for keyword in call.keywords)):
            if isinstance(given, ast.Attribute):
                self._storing.setdefault(dotted_ast(given), []).append(statement)
        if isinstance(call.func, ast.Attribute) and call.func.attr in CHANGING:
            self._storing.setdefault(dotted_ast(call.func.value), []).append(statement)
        if is_agreement(last_part(call.func)) or dotted_ast(call.func).partition(".")[0] != self._this:
            statement.changes |= statement.names

    def deciding(self, path: str) -> list[ast.stmt]:
        """The statements that what is stored under a dotted path depends on, as a body."""
        stores = self._storing.get(path, [])
        last = max((found.number for found in stores), default=0)
        before = bisect.bisect_left(self._exits, last, key=lambda found: found.number)
        exits = self._exits[:before] if before <= _MOST_EXITS else []
        if len(self._closed([*stores, *self._naming, *exits])) > _MOST:
            return [found.node for found in sorted({*stores, *self._near(stores)}, key=lambda each: each.number)]
        kept = self._closed([*stores, *self._naming, *_beside(stores, exits)])
        blocks: _Kept = collections.defaultdict(list)
        for statement in sorted(kept, key=lambda each: each.number):
            blocks[statement.around, statement.block].append(statement)
        return [_reduced(each, blocks) for each in blocks.get((None, 0), ())]

    def _near(self, stores: list[_Statement]) -> Iterator[_Statement]:
        """The last statements before a store, in its own block, that bind the names in it."""
        for store in stores:
            for name in store.names:
                before = [found for found in self._changing.get(name, ()) if found.number < store.number]
                beside = before and (before[-1].around, before[-1].block) == (store.around, store.block)
                if beside and not any(_blocks(before[-1].node)):
                    yield before[-1]

    def _closed(self, waiting: list[_Statement]) -> set[_Statement]:
        """With all that they depend on, as long as it is not too much."""
        kept: set[_Statement] = set()
        needed: set[str] = set()
        while waiting and len(kept) <= _MOST:
            statement = waiting.pop()
            if statement in kept:
                continue
            kept.add(statement)
            if statement.around is not None:
                waiting.append(statement.around)
            for name in statement.names - needed:
                needed.add(name)
                waiting += self._changing.get(name, ())
        return kept


#: The statements that are kept, by the block that they are in.
_Kept = dict[tuple[_Statement | None, int], list[_Statement]]


def _reduced(statement: _Statement, kept: _Kept) -> ast.stmt:
    """A statement with what is kept of its blocks."""
    inner: list[list[ast.stmt]] = []
    for place, block in enumerate(_blocks(statement.node)):
        found = [_reduced(each, kept) for each in kept.get((statement, place), ())]
        inner.append(found or [ast.copy_location(ast.Pass(), block[0])])
    return _with_blocks(statement.node, iter(inner)) if inner else _without_value(statement.node)


def _beside(stores: list[_Statement], exits: list[_Statement]) -> list[_Statement]:
    """The exits in a block that leads to one of the stores. ``if x is None: raise`` is none of them: the names behind
    it are those of the way past it."""
    blocks: set[tuple[_Statement | None, int]] = set()
    for store in stores:
        up: _Statement | None = store
        while up is not None and (up.around, up.block) not in blocks:
            blocks.add((up.around, up.block))
            up = up.around
    return [found for found in exits if (found.around, found.block) in blocks]


@kept_by_node(1024)
def _statements_of(method: FunctionNode) -> _Statements:
    return _Statements(first_name(method), method.body)


def _blocks(node: ast.stmt) -> Iterator[list[ast.stmt]]:
    if not isinstance(node, _NAMING):
        yield from (block for field in _BLOCKS if (block := getattr(node, field, None)))
        yield from (part.body for field in _PARTS for part in getattr(node, field, ()))


def _with_blocks(node: ast.stmt, inner: Iterator[list[ast.stmt]]) -> ast.stmt:
    """A copy of a compound statement with other blocks, in the order of `_blocks`."""
    reduced = copy.copy(node)
    for field in _BLOCKS:
        if getattr(node, field, None):
            setattr(reduced, field, next(inner))
    for field in _PARTS:
        parts = [copy.copy(part) for part in getattr(node, field, ())]
        for part in parts:
            part.body = next(inner)
        if parts:
            setattr(reduced, field, parts)
    return reduced


def _without_value(node: ast.stmt) -> ast.stmt:
    return ast.copy_location(ast.Return(value=None), node) if isinstance(node, ast.Return) else node


def _evaluated(node: ast.stmt) -> Iterator[ast.AST]:
    """What a statement evaluates and binds, without its blocks and what it returns."""
    if not any(_blocks(node)):
        if not isinstance(node, (*_NAMING, ast.Return)):
            yield node
        return
    for field in _HEADS:
        part = getattr(node, field, None)
        yield from part if isinstance(part, list) else () if part is None else (part,)
    for case in getattr(node, "cases", ()):
        yield from (each for each in (case.pattern, case.guard) if each is not None)
