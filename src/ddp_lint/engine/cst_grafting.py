"""An edit within one function: its new LibCST tree in the tree of the file that is there.

LibCST takes a fifth of the time of a check in an editor. Nodes do not change: the function, and the class and the
module around it, are new ones; all other nodes are those of the tree before, with what is kept of them.
"""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import libcst as cst

from ddp_lint.engine.parsing import tree_of
from ddp_lint.source.parsing import CannotParse
from ddp_lint.source.syntax import first_line
from ddp_lint.view.module import Kept

#: Files whose trees are kept, the last that were checked.
_KEPT = 8


class _Outline(NamedTuple):
    """A definition of a module or a class, from its `first` line to its `last`, counted from 0 in the text that LibCST
    is given; `end`: the line of the next statement."""

    first: int
    last: int
    end: int
    inside: tuple[_Outline, ...]


@dataclasses.dataclass(frozen=True)
class Parsed:
    """A tree with the text and the outlines of its definitions, and what is kept of its functions."""

    tree: cst.Module
    text: str
    outlines: tuple[_Outline, ...]
    kept: Kept


class Trees:
    """The trees of files that are checked again and again."""

    def __init__(self) -> None:
        self._kept: dict[str, Parsed] = {}

    def parsed(self, path: str, text: str, line_map: list[int] | None, body: list[ast.stmt]) -> Parsed:
        """The tree of a text, which is made of the lines in `line_map` (None: all) of a file whose statements are
        `body`. Raises CannotParse."""
        outlines = _outlines(body, {line: n for n, line in enumerate(line_map)} if line_map else None)
        earlier = self._kept.pop(path, None)
        found = _grafted(earlier, text, outlines) if earlier is not None else None
        self._kept[path] = found = found or Parsed(tree_of(text), text, outlines, Kept())
        if len(self._kept) > _KEPT:
            del self._kept[next(iter(self._kept))]
        return found


def _outlines(body: list[ast.stmt], places: dict[int, int] | None, end: int = 2**31) -> tuple[_Outline, ...]:
    """The definitions of a body. `places`: of the lines of the file that the text has; the others are left out."""

    def place(line: int) -> int | None:
        return line - 1 if places is None else places.get(line)

    found: list[_Outline] = []
    for node in reversed(body):
        first = place(first_line(node))
        if first is None:
            continue
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            last = place(node.end_lineno or node.lineno)
            inside = _outlines(node.body, places, end) if isinstance(node, ast.ClassDef) and last is not None else ()
            found.append(_Outline(first, first if last is None else last, end, inside))
        end = first
    return tuple(reversed(found))


def _grafted(earlier: Parsed, text: str, outlines: tuple[_Outline, ...]) -> Parsed | None:
    """The tree of a text by an earlier one; None where they differ in more than functions."""
    earlier.kept.edited = frozenset()
    if text == earlier.text:
        return earlier
    before, after = earlier.text.split("\n"), text.split("\n")
    tree, done = earlier.tree, -1
    for edit in _edits(before, after):
        if edit[1] < done:
            continue  # in the same function
        way = _way(tree.body, earlier.outlines, outlines, edit, len(after) - len(before))
        function = _function(way, after, tree)
        if function is None:
            return None
        earlier.kept.let_go(way[-1].node)
        tree, done = _replaced(tree, way, function), way[-1].outline.end
        earlier.kept.edited |= {function}
    return Parsed(tree, text, outlines, earlier.kept)


def _edits(before: Sequence[str], after: Sequence[str]) -> list[tuple[int, int]]:
    """The lines of the later text that differ from the earlier one, each from the first to the last: one by one where
    no line has come or gone, else all between, with the lines before and after, which have to be in the function."""
    if len(before) == len(after):
        return [(n, n) for n in range(len(after)) if before[n] != after[n]]
    shorter = min(len(before), len(after))
    first = next((n for n in range(shorter) if before[n] != after[n]), shorter)
    same = next((n for n in range(shorter - first) if before[-1 - n] != after[-1 - n]), shorter - first)
    return [(first - 1, len(after) - same)]


class _Step(NamedTuple):
    """A definition on the way to an edit, and its place among the statements around it."""

    node: cst.FunctionDef | cst.ClassDef
    at: int
    outline: _Outline


def _way(
    nodes: Sequence[cst.CSTNode],
    earlier: tuple[_Outline, ...],
    outlines: tuple[_Outline, ...],
    edit: tuple[int, int],
    added: int,
) -> list[_Step]:
    """The definitions around an edit, down to a function; nothing where there is none that was in these lines before
    `added` lines came."""
    definitions = [(n, node) for n, node in enumerate(nodes) if isinstance(node, (cst.FunctionDef, cst.ClassDef))]
    if not len(definitions) == len(earlier) == len(outlines):
        return []
    for (at, node), old, new in zip(definitions, earlier, outlines, strict=True):
        if new.first <= edit[0] and edit[1] <= new.last:
            step = _Step(node, at, new)
            if (old.first, old.last + added) != (new.first, new.last):
                return []
            if isinstance(node, cst.FunctionDef):
                return [step]
            inside = _way(node.body.body, old.inside, new.inside, edit, added)
            return [step, *inside] if inside else []
    return []


def _function(way: list[_Step], lines: list[str], around: cst.Module) -> cst.FunctionDef | None:
    """The tree of an edited function, as deep in blocks as it is in the file."""
    blocks = [step.node.body for step in way[:-1]]
    indents = [b.indent or around.default_indent for b in blocks if isinstance(b, cst.IndentedBlock)]
    if not way or len(indents) < len(blocks):
        return None
    heads = ["".join(indents[:depth]) + "class _:" for depth in range(len(indents))]
    _, _, place = way[-1]
    try:
        tree = tree_of("\n".join((*heads, *lines[place.first : place.end], "")))
    except CannotParse:
        return None
    body: Sequence[cst.CSTNode] = tree.body
    for _ in indents:
        (class_,) = body
        assert isinstance(class_, cst.ClassDef)
        body = class_.body.body
    function = body[0] if len(body) == 1 else None
    if tree.default_indent != around.default_indent or not isinstance(function, cst.FunctionDef):
        return None
    return function.with_changes(leading_lines=way[-1].node.leading_lines)


def _replaced(tree: cst.Module, way: list[_Step], function: cst.FunctionDef) -> cst.Module:
    """The tree with another function at the end of the way."""
    inner: cst.CSTNode = function
    for step, around in zip(reversed(way), reversed([None, *way[:-1]]), strict=True):
        outer = tree if around is None else around.node.body
        block = outer.with_changes(body=[*outer.body[: step.at], inner, *outer.body[step.at + 1 :]])
        inner = block if around is None else around.node.with_changes(body=block)
    assert isinstance(inner, cst.Module)
    return inner


__all__ = ["Parsed", "Trees"]
