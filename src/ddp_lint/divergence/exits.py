"""One early exit, one finding: what the ranks that left miss further down is told with the first of it."""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Iterable, Iterator

from ddp_lint.divergence.partings import Kind, Parting
from ddp_lint.divergence.resolve import children
from ddp_lint.findings import Confidence, Label, Span
from ddp_lint.project.facts import ModuleFacts
from ddp_lint.source.syntax import walk

_LEAVING = {ast.Return: "returns", ast.Continue: "goes on to the next round", ast.Break: "leaves the loop"}


def one_for_each_exit(partings: Iterable[Parting], facts: ModuleFacts) -> Iterator[Parting]:
    """Partings, the sure ones first; those that follow from the same early exit are folded into the first by line."""
    by_exit: dict[Span, list[Parting]] = {}
    for parting in partings:
        if parting.branch is not None and parting.confidence is not Confidence.LOW and _is_passed(parting, facts):
            by_exit.setdefault(parting.branch, []).append(parting)
        else:
            yield parting
    for branch, missed in by_exit.items():
        first, *others = sorted(missed, key=lambda parting: (parting.kind is Kind.STEP, parting.span))
        yield _told(first, others, _exit_in(facts, branch))


def _is_passed(parting: Parting, facts: ModuleFacts) -> bool:
    """Does the call come after the branch, maybe in the next round, so that some rank has left in between?"""
    branch, span = parting.branch, parting.span
    if branch is None or branch.path != span.path or branch.line <= span.line <= branch.end_line:
        return False
    return span.line > branch.end_line or isinstance(_exit_in(facts, branch), (ast.Return, ast.Break))


def _exit_in(facts: ModuleFacts, branch: Span) -> ast.stmt | None:
    """The first statement in the `if` that leaves the function or the round."""
    for node in walk(facts.tree):
        if isinstance(node, ast.If) and node.lineno == branch.line and node.col_offset + 1 == branch.column:
            exits = [child for child in children(node) if isinstance(child, tuple(_LEAVING))]
            return min(exits, key=lambda child: child.lineno, default=None)  # type: ignore[attr-defined,return-value]
    return None


def _told(first: Parting, others: list[Parting], left: ast.stmt | None) -> Parting:
    labels = list(first.labels)
    if left is None:
        return first.told_with(others)
    end = left.end_col_offset or left.col_offset + 1
    span = Span(first.span.path, left.lineno, left.col_offset + 1, left.end_lineno or left.lineno, end + 1)
    labels.insert(1, Label(span, f"{first.ranks[1]} {_LEAVING[type(left)]} here"))
    skips = isinstance(left, ast.Continue)
    return dataclasses.replace(first, labels=tuple(labels), exit=span, skips=skips).told_with(others)
