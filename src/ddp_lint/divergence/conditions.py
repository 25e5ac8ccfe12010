"""Conditions: comparisons, `and`, `or`, `not`, and what follows from either arm of a conditional expression."""

from __future__ import annotations

import ast
import dataclasses
import functools
from collections.abc import Hashable

from ddp_lint.divergence import backends, worlds
from ddp_lint.divergence import references as ref
from ddp_lint.divergence.batches import hardly_lack_samples, keep_samples
from ddp_lint.divergence.calls_by_name import is_wrapped, of_arms
from ddp_lint.divergence.collected import asks_for_collected
from ddp_lint.divergence.definitions import counts_of
from ddp_lint.divergence.effects import Branch, Effect
from ddp_lint.divergence.expressions import dotted, evaluate, passed_on, with_agreed
from ddp_lint.divergence.frame import Frame, Handlers, text_of
from ddp_lint.divergence.generation import own_tokens
from ddp_lint.divergence.groups import WORLD_AXIS, axis_in
from ddp_lint.divergence.lengths import assigned_once, follows_from_extent, is_extent, is_size, of_batches
from ddp_lint.divergence.selections import (
    GRADIENTS,
    asks_for_any,
    counted,
    is_dictionary,
    is_instead,
    may_be_empty,
    may_be_lacking,
    may_be_missing,
    may_select_nothing,
    own_emptiness,
    own_modality,
)
from ddp_lint.divergence.values import (
    ALONE,
    BATCH,
    COMPARE,
    LARGEST_FORMULA,
    SET,
    TOTAL,
    Condition,
    Known,
    Symbol,
    Test,
    Value,
    Variation,
    combine,
    constant,
    counted_ranks,
    divergent,
    is_last_number,
    merge,
    negated,
    unknown,
)
from ddp_lint.findings import Confidence
from ddp_lint.project.parts import children, kept_by_node
from ddp_lint.source.imports import last_part
from ddp_lint.source.syntax import walk

#: Arguments of a `getattr` that has a default.
_WITH_DEFAULT = 3


def test_of(frame: Frame, node: ast.expr) -> Test:
    """The expression as a condition."""
    return _with_test(frame, node)[1]


def _with_test(frame: Frame, node: ast.expr) -> tuple[Value, Test]:
    """The value of an operand, and its truth: that of ``a or b`` follows from both operands."""
    if isinstance(node, ast.BoolOp):
        parts, tests = _operands(frame, node)
        test = Test("and" if isinstance(node.op, ast.And) else "or", tuple(tests))
        return _joined(frame, node, parts, tests), test
    value = evaluate(frame, node)
    if value.varies is None and ((not value.agreed and asks_for_any(frame, node)) or _is_own_count(frame, node)):
        value = divergent(("any", value.key), own_emptiness(frame, node))  # ``if not mask.any():``
    if of_batches(value.varies) and is_dictionary(frame, node):
        value = dataclasses.replace(value, varies=dataclasses.replace(value.varies, aspect="contents"))
    is_code = isinstance(value.reference, (ref.FunctionRef, ref.ClassRef))
    return value, (constant(True) if is_code else value).truth(frame.text(node))


