"""Expressions: what value they have on each rank, and what they do on the way."""

from __future__ import annotations

import ast
import dataclasses
import functools
import re
from collections.abc import Hashable, Iterable, Sequence
from typing import Final

from ddp_lint.divergence import references as ref
from ddp_lint.divergence import worlds
from ddp_lint.divergence.arguments import Arguments
from ddp_lint.divergence.closures import visible
from ddp_lint.divergence.definitions import given_by_name
from ddp_lint.divergence.effects import Inline, Yielded, matters
from ddp_lint.divergence.frame import Frame, Handlers, reference_of
from ddp_lint.divergence.groups import of_source
from ddp_lint.divergence.lengths import (
    PIECE,
    cuts_alike,
    cuts_unevenly,
    dealt_evenly,
    dimension_of,
    grown_by_key,
    is_last_of_split,
    is_share,
    of_numbers,
    own_share,
    padded_to,
    shape_of,
)
from ddp_lint.divergence.losses import as_far, of_operation
from ddp_lint.divergence.project_names import absolute, as_configured
from ddp_lint.divergence.records import attribute_of_record
from ddp_lint.divergence.resolve import Linker, known
from ddp_lint.divergence.selections import (
    LISTED,
    PADDED,
    PLACES,
    SELECTING,
    SELECTION,
    SIZES,
    is_comparison,
    is_mask,
    is_padded,
    is_padded_field,
    keeps,
    own_size,
    runs_to_end,
    selection,
)
from ddp_lint.divergence.shards import element_of_parts, part_of
from ddp_lint.divergence.unset import fail_where_unset
from ddp_lint.divergence.values import (
    ARITHMETIC,
    KEYED,
    NEVER,
    SET,
    Known,
    Value,
    Variation,
    combine,
    constant,
    divergent,
    filled,
    follow_from_sizes,
    holding,
    is_filled,
    is_too_deep,
    per_rank,
    unknown,
)
from ddp_lint.findings import Confidence
from ddp_lint.knowledge import table
from ddp_lint.program.events import PARAMETER_GROUP
from ddp_lint.project.facts import assigned_in
from ddp_lint.source.syntax import FunctionNode, below, first_name

#: The settings of a job: one object, passed to many functions.
_SETTINGS = re.compile(r"(?:\b|_)(args|cfg|config|opts?|hparams)$")
#: A number that is stored in a batch for code that splits it: it was configured.
_BATCH_SIZE = re.compile(r"_batch_size$")
#: Attributes that are a size, of a tensor and of a dictionary of tensors.
_SHAPES = frozenset({"shape", "batch_size"})
#: The base of differentiable functions that a project defines itself, with the name that its module has for it.
_AUTOGRAD = frozenset({"torch.autograd.Function", "torch.autograd.function.Function"})
#: Attributes of a tensor that are usually the same on all ranks, regardless of its values.
_STATIC = frozenset({"dtype", "device", "ndim", "requires_grad", "is_cuda", "training", "grad_fn", "layout"})

#: What the time between two clock readings is counted in. A time as a text is a name.
_OF_TIMES = frozenset({"total_seconds", "seconds", "microseconds", "days", "timestamp", "hour", "minute", "second"})

#: Classes that the elements of one container are looked up in.
_ALTERNATIVES: Final = 16
#: Methods of a module that give the module: ``model.eval()``.
RETURNING_MODULE: Final = frozenset(table("tensors")["layers"]["returning_module"])
#: Operators that make a set of a set.
SET_OPERATORS = (ast.Sub, ast.BitAnd, ast.BitOr, ast.BitXor)


def evaluate(frame: Frame, node: ast.expr | None) -> Value:
    """The value of an expression; its effects are appended to the frame's."""
    if node is None:
        return constant(None)
    handler = frame.summaries.handlers.get(node.__class__)
    return handler(frame, node) if handler is not None else _opaque(frame, node)


def _opaque(frame: Frame, node: ast.expr) -> Value:
    """Parts are evaluated for what they do; the whole is an unknown that varies with data in its parts."""
    parts = [evaluate(frame, child) for child in below(node) if isinstance(child, ast.expr)]
    return passed_on(frame, node, parts)


