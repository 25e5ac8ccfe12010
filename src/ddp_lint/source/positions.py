"""The positions of the nodes of a LibCST tree."""

from __future__ import annotations

import ast
import functools
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import libcst as cst
from libcst.metadata import CodeRange, MetadataWrapper, PositionProvider

T = TypeVar("T")

#: LibCST uses some ten frames for one level of nesting; what is deeper than 1,000 levels is not parsed at all.
_FRAMES = 20_000
_STACK_BYTES = 512 * 1024 * 1024


class Positions:
    """The positions of the nodes of a tree, in lines and columns of its code.

    LibCST finds that out by writing code again, which takes as long as parsing it: only those statements are written
    that are needed, without the ones around them. `ast` knows the lines that they start at.
    """

    def __init__(self, tree: cst.Module, text: str) -> None:
        self._tree = tree
        self._text = text
        self._known: dict[cst.CSTNode, tuple[CodeRange, int]] = {}

    def range(self, node: cst.CSTNode, around: Iterable[cst.CSTNode]) -> tuple[CodeRange, int]:
        """The range of a node, and the lines to add to it. `around`: what the node is in, the innermost first."""
        found = self._known.get(node)
        if found is None:
            self._learn([node, *around])
            found = self._known[node]
        return found

    def _learn(self, chain: list[cst.CSTNode]) -> None:
        """`chain`: a node with what it is in, up to the module."""
        place = next((n for n, up in enumerate(chain[1:]) if isinstance(up, (cst.IndentedBlock, cst.Module))), None)
        statement = chain[place] if place is not None else None
        first = self._first_lines.get(statement) if statement is not None else None
        if place is None or statement is None or first is None:
            ranges, shift = positions_of(self._tree), 0
        else:
            indents = [up.indent for up in chain[place + 1 :] if isinstance(up, (cst.IndentedBlock, cst.Match))]
            ranges = positions_of(_alone(self._tree, statement, indents))
            shift = first - ranges[statement].start.line
        self._known.update((node, (place, shift)) for node, place in ranges.items())

    @functools.cached_property
    def _first_lines(self) -> dict[cst.CSTNode, int]:
        """The line of each statement by `ast`; empty where that cannot parse the code."""
        from ddp_lint.project.facts import CannotParse, parse
        from ddp_lint.source.syntax import statements

        try:
            tree = parse(self._text)
        except CannotParse:
            return {}
        lines = sorted((s.lineno, s.col_offset) for s in statements(tree) if isinstance(s, ast.stmt))
        found: dict[cst.CSTNode, int] = {}
        place = 0
        for statement, count in _statements(self._tree):
            found[statement] = lines[place][0]
            place += count
        return found


def _statements(tree: cst.Module) -> Iterator[tuple[cst.CSTNode, int]]:
    """The statements of a tree in their order, each with how many `ast` makes of it: the parts of ``a; b`` are
    statements of their own."""
    stack: list[cst.CSTNode] = [*reversed(tree.body)]
    while stack:
        node = stack.pop()
        if isinstance(node, (cst.SimpleStatementLine, cst.SimpleStatementSuite)):
            yield node, len(node.body)
            continue
        if isinstance(node, cst.BaseCompoundStatement):
            yield node, 1
        stack += reversed([below for part in _PARTS for below in _part(node, part)])


#: Of a compound statement, in the order of the text.
_PARTS = ("body", "cases", "handlers", "orelse", "finalbody")


def _part(node: cst.CSTNode, name: str) -> Sequence[cst.CSTNode]:
    part = getattr(node, name, None)
    return part if isinstance(part, (list, tuple)) else [part] if part is not None else []


def _alone(tree: cst.Module, statement: cst.CSTNode, indents: Iterable[str | None]) -> cst.Module:
    """A tree of nothing but one statement, as deep as the blocks are that it is in, the innermost first."""
    for indent in indents:
        statement = cst.If(cst.Name("_"), cst.IndentedBlock([statement], indent=indent))  # type: ignore[list-item]
    return tree.with_changes(body=[statement], header=[], footer=[])


def positions_of(tree: cst.Module) -> dict[cst.CSTNode, CodeRange]:
    """The positions of all nodes of a tree, in lines and columns of its code."""
    try:
        return _positions(tree)
    except RecursionError:
        return _with_room(lambda: _positions(tree))


def _positions(tree: cst.Module) -> dict[cst.CSTNode, CodeRange]:
    return dict(_Wrapper(tree, unsafe_skip_copy=True).resolve(PositionProvider))


class _Wrapper(MetadataWrapper):
    """LibCST goes through the tree also where no provider has to see it, which takes as long as to find positions."""

    def visit_batched(self, visitors: Iterable[Any], *args: Any, **kwargs: Any) -> Any:
        visitors = list(visitors)
        return super().visit_batched(visitors, *args, **kwargs) if visitors else self.module


def _with_room(compute: Callable[[], T]) -> T:
    """`compute()` with a stack for deep recursion, in a thread of its own: the main thread's cannot grow."""
    results: list[T] = []
    limit, size = sys.getrecursionlimit(), threading.stack_size(_STACK_BYTES)
    sys.setrecursionlimit(_FRAMES)
    try:
        thread = threading.Thread(target=lambda: results.append(compute()))
        thread.start()
        thread.join()
    finally:
        threading.stack_size(size)
        sys.setrecursionlimit(limit)
    if not results:
        raise RecursionError("the code is nested too deeply")
    return results[0]
