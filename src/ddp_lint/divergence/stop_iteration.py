"""Exceptions that a rank catches because of its own batches: their end, as at the end of a `for`
(``except StopIteration`` around ``next(batches)``), and an exception of the project by which a model rejects one."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from ddp_lint.divergence import references as ref
from ddp_lint.divergence import worlds
from ddp_lint.divergence.effects import Effect, EventStep, flat
from ddp_lint.divergence.expressions import dotted, evaluate
from ddp_lint.divergence.frame import Frame
from ddp_lint.divergence.iteration import own_rounds
from ddp_lint.divergence.values import Condition, Variation
from ddp_lint.findings import Confidence, Label
from ddp_lint.project.parts import children

#: In the name of an exception that ends the training on all ranks, and refuses no batch.
_ENDS = re.compile(r"stop|exit|abort|interrupt|finish|early|preempt|signal|timeout|cancel|kill|terminat", re.IGNORECASE)


def own_end(frame: Frame, node: ast.Try, handler: ast.ExceptHandler, names: frozenset[str]) -> Variation | None:
    """Why the batches that the body takes end on each rank for itself, if the handler is for their end."""
    if names != {"StopIteration"}:
        return None
    ends = isinstance(handler.body[-1], (ast.Break, ast.Return))
    for source, target in _asked(node.body):
        value = evaluate(frame, source) if dotted(source) else None
        if value is not None and (own := own_rounds(frame, value, source, target, ends=ends)) is not None:
            return own
    return None


def _asked(body: list[ast.stmt]) -> Iterator[tuple[ast.expr, ast.AST]]:
    """The source and the target of ``batch = next(source)``."""
    for statement in body:
        for child in (statement, *children(statement)):
            call = child.value if isinstance(child, ast.Assign) else None
            if isinstance(call, ast.Call) and dotted(call.func) == "next" and len(call.args) == 1:
                yield call.args[0], child.targets[0]  # type: ignore[attr-defined]


def own_refusal(frame: Frame, handler: ast.ExceptHandler, body: list[Effect]) -> Condition | None:
    """ "This rank's batch was refused": an exception class of the project, caught around a step of the model, after
    which the rank goes on."""
    of = frame.linker.expression(frame.facts, handler.type) if handler.type is not None else None
    if not isinstance(of, ref.ClassRef) or _ENDS.search(of.node.name) or isinstance(handler.body[-1], ast.Raise):
        return None
    if not any(isinstance(e, EventStep) and e.event.kind in ("forward", "backward") for e in flat(body)):
        return None
    origin = Label(
        frame.span(handler), f"a rank continues here without the step if its own batch raises {of.node.name}"
    )
    description = f"whether this rank's own batch raises {of.node.name}"
    varies = Variation("data", description, origin=origin, confidence=Confidence.MEDIUM)
    return Condition((("refused", frame.key(handler)),) * worlds.COUNT, f"except {of.node.name}", varies, open=True)