def _compare(frame: Frame, node: ast.Compare) -> Value:
    values = [evaluate(frame, part) for part in (node.left, *node.comparators)]
    if not any(value.by_rank for value in values) and (tokens := own_tokens(frame, node)) is not None:
        return divergent(("compare", "tokens", _keys(values)), tokens)
    if len(node.ops) > 1:
        operators = tuple(type(op).__name__ for op in node.ops)
        chained = _among(combine(_unknown, tuple(values), ("compare", operators, _keys(values))), values)
        return with_agreed(chained, *values)
    operation = type(node.ops[0])
    if operation in (ast.Eq, ast.NotEq) and _is_text_and_number(*values):
        return constant(operation is ast.NotEq)
    left, right = _as_numbers(*values)
    if (settled := _settled(frame, node, left, right)) is not None:
        return settled
    left, right = _of_the_last(left, right)
    contains = operation in (ast.In, ast.NotIn)
    uniform = left.varies is None and right.varies is None
    if uniform and left.constant is not None and right.constant is None and not contains:
        left, right, operation = right, left, _MIRRORED.get(operation, operation)  # ``3 < x`` is ``x > 3``
    opposite = (_OPPOSITE_IF_UNIFORM if uniform else _OPPOSITE).get(operation, operation)
    key = ("compare", opposite.__name__, _keys([left, right]))
    lacking = _lacking(frame, node, left, right)
    result = combine(COMPARE[opposite], (left, right), key) if lacking is None else divergent(key, lacking)
    alike = lacking is None and (
        _is_alike(left, right, result, opposite)
        or (_asks_for_samples(node, left, right) and keep_samples(frame.linker.project))
        or _asks_for_labels(node, left, right)
        or _asks_for_form(node, opposite, right)
        or _asks_for_process(node)
        or _asks_which_object(operation, left, right)
        or (contains and right.varies is not None and right.varies.cause == "memory")
    )
    if alike:
        return unknown(key)
    result = _among_ranks(node, left, right, result, key)
    whole = result.varies is not None and _asks_for_samples(node, left, right)
    if whole and result.varies is not None and hardly_lack_samples(frame.linker.project, frame.facts):
        result = divergent(key, dataclasses.replace(result.varies, confidence=Confidence.LOW))
    against = lacking is None and left.agreed is not right.agreed
    if opposite is ast.Eq and against and result.varies and result.varies.cause == "data":
        # Its own number against what all have: mostly whether all have the same, to which they find one answer.
        result = divergent(key, dataclasses.replace(result.varies, confidence=Confidence.LOW))
    if contains and left.varies is not None and result.open and left.varies.cause == "rank":
        if left.open:  # a key that each rank looks up: ranks fill their caches alike
            return unknown(key)
        result = dataclasses.replace(result, varies=dataclasses.replace(left.varies, cause="membership"))
    result = with_agreed(result, left, right)
    if opposite is not operation:
        return _truth_value(frame, node, negated(result.truth(_text_of_opposite(node, opposite))), [result])
    return result


def _settled(frame: Frame, node: ast.Compare, left: Value, right: Value) -> Value | None:
    """The outcome where more than the two values decides it: how they were made, what is missing, or what is asked."""
    operation = type(node.ops[0])
    if right.constant == Known(None) and (with_none := _with_none(frame, node, left)) is not None:
        return with_none
    if left.kind == GRADIENTS and left.test is not None and _asks_for_any(operation, right):
        lacks = operation in (ast.Eq, ast.LtE, ast.Lt)
        return _truth_value(frame, node, negated(left.test) if lacks else left.test, [left])
    return (
        backends.answer(frame, node)
        or _alone(node, operation, left, right)
        or _whether_kept(frame, node, left)
        or _is_entry(operation, left, right)
        or _within_size(operation, left, right)
        or _is_any_of(frame, node, left, right)
    )


def _with_none(frame: Frame, node: ast.Compare, left: Value) -> Value | None:
    """``x is None`` of something that is missing on some ranks, or that never is None; None of anything else."""
    operation = type(node.ops[0])
    if operation not in (ast.Is, ast.IsNot, ast.Eq, ast.NotEq):
        return None
    if left.missing is not None:
        test = left.missing if operation in (ast.Is, ast.Eq) else negated(left.missing)
        return _truth_value(frame, node, test, [left])
    if left.made or isinstance(left.reference, (ref.FunctionRef, ref.ClassRef)):
        return constant(operation in (ast.IsNot, ast.NotEq))
    return None


def _asks_for_labels(node: ast.Compare, left: Value, right: Value) -> bool:
    """``batch["label"][0].item() != -1``: the first one represents all, since a split has labels or has none."""
    asked = node.left
    if isinstance(asked, ast.Call) and isinstance(asked.func, ast.Attribute) and asked.func.attr == "item":
        asked = asked.func.value
    first = isinstance(asked, ast.Subscript) and isinstance(asked.slice, ast.Constant) and asked.slice.value == 0
    of_data = left.varies is not None and left.varies.cause == "data"
    return first and of_data and right.constant == Known(-1) and isinstance(node.ops[0], (ast.Eq, ast.NotEq))


