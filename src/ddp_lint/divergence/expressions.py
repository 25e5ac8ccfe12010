"""Expressions: what value they have on each rank, and what they do on the way."""

from __future__ import annotations

import ast
import dataclasses
import functools
import re
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Final

from ddp_lint.divergence import references as ref
from ddp_lint.divergence.effects import Branch, Effect, Inline, Rounds, Yielded, matters
from ddp_lint.divergence.frame import Frame, reference_of, text_of
from ddp_lint.divergence.groups import WORLD_AXIS, axis_in
from ddp_lint.divergence.lengths import (
    dealt_evenly,
    extent_of,
    follows_from_extent,
    is_size,
    of_batches,
    own_length,
    size_of,
)
from ddp_lint.divergence.resolve import known
from ddp_lint.divergence.selections import (
    PADDED,
    SELECTION,
    SIZES,
    is_mask,
    is_padded,
    is_padded_field,
    may_be_empty,
    may_be_missing,
    own_emptiness,
    own_modality,
    own_size,
    runs_to_end,
    selection,
)
from ddp_lint.divergence.values import (
    ARITHMETIC,
    COMPARE,
    SET,
    Condition,
    Known,
    Symbol,
    Test,
    Value,
    Variation,
    combine,
    constant,
    divergent,
    filled,
    follow_from_sizes,
    is_filled,
    merge,
    negated,
    unknown,
)
from ddp_lint.findings import Confidence, Label
from ddp_lint.source.syntax import below

#: The settings of a job: one object, whatever functions it is handed to.
_SETTINGS = re.compile(r"\b(args|cfg|config|opts?|hparams)$")
#: The rank of a matrix, not of a process.
_OF_MATRIX = re.compile(r"(lora|peft|adapter|svd|galore|low_?rank)\w*\.rank$")
#: Attributes of a tensor that are the same on all ranks as a rule, whatever the tensor holds.
_STATIC = frozenset({"dtype", "device", "ndim", "requires_grad", "is_cuda", "training", "grad_fn", "layout"})

_SET_OPERATORS = (ast.Sub, ast.BitAnd, ast.BitOr, ast.BitXor)
_PARAMETER_GROUP = "builtins.parameter_group"


def evaluate(frame: Frame, node: ast.expr | None) -> Value:
    """The value of an expression; its effects are appended to the frame's."""
    if node is None:
        return constant(None)
    handler = HANDLERS.get(type(node))
    return handler(frame, node) if handler is not None else _opaque(frame, node)


def test_of(frame: Frame, node: ast.expr) -> Test:
    """The expression as a condition."""
    return evaluate(frame, node).truth(frame.text(node))


def _opaque(frame: Frame, node: ast.expr) -> Value:
    """Parts are evaluated for what they do; the whole is an unknown that varies with data in its parts."""
    parts = [evaluate(frame, child) for child in below(node) if isinstance(child, ast.expr)]
    return passed_on(frame, node, parts)


def passed_on(frame: Frame, node: ast.AST, parts: list[Value], key: Hashable = None) -> Value:
    """A result of these parts where ranks' numbers get lost but their own data do not."""
    key = key if key is not None else frame.key(node)
    varying = [part.varies for part in parts if part.varies is not None and part.open]
    lasting = next((v for v in varying if v.cause not in ("rank", "membership")), None)
    if lasting is not None:
        return dataclasses.replace(divergent(key, lasting), even=follow_from_sizes(parts))
    return unknown(key, agreed=any(part.agreed for part in parts))


def _text(frame: Frame, node: ast.JoinedStr) -> Value:
    """A text that a clock is written into names something: what is found under the name is no time."""
    parts = [evaluate(frame, part.value) for part in node.values if isinstance(part, ast.FormattedValue)]
    return passed_on(frame, node, [part for part in parts if part.varies is None or part.varies.cause != "clock"])


def _constant(frame: Frame, node: ast.Constant) -> Value:
    return constant(node.value) if not isinstance(node.value, (bytes, complex)) else unknown(frame.key(node))


def _name(frame: Frame, node: ast.Name) -> Value:
    for scope in (frame.env, frame.closure or {}):
        if node.id in scope:
            return scope[node.id]
    return frame.summaries.module_name(frame, node)


def _attribute(frame: Frame, node: ast.Attribute) -> Value:
    path = dotted(node)
    if path and path in frame.env:
        return frame.env[path]
    base = evaluate(frame, node.value)
    return attribute(frame, base, node.attr, node, path or node.attr)