def passed_on(frame: Frame, node: ast.AST, parts: Sequence[Value], key: Hashable = None) -> Value:
    """A result of these parts where ranks' numbers get lost but their own data do not."""
    key = key if key is not None else frame.key(node)
    agreed = False
    for part in parts:
        agreed = agreed or part.agreed
        if part.varies is not None and part.open and not part.varies.by_rank_or_place:
            return divergent(key, part.varies, even=follow_from_sizes(parts))
    return unknown(key, agreed=agreed)


def _text(frame: Frame, node: ast.JoinedStr) -> Value:
    """A text with a time in it is a name: what is found under the name is not a time."""
    parts: list[Value] = []
    for part in node.values:
        if isinstance(part, ast.FormattedValue):
            parts.append(evaluate(frame, part.value))
            write(frame, parts[-1], part.value)
    return passed_on(frame, node, [part for part in parts if not _is_time(part)])


def _is_time(value: Value) -> bool:
    return value.varies is not None and value.varies.cause == "clock"


def held_in(values: Iterable[Value]) -> ref.Instance | ref.OneOf | None:
    """What an element of a container of objects or of functions and classes of the project is, or of metrics; None of
    a container of anything else."""
    values = tuple(values)
    callees = [v for v in values if isinstance(v.reference, (ref.FunctionRef, ref.ClassRef, ref.Partial))]
    if callees:
        return ref.OneOf(tuple(callees[:_ALTERNATIVES]))
    objects = [v for v in values if isinstance(v.reference, ref.Instance) and isinstance(v.reference.of, ref.ClassRef)]
    metrics = (v for v in values if isinstance(v.reference, ref.Instance) and isinstance(v.reference.of, str))
    objects = objects or [v for v in metrics if known().is_metric(v.reference.of)]
    if not objects:
        return None
    of = {value.reference.of: value for value in objects}
    if len(of) == 1:
        (only,) = of
        return ref.Instance(only)
    return ref.OneOf(tuple(list(of.values())[:_ALTERNATIVES]))


def container(frame: Frame, node: ast.expr) -> Value | None:
    """The list or dictionary behind ``parts``, ``self.parts``, or what is written for it in this function."""
    is_own = isinstance(node, ast.Attribute) and getattr(node.value, "id", "") == "self"
    return evaluate(frame, node) if is_own or isinstance(node, ast.Name) else frame.env.get(dotted(node))


def any_of(container: Value) -> ref.Instance | ref.OneOf | None:
    """What a list or a dictionary holds at a place that only the run knows: ``METRICS[name]``."""
    return held_in(container.items or (container.entries or {}).values())


#: What Python calls where an object becomes text, the first that a class has.
_AS_TEXT: Final = ("__format__", "__str__", "__repr__")


def write(frame: Frame, value: Value, at: ast.expr) -> None:
    """What the project's own ``__str__`` of an object does where the object becomes text."""
    of = value.reference.of if isinstance(value.reference, ref.Instance) else None
    if not isinstance(of, ref.ClassRef):
        return
    methods = (frame.linker.method(of, name) for name in _AS_TEXT)
    method = next((found for found in methods if found is not None), None)
    if method is not None:
        frame.summaries.enter_unseen(frame, dataclasses.replace(method, receiver=value, of=of), at)


def _constant(frame: Frame, node: ast.Constant) -> Value:
    value: Value | None = node.__dict__.get("known")
    if value is None:
        plain = not isinstance(node.value, (bytes, complex))
        value = node.__dict__["known"] = constant(node.value) if plain else unknown(frame.key(node))
    return value


def _name(frame: Frame, node: ast.Name) -> Value:
    value = frame.env.get(node.id)
    if value is None and frame.closure is not None:
        value = frame.closure.get(node.id)
    if frame.unset and value is not None:
        fail_where_unset(frame, node, value)
    return value if value is not None else frame.summaries.variables.module_name(frame, node)


def _attribute(frame: Frame, node: ast.Attribute) -> Value:
    path = dotted(node)
    if path and path in frame.env:
        return frame.env[path]
    base = evaluate(frame, node.value)
    value = as_far(base, node.attr, attribute(frame, base, node.attr, node, path or node.attr))
    if frame.summaries.own is None:
        return value
    return as_configured(
        frame, value, node, path or node.attr, *(f"{of}.{node.attr}" for of in absolute(frame, base.reference))
    )


