"""The positions of the nodes of a LibCST tree."""

from __future__ import annotations

import ast
import functools
import re
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import libcst as cst
from libcst.metadata.position_provider import PositionProvidingCodegenState

from ddp_lint.source.parsing import CannotParse, parse
from ddp_lint.source.syntax import below, statements
from ddp_lint.source.tree import children

T = TypeVar("T")

#: Where a node starts and ends: line, column, line, column.
Place = tuple[int, int, int, int]
#: LibCST uses some ten frames for one level of nesting; what is deeper than 1,000 levels is not parsed at all.
_FRAMES = 20_000
_STACK_BYTES = 512 * 1024 * 1024
_LINE_END = re.compile(r"\r\n?|\n")


class Positions:
    """The positions of the nodes of a tree, in lines and columns of its code.

    LibCST finds that out by writing code again, which takes as long as parsing it: only those statements are written
    that are needed, without the ones around them. `ast` knows the lines that they start at, and the places of most of
    the nodes that are needed.
    """

    def __init__(self, tree: cst.Module, text: str) -> None:
        self._tree = tree
        self._text = text
        #: Each node with the places of what was written with it, and the lines to add to them.
        self._known: dict[cst.CSTNode, tuple[dict[cst.CSTNode, Place], int]] = {}
        #: The places of nodes by `ast`, and the statements for which it was asked.
        self._read: dict[cst.CSTNode, Place] = {}
        self._looked_at: set[tuple[cst.CSTNode, str]] = set()

    def place(self, node: cst.CSTNode, around: Iterable[cst.CSTNode]) -> Place:
        """Where a node is. `around`: what it is in, the innermost first."""
        if node not in self._known:
            chain = [node, *around]
            found = self._by_ast(chain)
            if found is not None:
                return found
            self._learn(chain)
        places, shift = self._known[node]
        line, column, end_line, end_column = places[node]
        return line + shift, column, end_line + shift, end_column

    def _by_ast(self, chain: list[cst.CSTNode]) -> Place | None:
        """By what `ast` says of the statement that a node is in: that is read in a tenth of the time that writing it
        takes. None for nodes and statements of other types, and where the two trees do not fit."""
        node = chain[0]
        found = self._read.get(node)
        kind = _ALIKE.get(type(node), "")
        if found is not None or not (kind or isinstance(node, _SIMPLE)):
            return found
        statement = next((each for each in chain if each in self._numbers), None)
        if statement is None or (statement, kind) in self._looked_at:
            return None
        self._looked_at.add((statement, kind))
        number = self._numbers[statement]
        parsed = self._parsed[number : number + max(_count(statement), 1)]
        ends = parsed[0].lineno - 1, _end(parsed[-1])[0]
        if all(map(str.isascii, self._lines[slice(*ends)])):  # `ast` counts bytes
            pairs = _pairs(statement, parsed, kind) if kind else _parts(statement, parsed)
            self._read |= {each: (other.lineno, other.col_offset, *_end(last)) for each, other, last in pairs}
        return self._read.get(node)

    def _learn(self, chain: list[cst.CSTNode]) -> None:
        """`chain`: a node with what it is in, up to the module."""
        place = next((n for n, up in enumerate(chain[1:]) if isinstance(up, (cst.IndentedBlock, cst.Module))), None)
        statement = chain[place] if place is not None else None
        number = self._numbers.get(statement) if statement is not None else None
        if place is None or statement is None or number is None:
            places, shift = places_in(self._tree, self._tree), 0
        else:
            indents = [up.indent for up in chain[place + 1 :] if isinstance(up, (cst.IndentedBlock, cst.Match))]
            places = places_in(self._tree, statement, indents)
            shift = self._parsed[number].lineno - places[statement][0]
        self._known.update(dict.fromkeys(places, (places, shift)))

    @functools.cached_property
    def _parsed(self) -> list[ast.stmt]:
        """The statements by `ast`, in source order; none where that cannot parse the code."""
        try:
            tree = parse(self._text)
        except CannotParse:
            return []
        return sorted((s for s in statements(tree) if isinstance(s, ast.stmt)), key=lambda s: (s.lineno, s.col_offset))

    @functools.cached_property
    def _numbers(self) -> dict[cst.CSTNode, int]:
        """The number of the first of `_parsed` that a statement is."""
        found: dict[cst.CSTNode, int] = {}
        number = 0
        for statement in _statements(self._tree) if self._parsed else ():
            found[statement] = number
            number += _count(statement)
        return found

    @functools.cached_property
    def _lines(self) -> list[str]:
        return _LINE_END.split(self._text)


def _statements(tree: cst.Module) -> Iterator[cst.CSTNode]:
    """The statements of a tree in their order."""
    stack: list[cst.CSTNode] = [*reversed(tree.body)]
    while stack:
        node = stack.pop()
        if isinstance(node, (cst.SimpleStatementLine, cst.SimpleStatementSuite)):
            yield node
            continue
        if isinstance(node, cst.BaseCompoundStatement):
            yield node
        stack += reversed([below for part in _PARTS for below in _part(node, part)])