def attribute(frame: Frame, base: Value, name: str, node: ast.AST, path: str) -> Value:
    """`base.name`: what the project, the knowledge or, last, the name itself says about it."""
    reference = base.reference
    if isinstance(reference, (ref.External, ref.ModuleRef)):
        return _of_module(frame, reference, name, node)
    if isinstance(reference, ref.ClassRef):
        found = frame.linker.method(reference, name)
        if found is not None:
            return unknown(("method", path), found)
        return frame.summaries.class_variable(reference, name) or unknown(("attribute", path))
    if isinstance(reference, ref.Super):
        found = frame.linker.method(reference.of, name, reference.after)
        if found is not None:
            return unknown(("super", name), dataclasses.replace(found, receiver=reference.receiver, of=reference.of))
        outside = next(iter(frame.linker.linearised(reference.of)[1]), "")
        return unknown(("super", name), ref.Method(outside, name, "super()"))
    if isinstance(reference, ref.Instance):
        return _of_instance(frame, base, reference, name, node, path)
    guess = known().guessed_type(path.rpartition(".")[0]) if base.varies is None else ""
    if guess:
        value = frame.named_rank("attribute", name, node, guess)
        if value is not None:
            return value
    value = frame.named_rank("attribute", name, node) if not _OF_MATRIX.search(path.lower()) else None
    value = value or frame.named_rank("attribute", ".".join(path.split(".")[-2:]), node)
    if value is not None:
        return value
    source = known().source("attribute", name)
    if source is not None and base.varies is not None and base.open:
        return divergent(("attribute", path), base.varies)
    method = ref.Method(guess, name, path.rpartition(".")[0], guessed=bool(guess))
    if base.varies is not None and base.open and base.varies.cause == "data" and name not in _STATIC:
        size = name == "shape" and of_batches(base.varies)
        return (size_of if size else divergent)(("attribute", path), base.varies).with_reference(method)
    if base.varies is None and (settings := _SETTINGS.search(path.rpartition(".")[0])):
        return unknown(("setting", settings[0], name), method, agreed=base.agreed)
    return unknown(("attribute", base.key if base.reference is None else path, name), method, agreed=base.agreed)


def _of_module(frame: Frame, reference: ref.External | ref.ModuleRef, name: str, node: ast.AST) -> Value:
    found = frame.linker.attribute(reference, name)
    if isinstance(found, ref.ModuleRef):
        variable = frame.summaries.variable_at(found.name)
        if variable is not None:
            return variable
    if isinstance(found, ref.External):
        value = frame.named_rank("attribute", found.name, node)
        if value is not None:
            return value
    return unknown(("name", getattr(found, "name", name)), found)


def _of_instance(frame: Frame, base: Value, reference: ref.Instance, name: str, node: ast.AST, path: str) -> Value:
    of = reference.of
    if isinstance(of, str):
        if of == SELECTION and name in SIZES:
            method = ref.Method(of, name, path.rpartition(".")[0])
            return divergent(("size", base.key), own_size(frame, node)).with_reference(method)
        if base.varies is not None and base.open and name not in _STATIC:
            method = ref.Method(of, name, path.rpartition(".")[0], reference.guessed)
            return divergent(("attribute", path), base.varies).with_reference(method)
        value = frame.named_rank("attribute", name, node, of)
        if value is not None:
            return value
        method = ref.Method(of, name, path.rpartition(".")[0], reference.guessed)
        return unknown(("attribute", path), method)
    found = frame.linker.method(of, name)
    if found is not None:
        method_value = unknown(("method", path), dataclasses.replace(found, receiver=base, of=of))
        if is_property(found):
            return frame.summaries.property_value(frame, found, base, node)
        return method_value
    value = frame.summaries.attribute_of(of, name)
    if value is not None and (value.varies is not None or value.reference is not None):
        return value
    for outside in frame.linker.linearised(of)[1]:
        ranked = frame.named_rank("attribute", name, node, outside)
        if ranked is not None:
            return ranked
        if known().method(outside, name) is not None or known().rank("method", name, outside) is not None:
            return unknown(("attribute", path), ref.Method(outside, name, path.rpartition(".")[0]))
    ranked = frame.named_rank("attribute", name, node)
    if ranked is not None and not (
        value is not None and value.constant not in (None, Known(None), Known(-1), Known(0))
    ):
        return ranked
    guess = known().guessed_type(path)
    if guess:
        return unknown(("attribute", path), ref.Instance(guess, guessed=True))
    outside = next(iter(frame.linker.linearised(of)[1]), "")
    return unknown(("attribute", path), ref.Method(outside, name, path.rpartition(".")[0], guessed=not outside))


def is_property(function: ref.FunctionRef) -> bool:
    decorators = getattr(function.node, "decorator_list", ())
    names = {dotted(d).rpartition(".")[2] for d in decorators}
    return bool(names & {"property", "cached_property", "lazy_property"})