def _asks_for_process(node: ast.Compare) -> bool:
    """``pid != os.getpid()``: whether a process is still the one that kept the number, and no child of it."""
    sides = (node.left, *node.comparators)
    return any(isinstance(side, ast.Call) and last_part(side.func) == "getpid" for side in sides)


def _asks_which_object(operation: type, left: Value, right: Value) -> bool:
    """``model is self.model``: whether it was wrapped, which no rank's own data decide."""
    own = [value.varies.cause for value in (left, right) if value.varies is not None]
    compared = operation in (ast.Is, ast.IsNot) and left.constant is None and right.constant is None
    return compared and all(cause == "data" for cause in own)


def _asks_for_form(node: ast.Compare, operation: type, right: Value) -> bool:
    """``loss.numel() == 2``: of how many numbers a value consists, which the code that makes it says."""
    against = right.constant.value if right.constant is not None else None
    asked = node.left.func if isinstance(node.left, ast.Call) else None
    if not isinstance(asked, ast.Attribute) or asked.attr not in ("numel", "nelement", "dim"):
        return False
    return operation is ast.Eq and type(against) is int and against > 0


def _is_any_of(frame: Frame, node: ast.Compare, left: Value, right: Value) -> Value | None:
    """``rank in (0, world_size - 1)``: the rank is one of those that are written there, or the other."""
    listed = node.comparators[0]
    if not isinstance(node.ops[0], (ast.In, ast.NotIn)) or not isinstance(listed, (ast.Tuple, ast.List, ast.Set)):
        return None
    if left.open or right.constant is not None:
        return None
    if not left.by_rank or not any(map(_names_the_last, listed.elts)):
        return None
    asked: list[ast.expr] = [ast.copy_location(ast.Compare(node.left, [ast.Eq()], [e]), node) for e in listed.elts]
    either = _boolean(frame, ast.copy_location(ast.BoolOp(ast.Or(), asked), node))
    if isinstance(node.ops[0], ast.In):
        return either
    return _truth_value(frame, node, negated(either.truth(frame.text(node))), [either])


def _names_the_last(element: ast.expr) -> bool:
    return isinstance(element, ast.BinOp) and isinstance(element.op, ast.Sub)


#: What a comparison that is written the other way is the negation of.
_OPPOSITE: dict[type, type] = {ast.NotEq: ast.Eq, ast.IsNot: ast.Is, ast.NotIn: ast.In}
_OPPOSITE_IF_UNIFORM: dict[type, type] = {**_OPPOSITE, ast.LtE: ast.Gt, ast.GtE: ast.Lt}
_MIRRORED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.Gt, ast.Gt: ast.Lt, ast.LtE: ast.GtE, ast.GtE: ast.LtE,
}  # fmt: skip
#: How a number of ranks is compared with another for the question whether it is one, and the answer where it is.
_ASKS_FOR_ONE: dict[tuple[type[ast.cmpop], object], bool] = {
    (ast.Eq, 1): True, (ast.LtE, 1): True, (ast.Lt, 2): True, (ast.NotEq, 1): False, (ast.Gt, 1): False,
    (ast.GtE, 2): False,
}  # fmt: skip


#: The same for the question whether there is any, as there always is.
_ASKS_FOR_ANY: dict[tuple[type[ast.cmpop], object], bool] = {
    (ast.Gt, 0): True, (ast.GtE, 0): True, (ast.GtE, 1): True, (ast.NotEq, 0): True, (ast.Eq, 0): False,
    (ast.LtE, 0): False, (ast.Lt, 0): False, (ast.Lt, 1): False,
}  # fmt: skip