def attribute(frame: Frame, base: Value, name: str, node: ast.AST, path: str) -> Value:
    """`base.name`: what the project, the knowledge or, last, the name itself says about it."""
    if (own := attribute_of_record(base, name)) is not None:
        return own
    reference = base.reference
    if reference is None:
        return _of_unknown(frame, base, name, node, path)
    if isinstance(reference, (ref.External, ref.ModuleRef)):
        return _of_module(frame, reference, name, node)
    if isinstance(reference, ref.ClassRef):
        found = frame.linker.method(reference, name)
        if found is not None:
            if found.takes_class:
                found = dataclasses.replace(found, receiver=base, of=reference)
            return unknown(("method", path), found)
        if name == "apply" and (function := _of_autograd(frame, reference)) is not None:
            return unknown(("method", path), function)
        return frame.summaries.variables.class_variable(reference, name) or unknown(("attribute", path))
    if isinstance(reference, ref.Super):
        found = frame.linker.method(reference.of, name, reference.after)
        if found is not None:
            return unknown(("super", name), dataclasses.replace(found, receiver=reference.receiver, of=reference.of))
        outside = next(iter(frame.linker.outside(reference.of)), "")
        return unknown(("super", name), ref.Method(outside, name, inherited=True))
    if isinstance(reference, (ref.Instance, ref.OneOf)):
        return _of_object(frame, base, reference, name, node, path)
    return _of_unknown(frame, base, name, node, path)


def _of_autograd(frame: Frame, of: ref.ClassRef) -> ref.Reference | None:
    """What `apply` of an autograd function runs: `forward`, which is given a context first unless `setup_context`
    takes it."""
    if _AUTOGRAD.isdisjoint(frame.linker.outside(of)):
        return None
    forward = frame.linker.method(of, "forward")
    if forward is None or frame.linker.method(of, "setup_context") is not None:
        return forward
    context = unknown(("context", of.node.name))
    return ref.Partial(unknown(("forward", of.node.name), forward), (context,), identity=id(forward.node))


def _of_unknown(frame: Frame, base: Value, name: str, node: ast.AST, path: str) -> Value:
    """An attribute of an object of which only its name shows what it is."""
    receiver, ending, settings = _parts_of(path)
    guess = known().guessed_type(receiver) if base.varies is None else ""
    if guess:
        value = frame.named_rank("attribute", name, node, guess)
        if value is not None:
            return value
    value = frame.named_rank("attribute", name, node) or frame.named_rank("attribute", ending, node)
    if value is not None:
        return value
    source = known().source("attribute", name)
    if source is not None and base.varies is not None and base.open:
        return divergent(("attribute", path), base.varies)
    method = ref.Method(guess, name, guessed=bool(guess))
    if base.varies is not None and (own := _of_own(base, base.varies, name, path)) is not None:
        return own.with_reference(method)
    if base.varies is None and settings:
        return unknown(("setting", settings, name), method, agreed=base.agreed)
    return unknown(("attribute", base.key if base.reference is None else path, name), method, agreed=base.agreed)


@functools.lru_cache(maxsize=16_384)
def _parts_of(path: str) -> tuple[str, str, str]:
    """Of a dotted path: what its last attribute is one of, its last two names, what the settings are called if it is
    one of them."""
    receiver = path.rpartition(".")[0]
    settings = _SETTINGS.search(receiver)
    return receiver, ".".join(path.split(".")[-2:]), settings[1] if settings else ""


def _of_module(frame: Frame, reference: ref.External | ref.ModuleRef, name: str, node: ast.AST) -> Value:
    found = frame.linker.attribute(reference, name)
    if isinstance(found, ref.ModuleRef):
        variable = frame.summaries.variables.variable_at(found.name)
        if variable is not None:
            return variable
    if isinstance(found, ref.External):
        value = frame.named_rank("attribute", found.name, node)
        if value is not None:
            return value
        source = known().group(found.name)
        if source is not None:  # ``dist.group.WORLD``
            return dataclasses.replace(unknown(("name", found.name), ref.GroupRef(of_source(source))), missing=NEVER)
    return unknown(("name", getattr(found, "name", name)), found)