def _subscript(frame: Frame, node: ast.Subscript) -> Value:
    path = dotted(node)
    if path and path in frame.env:
        return frame.env[path]
    base, index = evaluate(frame, node.value), evaluate(frame, node.slice)
    if is_padded(base):
        return unknown(("item", base.key, index.key), base.reference if runs_to_end(node.slice) else None)
    if isinstance(node.slice, ast.Slice):
        return _slice(frame, node, node.slice, base)
    key = index.constant
    reference = base.reference
    if isinstance(reference, ref.External) and reference.name == "os.environ" and key is not None:
        return environment(frame, key.value, node)
    place = key.value if key is not None and isinstance(key.value, int) else None
    if base.items is not None and place is not None and -len(base.items) <= place < len(base.items):
        return base.items[place]
    if base.entries is not None and key is not None and key.value in base.entries:
        return base.entries[key.value]
    if base.varies is not None and is_size(base) and index.constant == Known(0):
        return size_of((base.key, index.key), base.varies)
    if base.varies is not None and is_size(base) and index.constant is not None:
        return extent_of((base.key, index.key), base.varies)
    if base.varies is not None and base.open:
        value = divergent(("item", base.key, index.key), base.varies)
        selected = is_mask(node.slice) and not index.agreed
        kind = SELECTION if selected else PADDED if is_padded_field(frame, node) else ""
        return value.with_reference(ref.Instance(kind)) if kind else value
    if index.varies is not None:
        return divergent(("item", base.key, index.key), index.varies)
    if is_mask(node.slice) and (reference is None or isinstance(reference, ref.Method)):
        return selection(frame, node, [base, index])
    if is_padded_field(frame, node) and not base.agreed:
        return unknown(("item", base.key, index.key), ref.Instance(PADDED))
    return unknown(("item", base.key, index.key), _parameter_group(frame, node.value), agreed=base.agreed)


def _parameter_group(frame: Frame, groups: ast.expr) -> ref.Instance | None:
    """What an element of ``optimizer.param_groups`` is."""
    return ref.Instance(_PARAMETER_GROUP) if frame.text(groups).endswith("param_groups") else None


def _slice(frame: Frame, node: ast.Subscript, bounds: ast.Slice, base: Value) -> Value:
    """``files[rank::world]``: every rank has elements of its own, and shards of different length."""
    parts = [evaluate(frame, bound) for bound in (bounds.lower, bounds.upper, bounds.step) if bound is not None]
    key = ("slice", frame.key(node), base.key, tuple(part.key for part in parts))
    varies = next((part.varies for part in parts if part.varies is not None), None)
    if base.varies is not None and base.open and (base.varies.cause != "file" or varies is None):
        return divergent(key, base.varies)  # all find the same files, mostly: what parts them is how they are dealt
    if varies is None:
        return unknown(key, agreed=base.agreed)
    if bounds.step is None or bounds.upper is not None:
        return dataclasses.replace(unknown(key), varies=varies)  # a block for each rank, which may well be as long
    share = divergent(key, own_share(frame, node))
    return dataclasses.replace(share, even=True) if dealt_evenly(frame, node.value, bounds.step) else share


def environment(frame: Frame, name: object, node: ast.AST) -> Value:
    """`os.environ[name]`."""
    value = frame.named_rank("environment", str(name), node)
    return dataclasses.replace(value, test=SET) if value is not None else unknown(("environment", name))


