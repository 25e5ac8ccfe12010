"""Where the nodes of a LibCST tree stand."""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable
from typing import TypeVar

import libcst as cst
from libcst.metadata import CodeRange, MetadataWrapper, PositionProvider

T = TypeVar("T")

#: LibCST uses some ten frames for one level of nesting; what is deeper than 1,000 levels is not parsed at all.
_FRAMES = 20_000
_STACK_BYTES = 512 * 1024 * 1024


class Positions:
    """Where the nodes of a tree stand, in lines and columns of its code.

    LibCST finds that out by writing code anew, which takes as long as parsing it: only those of the tree's statements
    are written that someone asks about.
    """

    def __init__(self, tree: cst.Module, text: str) -> None:
        self._tree = tree
        self._text = text
        self._known: dict[cst.CSTNode, tuple[CodeRange, int]] = {}

    def range(self, node: cst.CSTNode, statement: cst.CSTNode | None) -> tuple[CodeRange, int]:
        """The range of a node below a top-level statement, and the lines to add to it; without a statement, that of
        what stands at the top itself."""
        found = self._known.get(node)
        if found is None:
            first = self._first_lines.get(statement) if statement is not None else None
            self._learn(self._tree if first is None else _alone(self._tree, statement), statement, first)
            found = self._known[node]
        return found

    def _learn(self, tree: cst.Module, statement: cst.CSTNode | None, first: int | None) -> None:
        ranges = positions_of(tree)
        shift = 0 if first is None or statement is None else first - ranges[statement].start.line
        self._known.update((node, (place, shift)) for node, place in ranges.items())

    @functools.cached_property
    def _first_lines(self) -> dict[cst.CSTNode, int]:
        """The line of each top-level statement by `ast`; empty where that cannot parse the code."""
        from ddp_lint.project.facts import CannotParse, parse

        try:
            below = parse(self._text).body
        except CannotParse:
            return {}
        found: dict[cst.CSTNode, int] = {}
        place = 0
        for statement in self._tree.body:
            found[statement] = below[place].lineno
            place += _count(statement)
        return found


def _count(statement: cst.CSTNode) -> int:
    """How many statements `ast` makes of one of LibCST's: the parts of ``a; b`` are statements of their own."""
    return len(statement.body) if isinstance(statement, cst.SimpleStatementLine) else 1


def _alone(tree: cst.Module, statement: cst.CSTNode | None) -> cst.Module:
    return tree.with_changes(body=[statement], header=[], footer=[])


def positions_of(tree: cst.Module) -> dict[cst.CSTNode, CodeRange]:
    """The positions of all nodes of a tree, in lines and columns of its code."""
    try:
        return _positions(tree)
    except RecursionError:
        return _with_room(lambda: _positions(tree))


def _positions(tree: cst.Module) -> dict[cst.CSTNode, CodeRange]:
    return dict(MetadataWrapper(tree, unsafe_skip_copy=True).resolve(PositionProvider))


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