def _alone(node: ast.Compare, operation: type[ast.cmpop], left: Value, right: Value) -> Value | None:
    """The question whether there is but one rank, however it is put; None for another question."""
    for number, other, asked in ((left, right, operation), (right, left, _MIRRORED.get(operation, operation))):
        group = counted_ranks(number)
        if group is None:
            continue
        against = other.constant
        if against is not None and (asked, against.value) in _ASKS_FOR_ONE:
            value = unknown((ALONE, group))
            text = text_of(node)
            test = Test("atom", atom=Condition((("truth", value.components[0]),) * len(value.components), text))
            if _ASKS_FOR_ONE[asked, against.value]:
                return dataclasses.replace(value, test=test)
            return dataclasses.replace(unknown((ALONE, group, "not")), test=negated(test))
        if against is not None and (asked, against.value) in _ASKS_FOR_ANY:
            return constant(_ASKS_FOR_ANY[asked, against.value])
    return None


def _of_the_last(left: Value, right: Value) -> tuple[Value, Value]:
    """``rank == get_world_size() - 1``: a rank of the worlds that is the last, and no other is."""
    if is_last_number(right.components[0]) and left.components == _RANKS:
        return left, constant(worlds.LAST)
    return (
        (constant(worlds.LAST), right)
        if is_last_number(left.components[0]) and right.components == _RANKS
        else (left, right)
    )


_RANKS = tuple(Known(world.rank) for world in worlds.WORLDS)
_LOCAL_RANKS = tuple(Known(world.local_rank) for world in worlds.WORLDS)
#: What a rank is, compared with the number of ranks.
_BELOW: dict[type[ast.cmpop], bool] = {
    ast.Lt: True, ast.LtE: True, ast.NotEq: True, ast.Gt: False, ast.GtE: False, ast.Eq: False,
}  # fmt: skip


def _within_size(operation: type[ast.cmpop], left: Value, right: Value) -> Value | None:
    """``rank < get_world_size()``, which always holds; None for another comparison."""
    if counted_ranks(left) == "":
        left, right, operation = right, left, _MIRRORED.get(operation, operation)
    if operation not in _BELOW or counted_ranks(right) != "" or left.components not in (_RANKS, _LOCAL_RANKS):
        return None
    return constant(_BELOW[operation])


def _asks_for_any(operation: type[ast.cmpop], right: Value) -> bool:
    """``== 0``, ``> 0``, ``< 1``: is there anything at all?"""
    if operation in (ast.Lt, ast.GtE):
        return right.constant == Known(1)
    return operation in (ast.Eq, ast.NotEq, ast.Gt, ast.LtE) and right.constant == Known(0)


@functools.lru_cache(maxsize=8192)
def _text_of_opposite(node: ast.Compare, opposite: type[ast.cmpop]) -> str:
    return text_of(ast.Compare(node.left, [opposite()], node.comparators))


def _lacking(frame: Frame, node: ast.Compare, left: Value, right: Value) -> Variation | None:
    """Why a rank may have no such data, if that is the question and the name is one of data: ``images is None``."""
    operation = type(node.ops[0])
    if operation in (ast.In, ast.NotIn) and may_be_lacking(node.left, node.comparators[0]) and not right.agreed:
        return own_modality(frame, node.left)
    own = left.varies is not None and left.varies.cause != "data"
    if not own and _asks_for_any(operation, right) and _is_own_count(frame, node.left):
        return own_emptiness(frame, node.left)
    if own or left.agreed or left.constant is not None:
        return None
    asks = operation in (ast.Is, ast.IsNot) and right.constant == Known(None)
    if asks and may_be_missing(node.left) and not _ends_a_loop(frame, node) and not is_instead(frame, node.left):
        return own_modality(frame, node.left)
    if _asks_for_any(operation, right) and (
        may_be_empty(frame, node.left) or (left.varies is None and may_select_nothing(frame, node.left))
    ):
        return own_emptiness(frame, node.left)
    return None


