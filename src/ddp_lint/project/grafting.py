"""An edit within functions that moves no line: their new bodies in the syntax tree that is there.

What is kept of a file is kept by the nodes of its tree. Where an editor's user types within a function, all other nodes
stay, and what depends on them holds. A docstring is no part of a body.
"""

from __future__ import annotations

import ast
import itertools
from typing import Any

from ddp_lint.project.parts import classes_documented, docstring_of, is_part, parts_below
from ddp_lint.source.syntax import first_line, last_line

_PLACE = ("lineno", "col_offset", "end_lineno")


def graft(old: ast.Module, new: ast.Module, before: str, after: str) -> list[ast.AST] | None:
    """The functions of the old tree (`parts.parts_of`) that have the bodies of the new one from now on, as these
    differ; None where more than bodies differs, or a line has moved: then nothing is changed. `before`, `after`: the
    texts."""
    lines = before.split("\n"), after.split("\n")
    if len(lines[0]) != len(lines[1]):
        return None
    edited = [0, *itertools.accumulate(int(one != other) for one, other in zip(*lines, strict=True))]
    comparison = _Comparison(edited, {})
    if not comparison.are_alike(old, new):
        return None
    for one, other in comparison.ending:
        one.__dict__["end_col_offset"] = other.__dict__["end_col_offset"]
        one.__dict__.pop("span", None)  # its place as findings show it (`frame.span_of`)
    for docstring, renewed in comparison.docstrings.values():
        docstring.value, docstring.end_col_offset = renewed.value, renewed.end_col_offset
        docstring.__dict__.pop("span", None)
    for one, other in comparison.changed:
        one.__dict__["body"] = other.__dict__["body"]
        _outdate(one)
    if comparison.changed:
        _outdate(old)
        for node in parts_below(old):
            if isinstance(node, ast.ClassDef):
                _outdate(node)
    return [one for one, _ in comparison.changed]


def _outdate(node: ast.AST) -> None:
    """What is kept by the node is that of another version of it (`parts.kept_by_node`)."""
    node.__dict__["version"] = node.__dict__.get("version", 0) + 1


class _Comparison:
    """Two trees, side by side. `edited`: how many lines differ above each."""

    def __init__(self, edited: list[int], docstrings: dict[int, tuple[ast.Expr, ast.Expr]]) -> None:
        self._edited = edited
        #: Those that say the same of parameters, by the identity of the old one.
        self.docstrings = docstrings
        #: Functions whose bodies differ.
        self.changed: list[tuple[ast.AST, ast.AST]] = []
        #: What ends in another column, since what it holds does.
        self.ending: list[tuple[ast.AST, ast.AST]] = []

    def are_alike(self, one: Any, other: Any) -> bool:
        """Whether two nodes, or two lists of them, differ in nothing but the bodies of functions."""
        stack = [(one, other)]
        while stack:
            one, other = stack.pop()
            if one.__class__ is not other.__class__:
                return False
            if isinstance(one, list):
                if len(one) != len(other):
                    return False
                stack += zip(one, other, strict=True)
            elif not isinstance(one, ast.AST):
                if one != other:
                    return False
            elif id(one) in self.docstrings:
                continue
            elif not self._is_untouched(one, other):
                if any(getattr(one, name, None) != getattr(other, name, None) for name in _PLACE):
                    return False
                if getattr(one, "end_col_offset", None) != getattr(other, "end_col_offset", None):
                    if not isinstance(one, ast.stmt) or "body" not in one._fields:
                        return False
                    self.ending.append((one, other))
                self._take_docstring(one, other)
                stack += self._fields(one, other)
        return True

    def _take_docstring(self, one: ast.AST, other: ast.AST) -> None:
        """Give a docstring to the old tree that says of parameters what its own says."""
        old, new = docstring_of(one), docstring_of(other)
        if old is None or new is None or (old.lineno, old.end_lineno) != (new.lineno, new.end_lineno):
            return
        if classes_documented(str(old.value)) == classes_documented(str(new.value)):
            statement: ast.Expr = one.__dict__["body"][0]
            self.docstrings[id(statement)] = statement, other.__dict__["body"][0]

    def _fields(self, one: ast.AST, other: ast.AST) -> list[tuple[Any, Any]]:
        fields = [name for name in one._fields if name != "body" or not is_part(one)]
        if is_part(one):
            inside = _Comparison(self._edited, self.docstrings)
            if not inside.are_alike(one.__dict__["body"], other.__dict__["body"]):
                self.changed.append((one, other))
            else:
                self.ending += inside.ending
        return [(getattr(one, name, None), getattr(other, name, None)) for name in fields]

    def _is_untouched(self, one: ast.AST, other: ast.AST) -> bool:
        """Whether no line of a statement is edited."""
        if not isinstance(one, ast.stmt) or not isinstance(other, ast.stmt):
            return False
        if (one.lineno, one.end_lineno) != (other.lineno, other.end_lineno):
            return False
        return self._edited[first_line(one) - 1] == self._edited[last_line(one)]
