"""The variables of the loops around a line of the user's source, and their values."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from types import FrameType

from ddp_lint.source.syntax import last_line
from ddp_lint.verify.frames import is_user, outwards
from ddp_lint.verify.sources import tree_of
from ddp_lint.verify.trace import Round

_LONGEST = 60


def rounds(frame: FrameType | None) -> tuple[Round, ...]:
    """The state of the loops around a call that count or iterate over names, the innermost user frame's first."""
    found: list[Round] = []
    for depth, here in enumerate(one for one in outwards(frame) if is_user(one.f_code.co_filename)):
        for line, name in _around(here.f_code.co_filename, here.f_lineno):
            value = here.f_locals.get(name)
            if isinstance(value, int | str):
                found.append(Round(depth, line, name, repr(value)[:_LONGEST]))
    return tuple(found)


@functools.lru_cache(maxsize=4096)
def _around(path: str, line: int) -> tuple[tuple[int, str], ...]:
    """(line, name) of the variables of the loops around a line, the outermost first."""
    return tuple((first, name) for first, last, name in _loops(path) if first <= line <= last)


@functools.lru_cache(maxsize=4096)
def asks_to_go_on(path: str, line: int) -> tuple[int, int] | None:
    """First and last line of the body of the `while` whose test is at a line; None at any other line."""
    tests = ((node.test, node.body) for node in ast.walk(tree_of(path)) if isinstance(node, ast.While))
    found = (body for test, body in tests if test.lineno <= line <= last_line(test))
    return next(((body[0].lineno, last_line(body[-1])) for body in found), None)


@functools.lru_cache(maxsize=4096)
def asks_to_leave(path: str, line: int) -> tuple[range, tuple[int, int]] | None:
    """Of the test of an `if` in a loop that leaves it: the lines of what it does then, and first and last line of the
    loop's body. None at any other line."""
    for loop in (node for node in ast.walk(tree_of(path)) if isinstance(node, ast.For | ast.While)):
        for node in loop.body:
            if isinstance(node, ast.If) and node.test.lineno <= line <= last_line(node.test):
                last = node.body[-1]
                if isinstance(last, ast.Break | ast.Return) and node.body[0].lineno > line:
                    way = range(node.body[0].lineno, last_line(last) + 1)
                    return way, (loop.body[0].lineno, last_line(loop.body[-1]))
    return None


@functools.lru_cache(maxsize=4096)
def loop_variables(path: str, line: int) -> tuple[str, ...]:
    """The names that the loops around a line bind, the outermost first; none where the source cannot be read."""
    return tuple(dict.fromkeys(name for _, name in _around(path, line)))


@functools.cache
def _loops(path: str) -> tuple[tuple[int, int, str], ...]:
    """(first line, last line, name) of each variable of each loop of a file."""
    return tuple(sorted(found for node in ast.walk(tree_of(path)) for found in _bound(node)))


def _bound(node: ast.AST) -> Iterator[tuple[int, int, str]]:
    if isinstance(node, ast.For | ast.AsyncFor):
        targets, at = [node.target], node.lineno
    elif isinstance(node, ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp):
        targets, at = [loop.target for loop in node.generators], node.lineno
    else:
        return
    for target in targets:
        for inner in ast.walk(target):
            if isinstance(inner, ast.Name):
                yield at, node.end_lineno or at, inner.id