def _compare(frame: Frame, node: ast.Compare) -> Value:
    values = [evaluate(frame, part) for part in (node.left, *node.comparators)]
    if len(node.ops) > 1:
        operators = tuple(type(op).__name__ for op in node.ops)
        return _among(combine(_unknown, tuple(values), ("compare", operators, _keys(values))), values)
    operation = type(node.ops[0])
    if operation in (ast.Eq, ast.NotEq) and _is_text_and_number(*values):
        return constant(operation is ast.NotEq)
    left, right = _as_numbers(*values)
    values = [left, right]
    with_none = operation in (ast.Is, ast.IsNot, ast.Eq, ast.NotEq) and right.constant == Known(None)
    if with_none and (left.made or isinstance(left.reference, (ref.FunctionRef, ref.ClassRef))):
        return constant(operation in (ast.IsNot, ast.NotEq))
    negative = operation in (ast.NotEq, ast.IsNot, ast.NotIn)
    opposite = {ast.NotEq: ast.Eq, ast.IsNot: ast.Is, ast.NotIn: ast.In}.get(operation, operation)
    key = ("compare", opposite.__name__, _keys(values))
    lacking = _lacking(frame, node, left, right)
    result = combine(COMPARE[opposite], (left, right), key) if lacking is None else divergent(key, lacking)
    if lacking is None and _is_alike(left, right, result, opposite):
        return unknown(key)
    result = _among_ranks(node, left, right, result, key)
    if operation in (ast.In, ast.NotIn) and left.varies is not None and result.open and left.varies.cause == "rank":
        if left.open:  # a key that each rank looks up: ranks fill their caches alike
            return unknown(key)
        result = dataclasses.replace(result, varies=dataclasses.replace(left.varies, cause="membership"))
    if negative:
        return _truth_value(frame, node, negated(result.truth(_text_of_opposite(node, opposite))), [result])
    return result


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
    if left.varies is not None or left.agreed or left.constant is not None:
        return None
    operation = type(node.ops[0])
    if operation in (ast.Is, ast.IsNot) and right.constant == Known(None) and may_be_missing(node.left):
        return own_modality(frame, node.left)
    if _asks_for_any(operation, right) and may_be_empty(frame, node.left):
        return own_emptiness(frame, node.left)
    return None


def _among_ranks(node: ast.Compare, left: Value, right: Value, result: Value, key: Hashable) -> Value:
    """The comparison where it is one of ranks: of two groups' ranks, with a place along an axis, with bounds."""
    if left.varies is not None and right.varies is not None and left.varies.cause == right.varies.cause == "rank":
        grouped = left.varies.scope != right.varies.scope or left.varies.scope.startswith("group:")
        if grouped and not left.open and not right.open:
            doubtful = dataclasses.replace(left.varies, cause="membership", confidence=Confidence.LOW)
            result = divergent(key, doubtful)  # mostly two names of one group
    elif result.varies is not None and result.varies.cause == "rank" and _is_place(node, left, right):
        result = divergent(key, dataclasses.replace(result.varies, cause="membership", confidence=Confidence.LOW))
    if isinstance(node.ops[0], (ast.Lt, ast.LtE, ast.Gt, ast.GtE)):
        result = _among(result, [left, right])
    return result


def _is_alike(left: Value, right: Value, result: Value, operation: type[ast.cmpop]) -> bool:
    """Does the comparison come out the same on all ranks, though what is compared differs?"""
    with_none = operation in (ast.Is, ast.Eq) and right.constant == Known(None)
    if with_none and result.open and not left.open and not any(isinstance(c, Known) for c in left.components):
        return True  # another object on each rank, none of which is known to be missing
    if right.constant == Known(0) and follows_from_extent(left):
        return True
    formal = with_none or operation is ast.In or _is_text(right) or _is_text(left)
    if result.varies is None or not (result.even or formal or right.constant == Known(None)):
        return False
    if result.even:  # how much the batches hold, unlike the question whether one is empty
        return not (is_size(left) and right.constant in (Known(0), Known(1)))
    if with_none and result.varies.cause == "host":
        return True  # each process has a name and a number of its own, none has none
    return result.open and result.varies.cause == "data"  # what a batch has, and of which kind it is


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
        if one.varies is None or one.varies.cause != "rank" or other.constant is None:
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
    return Value(components, varies, varies is not None and any(atom.open for atom in test.atoms()), test=test)


def _boolean(frame: Frame, node: ast.BoolOp) -> Value:
    """`and`, `or`: the later parts happen only if the earlier ones let them."""
    conjunction = isinstance(node.op, ast.And)
    first = evaluate(frame, node.values[0])
    parts, tests = [first], [first.truth(frame.text(node.values[0]))]
    for operand in node.values[1:]:
        outer, frame.effects = frame.effects, []
        value = evaluate(frame, operand)
        inner, frame.effects = frame.effects, outer
        if inner:
            guard = tests[0] if len(tests) == 1 else Test("and" if conjunction else "or", tuple(tests))
            yes, no = (inner, []) if conjunction else ([], inner)
            frame.effects.append(Branch(guard, yes, no, frame.span(operand)))
        parts.append(value)
        tests.append(value.truth(frame.text(operand)))
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


def _not(frame: Frame, node: ast.UnaryOp) -> Value:
    value = evaluate(frame, node.operand)
    if isinstance(node.op, ast.Not):
        return _truth_value(frame, node, negated(value.truth(frame.text(node.operand))), [value])
    if isinstance(node.op, ast.USub):
        return combine(lambda x: -x, (value,), ("minus", value.key))
    return passed_on(frame, node, [value])