def _of_outside(frame: Frame, base: Value, reference: ref.Instance, name: str, node: ast.AST, path: str) -> Value:
    """An attribute of an object whose class is none of the project's."""
    of = str(reference.of)
    if of == SELECTION and name in SIZES:
        method = ref.Method(of, name)
        return divergent(("size", base.key), own_size(frame, node)).with_reference(method)
    tensor = reference if of in LISTED else None
    if base.varies is not None and base.open and name not in _STATIC:
        method = ref.Method(of, name, reference.guessed, instance=tensor)
        return divergent(("attribute", path), base.varies).with_reference(method)
    value = frame.named_rank("attribute", name, node, of)
    if value is not None:
        return value
    method = ref.Method(of, name, reference.guessed, instance=tensor)
    return unknown(("attribute", path), method)


def _of_own(base: Value, varies: Variation, name: str, path: str) -> Value | None:
    """The attribute of rank-local data, or of the rank's position in a group; None for anything else."""
    if base.kind == PLACES or (name in SELECTING and varies.cause == "rank"):
        return divergent((PLACES, path), dataclasses.replace(varies, cause="membership"))
    if base.open and varies.cause == "clock" and name in _OF_TIMES:
        return divergent(("attribute", path), varies)
    if not base.open or varies.cause != "data" or name in _STATIC:
        return None
    if base.even and base.kind != PIECE:  # a literal list, which has no such attribute
        return None
    size = shape_of(("attribute", path), base) if name in _SHAPES else None
    return size or divergent(("attribute", path), varies)


def _of_object(
    frame: Frame, base: Value, reference: ref.Instance | ref.OneOf, name: str, node: ast.AST, path: str
) -> Value:
    if isinstance(reference, ref.Instance):
        return _of_instance(frame, base, reference, name, node, path)
    each = tuple(attribute(frame, value, name, node, path) for value in reference.values)
    methods = tuple(value for value in each if isinstance(value.reference, (ref.FunctionRef, ref.Method)))
    if reference.tests:  # a model: what its wrappers lack is found in the module inside
        found = ref.OneOf(methods, reference.tests) if len(methods) == len(each) else None
        return unknown(("attribute", path, name), found) if found else _of_unknown(frame, base, name, node, path)
    return unknown(("attribute", path, name), ref.OneOf(methods) if methods else None)


def _of_instance(frame: Frame, base: Value, reference: ref.Instance, name: str, node: ast.AST, path: str) -> Value:
    of = reference.of
    if isinstance(of, str):
        return _of_outside(frame, base, reference, name, node, path)
    found = frame.linker.method(of, name)
    given_back = reference if name in RETURNING_MODULE or keeps(name) else None
    if found is not None and (wrapper := _wrapper(frame.linker, of, name)):
        return unknown(("attribute", path), ref.Method(wrapper, name, instance=given_back))
    if found is not None:
        method_value = unknown(("method", path), dataclasses.replace(found, receiver=base, of=of))
        if is_property(found):
            return frame.summaries.property_value(frame, found, base, node)
        return method_value
    if name in (given := dict(reference.given)):
        known_as = given[name]
        return unknown(("attribute", path), known_as) if isinstance(known_as, ref.GroupRef) else constant(known_as)
    value = frame.summaries.variables.attribute_before(of, name, _method_of(frame, path))
    if (part := part_of(frame, of, name, value)) is not None:
        return part
    if value is not None and (
        value.varies is not None
        or value.reference is not None
        or value.entries is not None
        or held_in(value.items or ()) is not None
    ):
        return value
    counted = value is not None and value.constant not in (None, Known(None), Known(-1), Known(0))
    for outside in frame.linker.outside(of):
        ranked = frame.named_rank("attribute", name, node, outside)
        if ranked is not None and not counted and not frame.summaries.variables.is_size(of, name):
            return ranked
        if known().method(outside, name) is not None or known().rank("method", name, outside) is not None:
            return unknown(("attribute", path), ref.Method(outside, name))
    ranked = frame.named_rank("attribute", name, node)
    if ranked is not None and not counted and not frame.summaries.variables.is_size(of, name):
        return ranked
    guess = known().guessed_type(path)
    if guess:
        return unknown(("attribute", path), ref.Instance(guess, guessed=True))
    outside = next(iter(frame.linker.outside(of)), "")
    method = ref.Method(outside, name, not outside, instance=given_back)
    return unknown(("attribute", path), method, agreed=value is not None and value.agreed)