def _is_own_count(frame: Frame, node: ast.expr) -> bool:
    """``self.count``: does a method of the class add to it how many samples it is given, ``self.count += n``, and
    this one has not set it yet? Or is it a list that is gathered, ``self.rows``?"""
    if frame.owner is None:
        return False
    if asks_for_collected(frame, node):
        return True
    counted = isinstance(node, ast.Attribute) and dotted(node.value) == "self" and dotted(node) not in frame.env
    return counted and last_part(node) in counts_of(frame.owner.node)


def _ends_a_loop(frame: Frame, node: ast.Compare) -> bool:
    """``while images is not None``: until nothing is left, which is no question about what a sample has."""
    return any(node is part for test in _tests_of_loops(frame.function or frame.facts.tree) for part in walk(test))


@kept_by_node(8192)
def _tests_of_loops(function: ast.AST) -> tuple[ast.expr, ...]:
    return tuple(child.test for child in children(function) if isinstance(child, ast.While))


def _among_ranks(node: ast.Compare, left: Value, right: Value, result: Value, key: Hashable) -> Value:
    """The comparison where it is one of ranks: of two groups' ranks, with a place along an axis, with bounds."""
    if left.varies is not None and right.varies is not None and left.varies.cause == right.varies.cause == "rank":
        grouped = left.varies.scope != right.varies.scope or left.varies.scope.startswith("group:")
        if grouped and not left.open and not right.open:
            # Two names of one group, perhaps; but who asks whether they are equal knows of ranks where they are not.
            asked = isinstance(node.ops[0], ast.Eq)
            doubt = Confidence.MEDIUM if asked else Confidence.LOW
            result = divergent(key, dataclasses.replace(left.varies, cause="membership", confidence=doubt))
        elif result.open and isinstance(node.ops[0], (ast.Eq, ast.NotEq)):  # ``rank == partner``: who has none
            result = divergent(key, dataclasses.replace(left.varies, cause="membership"))
    elif result.varies is not None and result.varies.cause == "rank" and _is_place(node, left, right):
        result = divergent(key, dataclasses.replace(result.varies, cause="membership", confidence=Confidence.LOW))
    if isinstance(node.ops[0], (ast.Lt, ast.LtE, ast.Gt, ast.GtE)):
        result = _among(result, [left, right])
        if result.varies is not None and _exceeds_limit(left, right):
            result = divergent(key, dataclasses.replace(result.varies, confidence=Confidence.LOW))
    return result


def _whether_kept(frame: Frame, node: ast.Compare, left: Value) -> Value | None:
    """``getattr(self, "group", None) is None``: either all ranks have the attribute or none has it."""
    default = node.comparators[0]
    if not left.by_rank or not isinstance(default, ast.Constant):
        return None
    asked = assigned_once(frame, node.left)
    if not isinstance(asked, ast.Call):
        return None
    given = asked.args[2] if getattr(asked.func, "id", "") == "getattr" and len(asked.args) == _WITH_DEFAULT else None
    if not isinstance(given, ast.Constant) or given.value != default.value:
        return None
    return unknown(("compare", frame.key(node)))


def _is_entry(operation: type, left: Value, right: Value) -> Value | None:
    """``"loss" in results``, where the dictionary has more entries on some ranks, and this one on all."""
    if (
        operation not in (ast.In, ast.NotIn)
        or left.constant is None
        or left.constant.value not in (right.entries or {})
    ):
        return None
    return constant(operation is ast.In)


def _exceeds_limit(left: Value, right: Value) -> bool:
    """Are sequences longer than a number that is configured? What has prepared them mostly keeps to that number."""
    return any(
        follows_from_extent(length) and limit.constant is None and limit.varies is None
        for length, limit in ((left, right), (right, left))
    )


