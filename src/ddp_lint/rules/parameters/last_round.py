"""Whether a statement surely runs in the last round of a loop, and nothing trains behind it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import libcst as cst

from ddp_lint.knowledge.tensors import words_of
from ddp_lint.source import dotted
from ddp_lint.source.control_flow import conjuncts
from ddp_lint.source.queries import calls_in, receiver
from ddp_lint.source.tree import called, method_of
from ddp_lint.view import Module

#: What the rate of learning is changed by: no step of the weights.
_OF_RATES = frozenset({"scheduler", "sched", "schedule", "lr", "warmup"})
#: Words of functions that train.
_TRAINING = frozenset({"train", "fit"})


def runs_in_last_round(module: Module, node: cst.CSTNode) -> bool:
    """Whether tests around a place let the last round of a loop come by for certain (``if epoch % 10 == 0 or epoch ==
    epochs - 1:``), and no step of the weights follows there."""
    up = itertools.takewhile(lambda each: not isinstance(each, (cst.FunctionDef, cst.ClassDef)), module.ancestors(node))
    around = [node, *up]
    for place, loop in enumerate(around):
        if isinstance(loop, cst.For) and _is_met_in_last(module, loop, around[:place]):
            return not any(_trains(call) for call in _calls_behind(module, loop, node))
    return False


def _calls_behind(module: Module, loop: cst.For, node: cst.CSTNode) -> Iterator[cst.Call]:
    line = module.span(node).line
    return (call for call in calls_in(loop.body) if module.span(call).line > line)


def _trains(call: cst.Call) -> bool:
    if method_of(call) == "step":
        return not words_of(dotted(receiver(call))) & _OF_RATES
    return method_of(call) == "backward" or bool(words_of(called(call)) & _TRAINING)


def _is_met_in_last(module: Module, loop: cst.For, inside: list[cst.CSTNode]) -> bool:
    """Whether the tests inside of a loop that lead to a place hold in its last round, as one of them says that it is
    the last one: others ask for the rank or the phase alone."""
    found = False
    inner = [each for each in inside if isinstance(each, (cst.For, cst.While))]
    if any(isinstance(each, cst.While) for each in inner):
        return False
    for below, branch in itertools.pairwise(inside):
        if not isinstance(branch, (cst.If, cst.IfExp)) or below is branch.test:
            continue
        if below is not branch.body:
            return False
        for part in conjuncts(branch.test):
            if _asks_for_last(module, loop, part):
                found = True
            elif not _asks_for_place(part, inner):
                return False
    return found


def _asks_for_last(module: Module, loop: cst.For, test: cst.BaseExpression) -> bool:
    """``epoch == epochs - 1``, also as one of several things that let a round come by."""
    if isinstance(test, cst.BooleanOperation) and isinstance(test.operator, cst.Or):
        return any(_asks_for_last(module, loop, side) for side in (test.left, test.right))
    if not isinstance(test, cst.Comparison) or len(test.comparisons) != 1:
        return False
    asked, rounds = test.comparisons[0], loop.iter
    if not isinstance(asked.operator, (cst.Equal, cst.GreaterThanEqual)) or not isinstance(rounds, cst.Call):
        return False
    if dotted(rounds.func) not in ("range", "trange") or not 0 < len(rounds.args) < 3:
        return False
    end, counted = _with_offset(module, rounds.args[-1].value), _with_offset(module, test.left)
    number = _with_offset(module, asked.comparator)
    return counted[0] == module.code(loop.target) and number == (end[0], end[1] - 1 + counted[1])


def _with_offset(module: Module, value: cst.BaseExpression) -> tuple[str, int]:
    """An expression as what it is counted from and a number: ``epochs - 1`` as ``epochs`` and -1."""
    if isinstance(value, cst.BinaryOperation) and isinstance(value.right, cst.Integer):
        number = value.right.evaluated_value
        if isinstance(value.operator, (cst.Add, cst.Subtract)):
            return module.code(_bare(value.left)), number if isinstance(value.operator, cst.Add) else -number
    return module.code(_bare(value)), 0


def _bare(value: cst.BaseExpression) -> cst.BaseExpression:
    return value.with_changes(lpar=(), rpar=()) if value.lpar else value


def _asks_for_place(test: cst.BaseExpression, inner: Sequence[cst.CSTNode]) -> bool:
    """Whether a test asks for the rank or the phase, which is the last one of a list where a loop goes over these: what
    is so in each round, or in the same part of each."""
    if isinstance(test, (cst.Name, cst.Attribute)) or (isinstance(test, cst.Call) and not test.args):
        return True
    if not isinstance(test, cst.Comparison) or not isinstance(test.comparisons[0].operator, cst.Equal):
        return False
    value = test.comparisons[0].comparator
    if not isinstance(value, (cst.SimpleString, cst.Integer)) or not isinstance(test.left, (cst.Name, cst.Attribute)):
        return False
    loops = [each for each in inner if isinstance(each, cst.For) and dotted(each.target) == dotted(test.left)]
    return all(
        isinstance(each.iter, (cst.List, cst.Tuple))
        and bool(each.iter.elements)
        and each.iter.elements[-1].value.deep_equals(value)
        for each in loops
    )