def _count(statement: cst.CSTNode) -> int:
    """How many `ast` makes of a statement: the parts of ``a; b`` are statements of their own."""
    return len(statement.body) if isinstance(statement, (cst.SimpleStatementLine, cst.SimpleStatementSuite)) else 1


#: Of a compound statement, in the order of the text.
_PARTS = ("body", "cases", "handlers", "orelse", "finalbody")


def _part(node: cst.CSTNode, name: str) -> Sequence[cst.CSTNode]:
    part = getattr(node, name, None)
    return part if isinstance(part, (list, tuple)) else [part] if part is not None else []


#: What `ast` has a node of the same place for; of a name, where it is read or bound by itself.
_ALIKE = {
    cst.Attribute: "Attribute", cst.BinaryOperation: "BinOp", cst.Call: "Call", cst.Comparison: "Compare",
    cst.Name: "Name", cst.SimpleString: "Constant", cst.Subscript: "Subscript", cst.UnaryOperation: "UnaryOp",
}  # fmt: skip
_SIMPLE = (cst.BaseSmallStatement, cst.SimpleStatementLine)
#: What a compound statement has before its blocks, of which both trees have the same parts.
_HEADS: dict[type[cst.CSTNode], tuple[str, ...]] = {
    cst.If: ("test",), cst.While: ("test",), cst.For: ("target", "iter"), cst.With: ("items",)
}  # fmt: skip
#: A node with what begins and what ends where it does.
_Pair = tuple[cst.CSTNode, ast.expr | ast.stmt, ast.expr | ast.stmt]


def _parts(statement: cst.CSTNode, parsed: list[ast.stmt]) -> list[_Pair]:
    """A line of simple statements, and its parts."""
    if not isinstance(statement, cst.SimpleStatementLine):
        return []
    parts: list[_Pair] = [(part, each, each) for part, each in zip(statement.body, parsed, strict=True)]
    return [(statement, parsed[0], parsed[-1]), *parts]


def _pairs(statement: cst.CSTNode, parsed: list[ast.stmt], kind: str) -> list[_Pair]:
    """The expressions of a kind (of `_ALIKE`) of a statement, without the blocks in it."""
    fields = _HEADS.get(type(statement))
    if fields is None and not isinstance(statement, (cst.SimpleStatementLine, cst.SimpleStatementSuite)):
        return []
    own: list[cst.CSTNode] = [part for name in fields or ("body",) for part in _part(statement, name)]
    if any(isinstance(part, cst.TypeAlias) for part in own):  # its value comes before its parameters
        return []
    roots: Sequence[ast.AST] = parsed
    if fields is not None:
        values = (getattr(parsed[0], name, None) for name in fields)
        roots = [n for each in values for n in (each if isinstance(each, list) else [each]) if isinstance(n, ast.AST)]
    nodes, others = _of_kind(own, kind), _of_kind_by_ast(roots, kind)
    if others is None or list(map(_named, nodes)) != list(map(_named, others)):
        return []
    return [(node, other, other) for node, other in zip(nodes, others, strict=True)]


def _of_kind(roots: Sequence[cst.CSTNode], kind: str) -> list[cst.CSTNode]:
    """The expressions of a kind below some nodes, in source order."""
    found: list[cst.CSTNode] = []
    stack = [*reversed(roots)]
    while stack:
        node = stack.pop()
        if _ALIKE.get(type(node)) == kind:
            found.append(node)
        inside = children(node)
        if isinstance(node, (cst.Attribute, cst.Arg)):
            inside = inside[:1]
        elif isinstance(node, cst.Param):
            inside = inside[1:]
        elif isinstance(node, cst.IfExp):
            inside = [inside[1], inside[0], inside[2]]
        elif isinstance(node, cst.Parameters):  # LibCST has those that a call gives by place alone at the end
            first = {*node.posonly_params}
            inside = [*node.posonly_params, *(each for each in inside if each not in first)]
        stack += reversed(inside)
    return found


def _of_kind_by_ast(roots: Sequence[ast.AST], kind: str) -> list[ast.expr] | None:
    """The same of `ast`; None where there are strings in which it may not know the places of expressions."""
    found: list[ast.expr] = []
    stack = list(roots)
    while stack:
        node = stack.pop()
        name = node.__class__.__name__
        if name in ("JoinedStr", "TemplateStr"):
            return None
        if name == kind and isinstance(node, ast.expr):
            # Of strings in a row it has one.
            wanted = not isinstance(node, ast.Constant) or isinstance(node.value, (str, bytes))
            found += [node] if wanted else []
        stack += below(node)
    found.sort(key=_outer_first)
    return found


def _outer_first(node: ast.expr) -> tuple[int, int, int, int]:
    end_line, end_column = _end(node)
    return node.lineno, node.col_offset, -end_line, -end_column


def _end(node: ast.expr | ast.stmt) -> tuple[int, int]:
    return node.end_lineno or node.lineno, node.end_col_offset or node.col_offset


def _named(node: cst.CSTNode | ast.AST) -> str:
    """What a node shows of itself: both trees have the same in the same order."""
    if isinstance(node, (cst.Call, ast.Call)):
        node = node.func
    if isinstance(node, cst.Attribute):
        return node.attr.value
    if isinstance(node, cst.Name):
        return node.value
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


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