def _binary(frame: Frame, node: ast.BinOp) -> Value:
    left, right = evaluate(frame, node.left), evaluate(frame, node.right)
    if isinstance(node.op, _SET_OPERATORS) and (is_set(left) or is_set(right)):
        return unordered(frame, node)
    operation = ARITHMETIC.get(type(node.op))
    if operation is None or (isinstance(node.op, ast.Mod) and isinstance(getattr(left.constant, "value", None), str)):
        return passed_on(frame, node, [left, right])
    key = (type(node.op).__name__, left.key, right.key)
    if _is_fraction(left) or _is_fraction(right):
        return passed_on(frame, node, [left, right], key)  # ``x + 0.1 * rank`` makes what a tensor holds, no number
    return combine(operation, (left, right), key)


def _is_fraction(value: Value) -> bool:
    return value.varies is not None and any(
        isinstance(c, Known) and isinstance(c.value, float) for c in value.components
    )


def _conditional(frame: Frame, node: ast.IfExp) -> Value:
    test = test_of(frame, node.test)
    arms: list[Value] = []
    effects: list[list[Effect]] = []
    for arm in (node.body, node.orelse):
        outer, frame.effects = frame.effects, []
        arms.append(evaluate(frame, arm))
        effects.append(frame.effects)
        frame.effects = outer
    if any(effects):
        frame.effects.append(Branch(test, effects[0], effects[1], frame.span(node)))
    return merge(test, arms[0], arms[1], frame.key(node))


def _sequence(frame: Frame, node: ast.Tuple | ast.List | ast.Set) -> Value:
    items = [evaluate(frame, element) for element in node.elts]
    if any(isinstance(element, ast.Starred) for element in node.elts):
        return passed_on(frame, node, items)
    constants = [item.constant for item in items]
    if items and all(c is not None for c in constants):
        value = constant(tuple(c.value for c in constants if c is not None))
        return dataclasses.replace(value, items=tuple(items)) if not isinstance(node, ast.Set) else value
    if isinstance(node, ast.Set):
        return unordered(frame, node)
    value = passed_on(frame, node, items)
    if isinstance(node, ast.List) and len(items) > 1:
        value = _of_ranks(value, items)
    return dataclasses.replace(value, items=tuple(items))


def _dictionary(frame: Frame, node: ast.Dict) -> Value:
    """Each value by its key: what depends on this rank's clock says nothing of the loss beside it."""
    keys = [evaluate(frame, key) for key in node.keys if key is not None]
    values = [evaluate(frame, value) for value in node.values]
    value = passed_on(frame, node, [*keys, *values])
    names = [key.value for key in node.keys if isinstance(key, ast.Constant)]
    if len(names) < len(values):
        return value
    return dataclasses.replace(value, entries=dict(zip(names, values, strict=True)))


def _of_ranks(value: Value, elements: list[Value]) -> Value:
    """A list of numbers that follow from the rank: another list on each rank, as long on all of them."""
    varies = next((e.varies for e in elements if e.varies is not None and e.varies.cause == "rank"), None)
    return dataclasses.replace(value, varies=varies) if varies is not None and value.varies is None else value


def is_set(value: Value) -> bool:
    return isinstance(value.reference, ref.Instance) and value.reference.of == ref.SET


def unordered(frame: Frame, node: ast.AST) -> Value:
    """A set: its elements come in an order of each process's own, its truth and length are no problem."""
    return unknown(frame.key(node, "set"), ref.Instance(ref.SET))


def _comprehension(frame: Frame, node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp) -> Value:
    outer, frame.effects = frame.effects, []
    saved = dict(frame.env)
    iterables: list[Value] = []
    for generator in node.generators:
        iterable = evaluate(frame, generator.iter)
        iterables.append(iterable)
        element = element_of(frame, iterable, generator.iter, generator.target)
        bind(frame, generator.target, element, generator.iter)
        for condition in generator.ifs:
            iterables.append(evaluate(frame, condition))
    elements = (node.key, node.value) if isinstance(node, ast.DictComp) else (node.elt,)
    values = [evaluate(frame, element) for element in elements]
    inner, frame.effects = frame.effects, outer
    frame.env = saved
    rounds = rounds_of(frame, iterables[0], node.generators[0].iter)
    source = reference_of(iterables[0])
    if isinstance(source, ref.Generator):
        frame.effects.append(dataclasses.replace(source.call, yields=inner))
    elif inner:
        frame.effects.append(Rounds(inner, [], rounds, frame.span(node)))
    if isinstance(node, ast.SetComp) or is_set(iterables[0]):
        return unordered(frame, node)
    even = rounds is None and len(node.generators) == 1 and not node.generators[0].ifs
    value = passed_on(frame, node, [*iterables, *values])
    if of_batches(value.varies) and any(generator.ifs for generator in node.generators):
        return divergent(frame.key(node, "kept"), own_size(frame, node))
    share = _share(frame, node) if value.varies is None else None
    if share is not None:
        return divergent(frame.key(node, "share"), share)
    return dataclasses.replace(_of_ranks(value, values) if isinstance(node, ast.ListComp) else value, even=even)


