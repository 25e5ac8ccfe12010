"""Which conditions one rank's call stands below and another one's does not, by the source at their stacks."""

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


def _first_apart(one: Sequence[Frame], another: Sequence[Frame]) -> Frame | None:
    """The outermost frame in which a stack (the innermost frame first) differs from another one."""
    known = [(frame.path, frame.line) for frame in reversed(another)]
    for number, frame in enumerate(reversed(one)):
        if number >= len(known) or known[number] != (frame.path, frame.line):
            return frame
    return None


def _conditions(frame: Frame, other: int) -> Iterator[tuple[str, range]]:
    """The tests above a line, the outermost first, each with the lines of the arm that the line is in.

    Where both ways have an arm, and the other line is in neither, the test is not what makes them diverge.
    """
    try:
        tree = ast.parse(pathlib.Path(frame.path).read_bytes())
    except (OSError, SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        if not isinstance(node, ast.If):
            continue
        if node.orelse and other not in range(node.lineno, (node.end_lineno or node.lineno) + 1):
            continue
        for arm, word in ((node.body, ""), (node.orelse, "the else of ")):
            lines = range(arm[0].lineno, (arm[-1].end_lineno or arm[-1].lineno) + 1) if arm else range(0)
            if frame.line in lines:
                yield f"{word}`if {ast.unparse(node.test)}` (line {node.lineno})", lines