def _is_alike(left: Value, right: Value, result: Value, operation: type[ast.cmpop]) -> bool:
    """Does the comparison come out the same on all ranks, though what is compared differs?"""
    with_none = operation in (ast.Is, ast.Eq) and right.constant == Known(None)
    if with_none and result.open and not left.open and not any(isinstance(c, Known) for c in left.components):
        return True  # another object on each rank, none of which is known to be missing
    if with_none and left.kind == "item" and left.by_rank:
        return True  # what a list holds for this rank, which holds something for each
    if right.constant == Known(0) and (left.kind == TOTAL or follows_from_extent(left)):
        return True
    if operation in (ast.Eq, ast.NotEq) and (is_extent(left) or is_extent(right)):
        return True  # ``x.shape[1] == 3``: how the data are laid out, which all samples have in common
    formal = with_none or operation is ast.In or _is_text(right) or _is_text(left)
    if result.varies is None or not (result.even or formal or right.constant == Known(None)):
        return False
    if result.even:  # how much the batches hold, unlike the question whether one is empty
        return not (is_size(left) and right.constant in (Known(0), Known(1)))
    if with_none and left.kind == BATCH and of_batches(left.varies):
        return False  # a batch of which a collator has left nothing
    if with_none and result.varies.cause in ("host", "clock", "random"):
        return True  # each process has a name, a number and a time of its own, none has none
    return result.open and result.varies.cause == "data"  # what a batch has, and of which kind it is


def _asks_for_samples(node: ast.Compare, left: Value, right: Value) -> bool:
    """Is it whether a batch has a sample, ``len(batch) == 0``, ``images.numel() == 0``?"""
    if right.constant != Known(0) or not of_batches(left.varies):
        return False
    return is_size(left) or counted(node.left) is not None


def _is_place(node: ast.Compare, left: Value, right: Value) -> bool:
    """Is this rank within a group compared with a place along a parallel axis (``dist.get_rank(group) == dp_rank``)?

    The whole group may have one answer to that, as the groups lie along the axis one after the other.
    """
    for one, other, at in ((left, right, node.comparators[0]), (right, left, node.left)):
        if one.varies is not None and one.varies.scope.startswith("group:") and other.varies is None:
            name = dotted(at)
            if name.endswith("rank") and axis_in(name) not in ("", WORLD_AXIS):
                return True
    return False


def _among(result: Value, values: list[Value]) -> Value:
    """``first <= rank < last``: ranks of one part of the job, which has groups of its own; ``rank < 1`` is one rank."""
    bounds = [value.constant for value in values if value.varies is None]
    if any(len({type(component) for component in value.components}) > 1 for value in values):
        return result  # no place among the ranks: a number that some of them have counted on
    if result.varies is None or result.varies.cause != "rank" or bounds == [Known(0)] or bounds == [Known(1)]:
        return result
    return dataclasses.replace(result, varies=dataclasses.replace(result.varies, cause="membership"))


def _is_text_and_number(left: Value, right: Value) -> bool:
    """``os.environ["RANK"] == 0``: text is no number, on no rank."""
    return any(
        one.test is SET and other.constant is not None and isinstance(other.constant.value, int)
        for one, other in ((left, right), (right, left))
    )


def _as_numbers(left: Value, right: Value) -> tuple[Value, Value]:
    """``os.environ["RANK"] == "0"``: the environment holds text, the worlds know numbers."""
    for one, other in ((left, right), (right, left)):
        if not one.by_rank or other.constant is None:
            continue
        text = other.constant.value
        texts = text if isinstance(text, tuple) else (text,)
        if texts and all(isinstance(each, str) and each.lstrip("-").isdigit() for each in texts):
            numbers = tuple(int(each) for each in texts)
            number = constant(numbers if isinstance(text, tuple) else numbers[0])
            return (left, number) if one is left else (number, right)
    return left, right


def _is_text(value: Value) -> bool:
    return value.constant is not None and isinstance(value.constant.value, str)


def _keys(values: list[Value]) -> Hashable:
    return tuple(value.key for value in values)


def _unknown(*_: object) -> object:
    raise TypeError