def _share(frame: Frame, node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp) -> Variation | None:
    """``[f for i, f in enumerate(files) if i % world == rank]``: why ranks have different numbers of elements."""
    for test in (test for generator in node.generators for test in generator.ifs):
        sides = (test.left, *test.comparators) if isinstance(test, ast.Compare) else ()
        dealt = any(isinstance(side, ast.BinOp) and isinstance(side.op, ast.Mod) for side in sides)
        if dealt and any((varies := evaluate(frame, side).varies) and varies.cause == "rank" for side in sides):
            return own_share(frame, node)
    return None


def own_share(frame: Frame, node: ast.AST) -> Variation:
    """Why a rank has as many elements as fall to it."""
    origin = Label(frame.span(node), "each rank takes elements of its own, not always equally many")
    return Variation("data", SHARE, origin=origin)


#: What depends on how a list was dealt to the ranks depends on this.
SHARE: Final = "how many elements this rank's share has"
#: What depends on a number that follows from a rank's own batch depends on this.
COUNT: Final = "how many this rank's own batch asks for"


#: A loader by name; what holds several loaders hands out loaders.
_LOADER = re.compile(r"(?<!down)loader(?!s)")
#: What a collection is named after that holds no batches: loaders by data set, evaluators, metrics by name.
_NO_BATCH = re.compile(r"(^|_)(data)?(loader|dataset|evaluator|task|metric|name|key|split|set)s?$")


#: Progress bars, which hand on what they are given.
_PROGRESS = frozenset({"tqdm", "track", "progress_bar", "ProgressBar"})


def element_of(frame: Frame, iterable: Value, node: ast.expr, target: ast.expr | None = None) -> Value:
    """What a loop variable is: an element of the iterable."""
    while isinstance(node, ast.Call) and node.args and dotted(node.func).rpartition(".")[2] in _PROGRESS:
        node = node.args[0]
    path = frame.text(node)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.args:
        parts = target.elts if isinstance(target, ast.Tuple) else [None] * (len(node.args) + 1)
        if node.func.id == "enumerate":
            return pair(frame, node, element_of(frame, _numbered(iterable), node.args[0], parts[-1]))
        if node.func.id == "zip" and len(parts) >= len(node.args):
            return _zipped(frame, node, parts)
    if isinstance(iterable.reference, ref.Enumerated):
        return pair(frame, node, iterable.reference.element)
    if isinstance(target, ast.Name) and _NO_BATCH.search(target.id.lower()) and not _is_rank(iterable):
        return unknown(("element", frame.key(node)))
    if isinstance(node, ast.Call) and dotted(node.func) == "range" and len(node.args) == 1:
        return unknown(("element", frame.key(node)))  # ranks that go round together count alike
    if iterable.varies is not None and iterable.open:
        return divergent(("element", frame.key(node)), iterable.varies)
    if is_loader(iterable, path):
        origin = Label(frame.span(node), "each rank iterates over its own batches here")
        varies = Variation("data", "the batches of this rank", origin=origin, confidence=Confidence.MEDIUM)
        return divergent(("element", frame.key(node)), varies)
    return unknown(("element", frame.key(node)), _parameter_group(frame, node))


def pair(frame: Frame, node: ast.AST, element: Value) -> Value:
    """What ``enumerate()`` hands out: a number, the same on all ranks in one round, and an element."""
    items = (unknown(("index", frame.key(node))), element)
    return dataclasses.replace(unknown(("element", frame.key(node))), items=items)


def _numbered(value: Value) -> Value:
    """What is numbered by an ``enumerate()``; anything else as it is."""
    return value.with_reference(value.reference.of) if isinstance(value.reference, ref.Enumerated) else value


def _zipped(frame: Frame, node: ast.Call, targets: Sequence[ast.expr | None]) -> Value:
    """One element of each iterable: ``zip(loader, range(n))`` pairs a rank's batch with a number that all share."""
    outer, frame.effects = frame.effects, []
    items = tuple(
        element_of(frame, evaluate(frame, argument), argument, target)
        for argument, target in zip(node.args, targets, strict=False)
    )
    frame.effects = outer  # the arguments were evaluated as the loop's iterable already
    return dataclasses.replace(unknown(("element", frame.key(node))), items=items)


