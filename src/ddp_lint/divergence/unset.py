"""Variables that some ranks alone have given a value: the others fail where they read one, and wait for nobody."""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Collection

from ddp_lint.divergence import worlds
from ddp_lint.divergence.effects import Branch, Leave
from ddp_lint.divergence.frame import Frame
from ddp_lint.divergence.values import Condition, Test, Value
from ddp_lint.launch.unassigned import binding_lines
from ddp_lint.source.syntax import FunctionNode, names_in


def is_bound_within(frame: Frame, name: str, node: ast.AST) -> bool:
    """Does one arm of a test give a variable of the function its only values?"""
    if not isinstance(frame.function, FunctionNode) or not isinstance(node, ast.If) or name in frame.global_names:
        return False
    lines = binding_lines(frame.function).get(name, ())
    arms = (arm for arm in (node.body, node.orelse) if arm)
    return bool(lines) and any(
        all(arm[0].lineno <= line <= (arm[-1].end_lineno or arm[-1].lineno) for line in lines) for arm in arms
    )


def fail_where_unset(frame: Frame, node: ast.Name, value: Value) -> None:
    """A rank that has not come by what gives the variable its value raises where it reads it."""
    test = _set_where(frame, node.id, value)
    if test is not None and test not in frame.path:
        failing = Leave("raise", UnboundLocalError.__name__)
        frame.effects.append(Branch(test, [], [failing], frame.span(node)))


def as_asked(frame: Frame, node: ast.expr, test: Test) -> Test:
    """A test as those ranks come to it that have what it reads: all of them have the number by which a variable in it
    has a value, and what follows from that number is the same for them."""
    if not frame.unset:
        return test
    where = [_set_where(frame, name, frame.env.get(name)) for name in names_in(node)]
    one = [holds for holds in where if holds is not None and _of_one_number(holds)]
    scopes = {atom.varies.scope for holds in one for atom in holds.atoms() if atom.varies is not None}
    return _same_over(test, scopes) if scopes else test


def _set_where(frame: Frame, name: str, value: Value | None) -> Test | None:
    """The test by which a variable has this value on some ranks alone."""
    known, test = frame.unset.get(name, (None, None))
    return test if known is value else None


def _of_one_number(test: Test) -> bool:
    """Does it hold for the first rank alone?"""
    return test.truth(0) is True and all(test.truth(world) is False for world in range(1, worlds.COUNT))


def _same_over(test: Test, scopes: Collection[str]) -> Test:
    """The test where all ranks that come to it have the same numbers along these axes."""
    atom = test.atom
    if atom is not None:
        return Test("atom", atom=_shared(atom)) if atom.by_rank and atom.open and _scope(atom) in scopes else test
    parts = tuple(_same_over(part, scopes) for part in test.parts)
    return dataclasses.replace(test, parts=parts) if parts != test.parts else test


def _scope(condition: Condition) -> str:
    return condition.varies.scope if condition.varies is not None else ""


def _shared(condition: Condition) -> Condition:
    return Condition((("of one number", condition.truths[0]),) * worlds.COUNT, condition.text)


__all__ = ["as_asked", "fail_where_unset", "is_bound_within"]