def _method_of(frame: Frame, path: str) -> ast.AST | None:
    """The method at hand, where `path` is of its own object."""
    method = frame.function
    return method if isinstance(method, FunctionNode) and path.partition(".")[0] == first_name(method) else None


def _wrapper(linker: Linker, of: ref.ClassRef, name: str) -> str:
    """The class of another package that makes communicate what the method is in classes that inherit from it, unless
    one of them decides by itself whether it does."""
    for outside in linker.outside(of):
        entry = known().method(outside, name)
        if entry is not None and entry.wraps_overriding:
            settings = known().types[outside].silent_if
            decides = any(settings.keys() & given_by_name(owner.node) for owner in linker.linearised(of)[0])
            return "" if decides else outside
    return ""


def is_property(function: ref.FunctionRef) -> bool:
    decorators = getattr(function.node, "decorator_list", ())
    names = {dotted(d).rpartition(".")[2] for d in decorators}
    return bool(names & {"property", "cached_property", "lazy_property"})


def _subscript(frame: Frame, node: ast.Subscript) -> Value:
    path = dotted(node)
    if path and path in frame.env:
        return frame.env[path]
    base, index = evaluate(frame, node.value), evaluate(frame, node.slice)
    if not isinstance(node.slice, ast.Slice) and (part := element_of_parts(base)) is not None:
        return part
    if is_padded(base):
        return unknown(("item", base.key, index.key), base.reference if runs_to_end(node.slice) else None)
    if isinstance(node.slice, ast.Slice):
        return _slice(frame, node, node.slice, base)
    if (entry := _entry_of(frame, node, base, index)) is not None:
        return entry
    key = index.constant
    reference = base.reference
    dimension = None if isinstance(node.slice, ast.Attribute) else index.constant
    if (length := dimension_of(frame.linker.project, base, dimension)) is not None:
        return length
    if base.varies is not None and base.open:
        if key is not None and isinstance(key.value, str) and _BATCH_SIZE.search(key.value):
            return unknown(("item", base.key, index.key))
        return _own_item(frame, node, base, index, base.varies)
    masked = is_mask(node.slice) or is_comparison(index)
    if masked and (index.varies is None or is_comparison(index)) and not isinstance(reference, ref.Instance):
        return selection(frame, node, [base, index])
    if index.varies is not None:
        fewer = index.varies.cause == "rank" and is_last_of_split(frame, node.value)
        return divergent(("item", base.key, index.key), own_share(frame, node) if fewer else index.varies)
    if is_padded_field(frame, node) and not base.agreed:
        return unknown(("item", base.key, index.key), ref.Instance(PADDED))
    return unknown(
        ("item", base.key, index.key), parameter_group(frame, node.value) or any_of(base), agreed=base.agreed
    )


def _entry_of(frame: Frame, node: ast.Subscript, base: Value, index: Value) -> Value | None:
    """A variable of the environment, or the element or entry of a container that is known."""
    key, reference = index.constant, base.reference
    if key is None:
        if (
            base.kind == KEYED
            and (of := dotted(node.value))
            and (grown := grown_by_key(frame, node, node.slice, index)) is not None
        ):
            frame.env[of] = grown
        return None
    if isinstance(reference, ref.External) and reference.name == "os.environ":
        return environment(frame, key.value, node)
    if isinstance(key.value, str) and key.value not in (base.entries or ()) and base.varies is None:
        ranked = frame.named_rank("entry", key.value, node)
        if ranked is not None:  # ``context["local_rank"]``, which another file has put there
            return ranked
    if base.kind == KEYED and base.entries is not None and key.value not in base.entries and dotted(node.value):
        added = unknown(("entry", frame.key(node)))
        longer = unknown((KEYED, frame.key(node), base.key))
        frame.env[dotted(node.value)] = holding(longer, entries={**base.entries, key.value: added})
        return added
    place = key.value if isinstance(key.value, int) else None
    if base.items is not None and place is not None and -len(base.items) <= place < len(base.items):
        return base.items[place]
    return base.entries.get(key.value) if base.entries is not None else None