def _is_rank(value: Value) -> bool:
    return value.varies is not None and value.varies.cause == "rank"


def is_loader(iterable: Value, text: str) -> bool:
    """Is it a data loader, by type or, when nothing resolves it, by name?"""
    reference = iterable.reference
    if isinstance(reference, ref.Instance) and isinstance(reference.of, str):
        return not reference.whole and known().source("iterate", reference.of) is not None and reference.of != ref.SET
    return _LOADER.search(text.lower()) is not None and not text.startswith("range(")  # numbers, of whatever they count


_OF_DICTIONARY = frozenset({"values", "items", "keys"})


def rounds_of(frame: Frame, iterable: Value, node: ast.expr, target: ast.AST | None = None) -> Condition | None:
    """How often a loop over the iterable goes round, where ranks may differ in it."""
    text, iterable = frame.text(node), _numbered(iterable)
    if is_set(iterable):
        here = Label(frame.span(node), "a set: each process iterates over it in an order of its own")
        origin = iterable.reference.filled or here
        says = "the order of a set, which differs between processes"
        varies = Variation("order", says, origin=origin, foreign=iterable.reference.handed)
        return Condition((("order", frame.key(node)),) * 3, text, varies, open=True)
    own = own_length(frame, iterable, node, target)
    if own is not None:
        return Condition((("rounds", frame.key(node)),) * 3, text, own, open=True)
    if iterable.varies is None or iterable.even or iterable.items is not None or is_filled(iterable):
        return None
    counted = iterable.kind == "grown" or (isinstance(node, ast.Call) and dotted(node.func) == "range")
    if of_batches(iterable.varies) and not counted and isinstance(iterable.reference, (type(None), ref.Method)):
        return None  # as many as the batch holds
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _OF_DICTIONARY:
        return None  # values differ between ranks, the keys hardly ever
    if not iterable.open and all(isinstance(component, Symbol) for component in iterable.components):
        return None  # something else on each rank, which may well be as long
    truths = tuple(("rounds", component) for component in iterable.components)
    varies = iterable.varies
    if counted and of_batches(varies):
        varies = dataclasses.replace(varies, says=COUNT)
    return Condition(truths, text, varies, open=True)


def order_of(iterable: Value, rounds: Condition | None) -> Variation | None:
    """Why a loop meets its elements in an order of each process's own: over a set, or a generator that has one."""
    generator = iterable.reference if isinstance(iterable.reference, ref.Generator) else None
    loops = [e.rounds for e in generator.call.effects if isinstance(e, Rounds)] if generator is not None else [rounds]
    varies = next((loop.varies for loop in loops if loop and loop.varies and loop.varies.cause == "order"), None)
    if varies is None or generator is None:
        return varies
    return dataclasses.replace(varies, foreign=generator.call.handed)


def bind(frame: Frame, target: ast.expr, value: Value, source: ast.AST) -> None:
    """Assign to a target."""
    if isinstance(target, ast.Starred):
        target = target.value
    if isinstance(target, (ast.Tuple, ast.List)):
        starred = any(isinstance(part, ast.Starred) for part in target.elts)
        items = value.items if value.items is not None and (starred or len(value.items) == len(target.elts)) else ()
        for index, part in enumerate(target.elts):
            if index < len(items):
                item = items[index]
            elif value.varies is not None and is_size(value) and index == 0:
                item = size_of((value.key, index), value.varies)
            elif value.varies is not None and is_size(value):
                item = extent_of((value.key, index), value.varies)
            elif value.varies is not None and value.open:
                item = divergent(("part", frame.key(source), index), value.varies)
            else:
                item = unknown(("part", frame.key(source), frame.key(target), index))
            bind(frame, part, item, source)
        return
    path = dotted(target)
    if isinstance(target, ast.Subscript):
        key, base = evaluate(frame, target.slice), evaluate(frame, target.value)
        _store(frame, target, base)
        _enter(frame, target, base, key, value)
    if not path:
        return
    if isinstance(target, ast.Name) and target.id in frame.global_names:
        frame.summaries.set_global(frame, target.id, value)
    forget_parts(frame, path)
    frame.env[path] = value


def forget_parts(frame: Frame, path: str) -> None:
    """What was known of attributes and items of a name that now stands for another object."""
    parts = (path + ".", path + "[")
    for name in [name for name in frame.env if name.startswith(parts)]:
        del frame.env[name]


