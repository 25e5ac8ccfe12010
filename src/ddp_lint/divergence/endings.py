"""``except StopIteration`` around ``next(batches)``: where this rank's own data end, as at the end of a `for`."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ddp_lint.divergence.expressions import dotted, evaluate
from ddp_lint.divergence.frame import Frame
from ddp_lint.divergence.lengths import own_length
from ddp_lint.divergence.resolve import children
from ddp_lint.divergence.values import Variation


def own_end(frame: Frame, node: ast.Try, names: frozenset[str]) -> Variation | None:
    """Why the batches that the body asks for end on each rank for itself, if the handler is for their end."""
    if names != {"StopIteration"}:
        return None
    for source, target in _asked(node.body):
        if dotted(source) and (own := own_length(frame, evaluate(frame, source), source, target)) is not None:
            return own
    return None


def _asked(body: list[ast.stmt]) -> Iterator[tuple[ast.expr, ast.AST]]:
    """What ``batch = next(source)`` asks, and what it gives it to."""
    for statement in body:
        for child in (statement, *children(statement)):
            call = child.value if isinstance(child, ast.Assign) else None
            if isinstance(call, ast.Call) and dotted(call.func) == "next" and len(call.args) == 1:
                yield call.args[0], child.targets[0]  # type: ignore[attr-defined]