def _own_item(frame: Frame, node: ast.Subscript, base: Value, index: Value, varies: Variation) -> Value:
    """An item of what is each rank's own."""
    if base.kind == "item" and varies.cause == "rank":  # ``states[rank]["step"]``: of another object, the same part
        varies = dataclasses.replace(varies, confidence=Confidence.LOW)
    value = divergent(("item", base.key, index.key), varies)
    selected = (is_mask(node.slice) or is_comparison(index)) and not index.agreed
    kind = SELECTION if selected else PADDED if is_padded_field(frame, node) else ""
    return value.with_reference(ref.Instance(kind)) if kind else value


def parameter_group(frame: Frame, groups: ast.expr) -> ref.Instance | None:
    """What an element of ``optimizer.param_groups`` is, unless the optimizer holds no part of a model."""
    if not frame.text(groups).endswith("param_groups"):
        return None
    alone = isinstance(groups, ast.Attribute) and evaluate(frame, groups.value).reference == ref.ON_ONE_DEVICE
    return None if alone else ref.Instance(PARAMETER_GROUP)


def _slice(frame: Frame, node: ast.Subscript, bounds: ast.Slice, base: Value) -> Value:
    """``files[rank::world]``: every rank has elements of its own, and shards of different length."""
    parts = [evaluate(frame, bound) for bound in (bounds.lower, bounds.upper, bounds.step) if bound is not None]
    varies = next((part.varies for part in parts if part.varies is not None), None)
    key = (PIECE if varies is None else "slice", frame.key(node), base.key, tuple(part.key for part in parts))
    if base.varies is not None and base.open and (base.varies.cause != "file" or varies is None):
        # All find the same files, mostly: what makes the ranks diverge is how they are dealt.
        own = divergent(key, base.varies)
        return dataclasses.replace(own, even=True) if is_share(base) and cuts_alike(frame, bounds, parts) else own
    if varies is None:
        return unknown(key, agreed=base.agreed)
    if bounds.step is None and varies.cause == "rank" and cuts_unevenly(frame, node.value, bounds):
        return divergent(key, own_share(frame, node))
    if bounds.step is None or bounds.upper is not None:
        return dataclasses.replace(unknown(key), varies=varies)  # a block for each rank, which may well be as long
    share = divergent(key, own_share(frame, node))
    return dataclasses.replace(share, even=True) if dealt_evenly(frame, node.value, bounds.step) else share


def environment(frame: Frame, name: object, node: ast.AST) -> Value:
    """`os.environ[name]`."""
    value = frame.named_rank("environment", str(name), node)
    return dataclasses.replace(value, test=SET) if value is not None else unknown(("environment", name))


def _binary(frame: Frame, node: ast.BinOp) -> Value:
    left, right = evaluate(frame, node.left), evaluate(frame, node.right)
    keys = _are_keys(node.left) and _are_keys(node.right)
    if isinstance(node.op, SET_OPERATORS) and (keys or is_set(left) or is_set(right)):
        return unordered(frame, node)
    operation = ARITHMETIC.get(type(node.op))
    if _makes_text(node):  # a time in it is a part of a name
        left, right = (unknown(side.key) if _is_time(side) else side for side in (left, right))
    if operation is None or (isinstance(node.op, ast.Mod) and isinstance(getattr(left.constant, "value", None), str)):
        return passed_on(frame, node, [left, right])
    key = (type(node.op).__name__, left.key, right.key)
    if _is_fraction(left) or _is_fraction(right):
        # ``x + 0.1 * rank`` makes what a tensor holds, no number
        return of_operation(node, left, right, passed_on(frame, node, [left, right], key))
    if (ranked := rank_from_node(node.op, (node.left, left), (node.right, right))) is not None:
        return ranked
    if isinstance(node.op, ast.Sub) and left.key == right.key and _is_of_same(frame, node.left, node.right):
        return constant(0)
    result = combine(operation, (left, right), key)
    if isinstance(node.op, ast.Add):
        result = as_long_as(frame, result, padded_to(frame, node.left, node.right))
    return of_operation(node, left, right, with_agreed(result, left, right))