def _store(frame: Frame, target: ast.Subscript, base: Value) -> None:
    """``param_group["lr"] = lr``: what the knowledge says of a key of this object."""
    of = base.reference.of if isinstance(base.reference, ref.Instance) else None
    entry = known().method(of, "__setitem__") if isinstance(of, str) else None
    if entry is not None:
        from ddp_lint.divergence.arguments import Arguments
        from ddp_lint.divergence.collectives import communicate

        call = ast.copy_location(ast.Call(func=target, args=[target.slice], keywords=[]), target)
        communicate(frame, entry, Arguments((evaluate(frame, target.slice),)), call, confidence=Confidence.MEDIUM)


#: Entries that are kept of a dictionary.
_ENTRIES = 64


def _enter(frame: Frame, target: ast.Subscript, base: Value, key: Value, value: Value) -> None:
    """``stats["kl"] = kl``: an entry of a dictionary that this function has made, by key as far as that is known."""
    path = dotted(target.value)
    if base.entries is None or not path or len(base.entries) >= _ENTRIES:
        return
    own = passed_on(frame, target, [value]).varies
    if key.constant is None:
        fill(frame, path, target, own)
        return
    entries = {**base.entries, key.constant.value: value}
    varies = base.varies if base.varies is not None and base.open else own
    now = ("stored", frame.key(target), base.key)
    stored = filled(now, varies) if varies is not None else unknown(now)
    frame.env[path] = dataclasses.replace(stored, entries=entries)


def fill(frame: Frame, path: str, at: ast.AST, own: Variation | None) -> None:
    """From here on an empty list or dictionary holds values of which some are each rank's own, as many on all ranks."""
    before = frame.env.get(path)
    if own is not None and before is not None and (before.items == () or before.entries == {}):
        frame.env[path] = filled(frame.key(at), own)


def _lambda(frame: Frame, node: ast.Lambda) -> Value:
    function = ref.FunctionRef(node, frame.facts, frame.owner, frame.receiver, closure=visible(frame))
    return unknown(frame.key(node), function)


def visible(frame: Frame) -> dict[str, Value]:
    """Names that a nested function sees."""
    return {**(frame.closure or {}), **frame.env}


def _await(frame: Frame, node: ast.Await) -> Value:
    return evaluate(frame, node.value)


def _yield(frame: Frame, node: ast.Yield) -> Value:
    evaluate(frame, node.value)
    frame.effects.append(Yielded())
    frame.summaries.hand_over(frame)
    return unknown(frame.key(node))


def _yield_from(frame: Frame, node: ast.YieldFrom) -> Value:
    value = evaluate(frame, node.value)
    reference = reference_of(value)
    if isinstance(reference, ref.Generator):
        frame.effects.append(dataclasses.replace(reference.call, yields=[Yielded()]))
    else:
        frame.effects.append(Yielded())
    return unknown(frame.key(node))


def consume(frame: Frame, value: Value) -> None:
    """Run a generator to its end for nothing but its effects."""
    reference = reference_of(value)
    if isinstance(reference, ref.Generator) and isinstance(reference.call, Inline) and matters(reference.call.effects):
        frame.effects.append(dataclasses.replace(reference.call, yields=[]))


def _walrus(frame: Frame, node: ast.NamedExpr) -> Value:
    value = evaluate(frame, node.value)
    bind(frame, node.target, value, node)
    return value


def _starred(frame: Frame, node: ast.Starred) -> Value:
    return evaluate(frame, node.value)


def dotted(node: ast.AST) -> str:
    """`a.b` or `a["k"].b` as text, '' for anything else."""
    parts: list[str] = []
    while True:
        if isinstance(node, ast.Attribute):
            parts.append(f".{node.attr}")
            node = node.value
        elif isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
            parts.append(f"[{node.slice.value!r}]")
            node = node.value
        elif isinstance(node, ast.Name):
            return node.id + "".join(reversed(parts))
        else:
            return ""


#: What evaluates which expression. Calls, which have a module of their own, are entered there.
HANDLERS: dict[type[ast.expr], Callable[[Frame, Any], Value]] = {
    ast.Constant: _constant, ast.JoinedStr: _text, ast.Name: _name, ast.Attribute: _attribute,
    ast.Subscript: _subscript,
    ast.Compare: _compare, ast.BoolOp: _boolean, ast.UnaryOp: _not, ast.BinOp: _binary, ast.IfExp: _conditional,
    ast.Tuple: _sequence, ast.List: _sequence, ast.Set: _sequence, ast.Dict: _dictionary, ast.ListComp: _comprehension,
    ast.SetComp: _comprehension, ast.GeneratorExp: _comprehension, ast.DictComp: _comprehension, ast.Lambda: _lambda,
    ast.Await: _await, ast.Yield: _yield, ast.YieldFrom: _yield_from, ast.NamedExpr: _walrus, ast.Starred: _starred,
}  # fmt: skip