def _truth_value(frame: Frame, node: ast.expr, test: Test, parts: list[Value]) -> Value:
    """A Boolean that is this formula."""
    truths = [test.truth(world) for world in range(len(parts[0].components))]
    key = ("formula", tuple(part.key for part in parts), type(node).__name__, frame.text(node))
    components = tuple(Symbol(key) if truth is None else Known(truth) for truth in truths)
    varies = test.varying()
    is_open = varies is not None and any(atom.open for atom in test.atoms())
    value = Value(components, varies, is_open, test=test if test.size <= LARGEST_FORMULA else None)
    return with_agreed(value, *parts)


def _boolean(frame: Frame, node: ast.BoolOp) -> Value:
    return _joined(frame, node, *_operands(frame, node))


def _operands(frame: Frame, node: ast.BoolOp) -> tuple[list[Value], list[Test]]:
    """`and`, `or`: the later parts happen only if the earlier ones let them."""
    conjunction = isinstance(node.op, ast.And)
    first, test = _with_test(frame, node.values[0])
    parts, tests = [first], [test]
    for operand in node.values[1:]:
        if tests[-1].settled is (not conjunction) and parts[-1].constant is not None:
            break  # the rest is never evaluated
        outer, frame.effects = frame.effects, []
        value, test = _with_test(frame, operand)
        inner, frame.effects = frame.effects, outer
        if inner:
            guard = tests[0] if len(tests) == 1 else Test("and" if conjunction else "or", tuple(tests))
            yes, no = (inner, []) if conjunction else ([], inner)
            frame.effects.append(Branch(guard, yes, no, frame.span(operand)))
        parts.append(value)
        tests.append(test)
    return parts, tests


def _joined(frame: Frame, node: ast.BoolOp, parts: list[Value], tests: list[Test]) -> Value:
    conjunction = isinstance(node.op, ast.And)
    if not conjunction and not all(part.test or _is_boolean(part) for part in parts):
        return _either(frame, node, parts, tests)
    return _truth_value(frame, node, Test("and" if conjunction else "or", tuple(tests)), parts)


def _is_boolean(value: Value) -> bool:
    return all(isinstance(c, Symbol) or isinstance(c.value, bool) for c in value.components)


def _either(frame: Frame, node: ast.BoolOp, parts: list[Value], tests: list[Test]) -> Value:
    """`a or b` as a value: a default."""
    result = parts[-1]
    for part, test in zip(parts[-2::-1], tests[-2::-1], strict=False):
        result = merge(test, part, result, frame.key(node))
    return result


def _unary(frame: Frame, node: ast.UnaryOp) -> Value:
    if isinstance(node.op, ast.Not):
        value, test = _with_test(frame, node.operand)
        return _truth_value(frame, node, negated(test), [value])
    value = evaluate(frame, node.operand)
    if isinstance(node.op, ast.USub):
        return combine(lambda x: -x, (value,), ("minus", value.key))
    return passed_on(frame, node, [value])


def _conditional(frame: Frame, node: ast.IfExp) -> Value:
    test = test_of(frame, node.test)
    settled = test.settled
    if settled is not None:
        return evaluate(frame, node.body if settled else node.orelse)
    arms: list[Value] = []
    effects: list[list[Effect]] = []
    for arm in (node.body, node.orelse):
        outer, frame.effects = frame.effects, []
        arms.append(evaluate(frame, arm))
        effects.append(frame.effects)
        frame.effects = outer
    if any(effects):
        frame.effects.append(Branch(test, effects[0], effects[1], frame.span(node)))
    merged = merge(test, arms[0], arms[1], frame.key(node))
    # ``DDP(model) if args.distributed else model``, but not ``model.module if args.distributed else model``
    parts = zip((node.body, node.orelse), arms, strict=True)
    made = [isinstance(arm, ast.Call) and is_wrapped(value) for arm, value in parts]
    before = arms[made.index(False)] if any(made) and not all(made) else None
    return of_arms(merged, before, arms[0], arms[1], test)


HANDLERS: Handlers = {
    ast.Compare: _compare, ast.BoolOp: _boolean, ast.UnaryOp: _unary, ast.IfExp: _conditional,
}  # fmt: skip
