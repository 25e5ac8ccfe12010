"""The positions of the nodes of a LibCST tree."""

from __future__ import annotations

import ast
import functools
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import libcst as cst
from libcst.metadata.position_provider import PositionProvidingCodegenState

T = TypeVar("T")

#: Where a node starts and ends: line, column, line, column.
Place = tuple[int, int, int, int]
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
        #: Each node with the places of what was written with it, and the lines to add to them.
        self._known: dict[cst.CSTNode, tuple[dict[cst.CSTNode, Place], int]] = {}

    def place(self, node: cst.CSTNode, around: Iterable[cst.CSTNode]) -> Place:
        """Where a node is. `around`: what it is in, the innermost first."""
        if node not in self._known:
            self._learn([node, *around])
        places, shift = self._known[node]
        line, column, end_line, end_column = places[node]
        return line + shift, column, end_line + shift, end_column

    def _learn(self, chain: list[cst.CSTNode]) -> None:
        """`chain`: a node with what it is in, up to the module."""
        place = next((n for n, up in enumerate(chain[1:]) if isinstance(up, (cst.IndentedBlock, cst.Module))), None)
        statement = chain[place] if place is not None else None
        first = self._first_lines.get(statement) if statement is not None else None
        if place is None or statement is None or first is None:
            places, shift = places_in(self._tree, self._tree), 0
        else:
            indents = [up.indent for up in chain[place + 1 :] if isinstance(up, (cst.IndentedBlock, cst.Match))]
            places = places_in(self._tree, statement, indents)
            shift = first - places[statement][0]
        self._known.update(dict.fromkeys(places, (places, shift)))

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


def places_in(tree: cst.Module, node: cst.CSTNode, indents: Sequence[str | None] = ()) -> dict[cst.CSTNode, Place]:
    """Where a statement of a tree, or all of it, and all nodes in it are, in lines and columns of its code alone. It is
    as deep as the blocks are that it is in; `indents`: theirs, the innermost first."""
    try:
        return _places_in(tree, node, indents)
    except RecursionError:
        return _with_room(lambda: _places_in(tree, node, indents))


def _places_in(tree: cst.Module, node: cst.CSTNode, indents: Sequence[str | None]) -> dict[cst.CSTNode, Place]:
    state = _State(tree.default_indent, tree.default_newline, provider=None)
    state.indent_tokens = [tree.default_indent if indent is None else indent for indent in reversed(indents)]
    node._codegen(state)
    return state.places


class _State(PositionProvidingCodegenState):
    """What LibCST notes where it writes code to find positions, without the code, and without an object for each
    place."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        #: LibCST asks whether there are any, as a module without code has one newline.
        self.tokens = [""]
        self.places: dict[cst.CSTNode, Place] = {}
        self._starts: list[tuple[int, int]] = []

    def add_token(self, value: str) -> None:
        if "\n" in value or "\r" in value:
            self._update_position(value)
        else:
            self.column += len(value)

    def add_indent_tokens(self) -> None:
        for token in self.indent_tokens:
            self.add_token(token)

    def before_codegen(self, node: cst.CSTNode) -> None:
        self._starts.append((self.line, self.column))

    def after_codegen(self, node: cst.CSTNode) -> None:
        start = self._starts.pop()
        if node not in self.places:
            self.places[node] = (*start, self.line, self.column)

    def record_syntactic_position(  # type: ignore[override]
        self, node: cst.CSTNode, *, start_node: cst.CSTNode | None = None, end_node: cst.CSTNode | None = None
    ) -> _Inside:
        return _Inside(self, node, start_node, end_node)


class _Inside:
    """Writing what counts as the place of a node: without the whitespace around it."""

    __slots__ = ("_first", "_last", "_node", "_start", "_state")

    def __init__(self, state: _State, node: cst.CSTNode, first: cst.CSTNode | None, last: cst.CSTNode | None) -> None:
        self._state, self._node, self._first, self._last = state, node, first, last

    def __enter__(self) -> None:
        self._start = self._state.line, self._state.column

    def __exit__(self, *error: object) -> None:
        state, places = self._state, self._state.places
        start = self._start if self._first is None else places[self._first][:2]
        end = (state.line, state.column) if self._last is None else places[self._last][2:]
        places[self._node] = (*start, *end)


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