def _is_of_same(frame: Frame, one: ast.expr, other: ast.expr) -> bool:
    """Whether a function gives one of two variables what the other one has: ``rounds - warm_up`` where ``warm_up =
    rounds``. What a clock says twice is alike, too, by its key."""
    function = frame.function
    if not (isinstance(function, FunctionNode) and isinstance(one, ast.Name) and isinstance(other, ast.Name)):
        return False
    return any(
        isinstance(value, ast.Name) and value.id == name
        for target, name in ((one.id, other.id), (other.id, one.id))
        for value in assigned_in(function, target)
    )


def _makes_text(node: ast.expr) -> bool:
    """``folder + "/run_" + str(number)``, ``"run_%d" % number``: a text is put together with something."""
    if isinstance(node, ast.BinOp):
        return isinstance(node.op, (ast.Add, ast.Mod)) and (
            _makes_text(node.left) or (isinstance(node.op, ast.Add) and _makes_text(node.right))
        )
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


def with_agreed(result: Value, *parts: Value) -> Value:
    """What is computed of numbers, of which the ranks may have agreed on one; how much a batch holds, which a loader
    makes alike, is only a weight."""
    agreed = (result.varies is None or result.even) and result.constant is None and any(part.agreed for part in parts)
    return dataclasses.replace(result, agreed=True) if agreed else result


def rank_from_node(operation: ast.operator, *sides: tuple[ast.expr, Value]) -> Value | None:
    """``node * gpus_per_node + local_rank``: the rank in the job, whatever the two factors are."""
    for (_, local), (product, _) in (sides, sides[::-1]):
        if not isinstance(operation, ast.Add) or not isinstance(getattr(product, "op", None), ast.Mult):
            continue
        if local.varies is not None and local.components == _LOCAL_RANKS and local.varies.scope == "node":
            return per_rank(_RANKS, dataclasses.replace(local.varies, scope="world"))
    return None


_LOCAL_RANKS = tuple(Known(world.local_rank) for world in worlds.WORLDS)
_RANKS = tuple(world.rank for world in worlds.WORLDS)


def _are_keys(node: ast.expr) -> bool:
    """``stats.keys()``: what such a view and another one make is a set."""
    return isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "keys" and not node.args


def as_long_as(frame: Frame, value: Value, length: ast.expr | None) -> Value:
    """A list that was padded to a length, which may be the same on all ranks."""
    if length is None or value.varies is None or evaluate(frame, length).varies is not None:
        return value
    return dataclasses.replace(value, components=filled(value.key, value.varies).components, open=True, even=True)


def _is_fraction(value: Value) -> bool:
    return value.varies is not None and any(
        isinstance(c, Known) and isinstance(c.value, float) for c in value.components
    )


def _sequence(frame: Frame, node: ast.Tuple | ast.List | ast.Set) -> Value:
    items = [evaluate(frame, element) for element in node.elts]
    if any(isinstance(element, ast.Starred) for element in node.elts):
        return passed_on(frame, node, items)
    constants = [item.constant for item in items]
    if items and all(c is not None for c in constants) and not is_too_deep(items):
        value = constant(tuple(c.value for c in constants if c is not None))
        if not isinstance(node, ast.Set):
            return holding(value, tuple(items))
        texts = len(items) > 1 and any(isinstance(c.value, str) for c in constants if c is not None)
        return value.with_reference(ref.Instance(ref.SET)) if texts else value  # the hash of a number is its own
    if isinstance(node, ast.Set):
        return unordered(frame, node)
    value = passed_on(frame, node, items)
    if isinstance(node, ast.List) and len(items) > 1:
        value = of_ranks(value, items)
    elif isinstance(node, ast.List) and value.varies is not None and not is_filled(value):
        value = dataclasses.replace(value, even=True)
    return holding(value, tuple(items))


