"""Which conditions or loop one rank's call stands in and another one's does not, by the source at their stacks."""

from __future__ import annotations

import ast
import itertools
import pathlib
from collections.abc import Iterator, Sequence

from ddp_lint.verify.match import Mismatch
from ddp_lint.verify.trace import Frame

#: Conditions that are named at most: where there are more, the call stands too deep to tell which of them it is.
_MOST = 3


def between(mismatch: Mismatch) -> str:
    """Of two calls that met and do not belong together: the conditions above the one that has some of its own."""
    calls = [(rank, call.frames) for rank, call in mismatch.calls.items() if call is not None]
    for (rank, one), (other, another) in itertools.permutations(calls, 2):
        here = _first_apart(one, another)
        there = _first_apart(another, one)
        if here is None or there is None or (here.path, here.function) != (there.path, there.function):
            continue
        conditions = [text for text, lines in _conditions(here, there.line) if there.line not in lines]
        if 0 < len(conditions) <= _MOST:
            above = " and ".join(conditions)
            return f"rank {rank} is below {above} at line {here.line}, rank {other} at line {there.line} is not"
    return ""


def left_loop(mismatch: Mismatch) -> str:
    """Of a call in a loop that another rank has left: the loop, and the ways out of it. Of a rank that calls nothing
    more it is known that it has left all loops: which of several it left too early is not, but for loops that count."""
    calls = [(rank, call.frames) for rank, call in mismatch.calls.items() if call is not None]
    for (rank, one), (other, another) in itertools.permutations(calls, 2):
        here, there = _first_apart(one, another), _first_apart(another, one)
        if here is not None and there is not None and (here.path, here.function) == (there.path, there.function):
            loops = [loop for loop in _loops(here) if there.line not in _lines(loop.body)]
            if loops and there.line > loops[-1].lineno:
                return _out_of(loops[-1], rank, other)
    if len(calls) == 1 and mismatch.absent:
        rank, frames = calls[0]
        around = [loop for frame in frames for loop in _loops(frame) if not _counted(loop)]
        if len(around) == 1:
            return _out_of(around[0], rank, mismatch.absent[0])
    return ""


_Loop = ast.For | ast.While


def _loops(frame: Frame) -> list[_Loop]:
    """The loops around a line in its function, the outermost first."""
    found: list[_Loop] = []
    body = list(_tree(frame).body)
    while body:
        node = body.pop()
        if frame.line in range(node.lineno, (node.end_lineno or node.lineno) + 1):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                found.clear()
            if isinstance(node, ast.For | ast.While) and frame.line in _lines(node.body):
                found.append(node)
            body = _children(node)
    return found


def _counted(loop: _Loop) -> bool:
    """`for epoch in range(...)` without another way out: ranks go round it alike."""
    counts = isinstance(loop, ast.For) and isinstance(loop.iter, ast.Call) and ast.unparse(loop.iter.func) == "range"
    return counts and not any(_ways_out(loop.body))


def _children(node: ast.stmt) -> list[ast.stmt]:
    """The statements of the bodies of another one."""
    blocks = [getattr(node, name, ()) for name in ("body", "orelse", "finalbody")]
    blocks += [part.body for name in ("handlers", "cases") for part in getattr(node, name, ())]
    return [one for block in blocks for one in block]


def _lines(body: Sequence[ast.stmt]) -> range:
    return range(body[0].lineno, (body[-1].end_lineno or body[-1].lineno) + 1)


def _out_of(loop: _Loop, rank: int, other: int) -> str:
    endless = isinstance(loop, ast.While) and isinstance(loop.test, ast.Constant)
    if isinstance(loop, ast.While):
        head = f"while {ast.unparse(loop.test)}"
    else:
        head = f"for {ast.unparse(loop.target)} in {ast.unparse(loop.iter)}"
    text = f"rank {other} is out of the loop `{head}` (line {loop.lineno}), rank {rank} is in it"
    ways = list(_ways_out(loop.body))
    if len(ways) == 1 and endless:
        return f"{text}: the only way out is line {ways[0].lineno}{_below_test(loop, ways[0])}"
    if not ways and not endless:
        return f"{text}: the ranks go round it a different number of times"
    return text


def _ways_out(body: Sequence[ast.stmt], own: bool = True) -> Iterator[ast.Break | ast.Return]:
    """The statements that leave a loop; `own`: a break here is not one of an inner loop."""
    for node in body:
        if isinstance(node, ast.Return) or (own and isinstance(node, ast.Break)):
            yield node
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        inner_loop = isinstance(node, ast.For | ast.While | ast.AsyncFor)
        yield from _ways_out(_children(node), own and not inner_loop)


def _below_test(loop: _Loop, way: ast.stmt) -> str:
    """The innermost test that a way out stands below."""
    tests = [n for n in ast.walk(loop) if isinstance(n, ast.If) and way.lineno in _lines([*n.body, *n.orelse])]
    return f", below `if {ast.unparse(tests[-1].test)}` (line {tests[-1].lineno})" if tests else ""


def _first_apart(one: Sequence[Frame], another: Sequence[Frame]) -> Frame | None:
    """The outermost frame in which a stack (the innermost frame first) differs from another one."""
    known = [(frame.path, frame.line) for frame in reversed(another)]
    for number, frame in enumerate(reversed(one)):
        if number >= len(known) or known[number] != (frame.path, frame.line):
            return frame
    return None


def _tree(frame: Frame) -> ast.Module:
    """The file of a frame; an empty one where it cannot be read."""
    try:
        return ast.parse(pathlib.Path(frame.path).read_bytes())
    except (OSError, SyntaxError, ValueError):
        return ast.Module([], [])


def _conditions(frame: Frame, other: int) -> Iterator[tuple[str, range]]:
    """The tests above a line, the outermost first, each with the lines of the arm that the line is in.

    Where both ways have an arm, and the other line is in neither, the test is not what makes them diverge.
    """
    for node in ast.walk(_tree(frame)):
        if not isinstance(node, ast.If):
            continue
        if node.orelse and other not in range(node.lineno, (node.end_lineno or node.lineno) + 1):
            continue
        for arm, word in ((node.body, ""), (node.orelse, "the else of ")):
            lines = _lines(arm) if arm else range(0)
            if frame.line in lines:
                yield f"{word}`if {ast.unparse(node.test)}` (line {node.lineno})", lines
