"""One early exit, one finding: what the ranks that left miss further down is joined with the first of it."""

from __future__ import annotations

import ast
import dataclasses
import re
from collections.abc import Iterable, Iterator

from ddp_lint.divergence.frame import span_of
from ddp_lint.divergence.mismatches import Kind, Mismatch
from ddp_lint.findings import Confidence, Label, Span
from ddp_lint.project.facts import ModuleFacts
from ddp_lint.project.parts import children
from ddp_lint.source.imports import last_part
from ddp_lint.source.syntax import walk

#: Calls that test for NaN.
_FINITE = frozenset({"isnan", "isinf", "isfinite"})
_LEVEL = re.compile(r"^(error|warning)[:!]?\s+", re.IGNORECASE)
#: Longer texts are no part of a headline.
_SHORT = 40
_LEAVING = {ast.Return: "returns", ast.Continue: "continues with the next iteration", ast.Break: "leaves the loop"}


def one_for_each_exit(mismatches: Iterable[Mismatch], facts: ModuleFacts) -> Iterator[Mismatch]:
    """Mismatches, the sure ones first; those that follow from one early exit are folded into the one that the others
    come to first: what stands behind the exit comes before what they meet in their next round."""
    by_exit: dict[Span, list[Mismatch]] = {}
    for mismatch in mismatches:
        if mismatch.branch is not None and mismatch.confidence is not Confidence.LOW and _is_passed(mismatch, facts):
            by_exit.setdefault(mismatch.branch, []).append(mismatch)
        else:
            yield mismatch
    for place, missed in by_exit.items():
        first, *others = sorted(missed, key=lambda each: (each.kind is Kind.STEP, each.span < place, each.span))
        branch, left = _exit_in(facts, place)
        yield _as_one_exit(facts, first, others, branch, left) if branch and left else first.with_similar(others)


def _is_passed(mismatch: Mismatch, facts: ModuleFacts) -> bool:
    """Does the call come after the branch, maybe in the next round, so that some rank has left in between?"""
    branch, span = mismatch.branch, mismatch.span
    if branch is None or branch.path != span.path or branch.line <= span.line <= branch.end_line:
        return False
    return span.line > branch.end_line or isinstance(_exit_in(facts, branch)[1], (ast.Return, ast.Break))


def _exit_in(facts: ModuleFacts, branch: Span) -> tuple[ast.If | None, ast.stmt | None]:
    """The `if` at a place, and the first statement in it that leaves the function or the round."""
    for node in walk(facts.tree) if branch.path == facts.source.path else ():
        if isinstance(node, ast.If) and node.lineno == branch.line and span_of(facts, node).column == branch.column:
            exits = [child for child in children(node) if isinstance(child, (ast.Return, ast.Continue, ast.Break))]
            return node, min(exits, key=lambda child: child.lineno, default=None)
    return None, None


def _as_one_exit(
    facts: ModuleFacts, first: Mismatch, others: list[Mismatch], branch: ast.If, left: ast.stmt
) -> Mismatch:
    labels = list(first.labels)
    span = span_of(facts, left)
    labels.insert(1, Label(span, f"{first.ranks[1]} {_LEAVING[type(left)]} here"))
    joined = dataclasses.replace(
        first,
        labels=tuple(labels),
        exit=span,
        skips=isinstance(left, ast.Continue),
        excuse=_excuse(branch, left),
        sees_nan=_asks_for_nan(branch),
    )
    return joined.with_similar(others)


def _excuse(branch: ast.If, left: ast.stmt) -> str:
    """What the statement before the exit prints or logs, where that is a text of its own and short."""
    for node in walk(branch):
        for block in (getattr(node, "body", None), getattr(node, "orelse", None)):
            if isinstance(block, list) and left in block[1:]:
                return _text_of(block[block.index(left) - 1])
    return ""


def _text_of(statement: ast.stmt) -> str:
    call = statement.value if isinstance(statement, ast.Expr) else None
    text = call.args[0] if isinstance(call, ast.Call) and call.args else None
    if not isinstance(text, ast.Constant) or not isinstance(text.value, str):
        return ""
    sentence = _LEVEL.sub("", text.value.strip()).partition(". ")[0].rstrip(".!")
    return sentence if len(sentence) <= _SHORT and "%" not in sentence else ""


def _asks_for_nan(branch: ast.If) -> bool:
    calls = (node for node in (branch.test, *children(branch.test)) if isinstance(node, ast.Call))
    return any(last_part(call.func) in _FINITE for call in calls)