def _dictionary(frame: Frame, node: ast.Dict) -> Value:
    """Each value by its key: a value that depends on this rank's clock does not affect the loss next to it."""
    keys = [evaluate(frame, key) for key in node.keys if key is not None]
    values = [evaluate(frame, value) for value in node.values]
    value = passed_on(frame, node, [*keys, *values])
    if keys and value.varies is not None:  # same truth and length on all ranks, regardless of its values
        value = dataclasses.replace(filled(frame.key(node), value.varies), even=value.even)
    names = [key.value for key in node.keys if isinstance(key, ast.Constant)]
    if len(names) < len(values):
        return value
    return holding(value, entries=dict(zip(names, values, strict=True)))


def of_ranks(value: Value, elements: list[Value]) -> Value:
    """A list of numbers that follow from the rank: another list on each rank, as long on all of them."""
    varies = next((e.varies for e in elements if e.by_rank), None)
    return dataclasses.replace(value, varies=varies) if varies is not None and value.varies is None else value


def is_set(value: Value) -> bool:
    return isinstance(value.reference, ref.Instance) and value.reference.of == ref.SET


def unordered(frame: Frame, node: ast.AST) -> Value:
    """A set: its elements come in an order of each process's own, its truth and length are no problem."""
    return unknown(frame.key(node, "set"), None if of_numbers(frame, node) else ref.Instance(ref.SET))


def _lambda(frame: Frame, node: ast.Lambda) -> Value:
    function = ref.FunctionRef(node, frame.facts, frame.owner, frame.receiver, closure=visible(frame, node))
    return unknown(frame.key(node), function)


def _yield(frame: Frame, node: ast.Yield) -> Value:
    frame.yielded.append(evaluate(frame, node.value))
    frame.effects.append(Yielded())
    frame.summaries.variables.hand_over(frame)
    return unknown(frame.key(node))


def consume(frame: Frame, value: Value) -> None:
    """Run a generator to its end for nothing but its effects."""
    reference = reference_of(value)
    if isinstance(reference, ref.Generator) and isinstance(reference.call, Inline) and matters(reference.call.effects):
        frame.effects.append(dataclasses.replace(reference.call, yields=[]))


def _inside(frame: Frame, node: ast.Await | ast.Starred) -> Value:
    return evaluate(frame, node.value)


def dotted(node: ast.AST) -> str:
    """`a.b` or `a["k"].b` as text, '' for anything else."""
    if isinstance(node, ast.Name):
        return node.id
    if not isinstance(node, (ast.Attribute, ast.Subscript)):
        return ""
    path: str | None = node.__dict__.get("path")  # asked at each evaluation: worked out once a node
    if path is None:
        path = node.__dict__["path"] = _path(node)
    return path


def _path(node: ast.expr) -> str:
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


#: What evaluates which expression. `conditions`, `iteration`, `targets` and `calls` have the others.
HANDLERS: Handlers = {
    ast.Constant: _constant, ast.JoinedStr: _text, ast.Name: _name, ast.Attribute: _attribute,
    ast.Subscript: _subscript, ast.BinOp: _binary, ast.Tuple: _sequence, ast.List: _sequence, ast.Set: _sequence,
    ast.Dict: _dictionary, ast.Lambda: _lambda, ast.Await: _inside, ast.Yield: _yield,
    ast.Starred: _inside,
}  # fmt: skip


def arguments_of(frame: Frame, node: ast.Call) -> Arguments:
    positional: list[Value] = []
    nodes: dict[int | str, ast.expr] = {}
    spread: list[Value] = []
    starred = False
    for argument in node.args:
        value = evaluate(frame, argument)
        if not isinstance(argument, ast.Starred):
            if not starred:
                nodes[len(positional)] = argument
                positional.append(value)
        elif value.items is not None and not starred:
            positional += value.items
        else:
            spread.append(value)
            starred = True
    keywords: dict[str, Value] = {}
    for keyword in node.keywords:
        value = evaluate(frame, keyword.value)
        if keyword.arg is not None:
            keywords[keyword.arg] = value
            nodes[keyword.arg] = keyword.value
        elif value.entries is not None:
            keywords.update((name, entry) for name, entry in value.entries.items() if isinstance(name, str))
        else:
            spread.append(value)
            starred = True
    return Arguments(tuple(positional), keywords, nodes, starred, tuple(spread))
