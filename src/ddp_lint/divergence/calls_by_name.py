"""What a call does that nothing resolves, as far as its name leaves no doubt."""

from __future__ import annotations

import ast
import collections
import dataclasses
import functools
import re
from collections.abc import Hashable, Iterator, Sequence
from typing import Final

from ddp_lint.divergence import references as ref
from ddp_lint.divergence.arguments import Arguments
from ddp_lint.divergence.bypass import runs_inside_alone
from ddp_lint.divergence.definitions import MODEL
from ddp_lint.divergence.expressions import any_of, as_long_as, container, dotted, evaluate, passed_on
from ddp_lint.divergence.frame import Frame
from ddp_lint.divergence.groups import handed_out
from ddp_lint.divergence.lengths import (
    PIECE,
    assigned_once,
    extent_of,
    grown_by_key,
    is_share,
    of_batches,
    own_share,
    padded_to,
    size_of,
)
from ddp_lint.divergence.object_lists import of_either, with_objects
from ddp_lint.divergence.resolve import Linker, known
from ddp_lint.divergence.selections import LISTED, PADDED, PLACES, SELECTING, is_generated, selection, tensor_in
from ddp_lint.divergence.values import (
    GROWN,
    OF_ARM,
    Known,
    Test,
    Value,
    Variation,
    dictionary,
    divergent,
    filled,
    negated,
    unknown,
)
from ddp_lint.findings import Confidence, Label
from ddp_lint.knowledge import frameworks, table
from ddp_lint.knowledge.communication import Collective, Source
from ddp_lint.knowledge.tensors import layer_kind
from ddp_lint.project.facts import ModuleFacts, assigned_in
from ddp_lint.project.parts import children, inside, kept_by_node
from ddp_lint.source.imports import last_part
from ddp_lint.source.syntax import FunctionNode, calls_below, names_in

#: Classes, one of which an object may be of.
_WAYS = 8
#: In the name of an unresolved function: what it returns has probably been agreed on by all ranks.
_AGREED = re.compile(r"reduce|gather|sync|broadcast|(^|_)all_|consensus|agree|average_across")
#: Methods that run the model that they are given forward and backward, and what the model is called there.
_STEPS: Final = frozenset(table("tensors")["steps"]["methods"])
_MODELS: Final = frozenset(table("tensors")["steps"]["models"])
#: Tests of a number that are made of each rank's own loss.
_NOT_A_NUMBER = frozenset({"isnan", "isinf", "isfinite"})
#: In a name: a number that is the same on all ranks. Gradients are, once the backward pass has averaged them.
_SHARED = re.compile(r"norm|reduced|global|avg|average|mean|total|scale\b|\.grad\b")
#: The words of these that sums and means of the rank's own numbers have in their names as well.
_OF_OWN = re.compile(r"avg|average|mean|total")
#: Methods that cut a batch into pieces, as many as its size says.
_PIECES = frozenset({"split", "chunk", "unbind"})
_OF_DICTIONARY = re.compile(r"\.(values|items|keys|parameters|named_parameters)\(\)\)?$")
#: Methods that give what a dictionary holds.
_OF_ENTRIES = frozenset({"items", "keys", "values", "get", "pop"})
#: Methods of data sets that yield equally many elements on each rank, for any size of its share.
_EVENING = frozenset({"repeat", "with_epoch", "with_length", "take", "cycle"})
#: Methods that return a tensor's shape.
_SIZES = frozenset({"numel", "size", "dim", "nelement", "shape"})


def is_of_plain_model(frame: Frame, node: ast.Call) -> bool:
    """Is it the backward of a model that is not wrapped: of one that this function makes and hands to nothing that
    would wrap it, of one that communicates with nobody, or not among all ranks, or of what is inside a wrapped one
    (``model.module.get_loss(batch)``), whose hooks wait for its own forward? No wrapped model takes part in it."""
    if not isinstance(node.func, ast.Attribute) or frame.function is None:
        return False
    called = functions_behind(frame, node.func.value)
    if any(is_wrapped(value) for _, value in _models(frame, called) if value is not None):
        return False
    plain = _runs_plain(frame, called, node.lineno)
    return plain or any(_is_inside_wrapped(frame, function) for function in called) or _is_by_bypass(frame, called)


def _models(frame: Frame, called: list[ast.expr]) -> list[tuple[str, Value | None]]:
    return [(f.id, frame.env.get(f.id)) for f in called if isinstance(f, ast.Name)]


def _runs_plain(frame: Frame, called: list[ast.expr], line: int) -> bool:
    return any(_is_plain(frame, name, value, line) for name, value in _models(frame, called))


def goes_around_wrapper(frame: Frame) -> bool:
    """Does the function go backward from what is inside a replica alone, or from models that are not wrapped? The
    gradients are each rank's own then, and so are the steps: that some ranks leave one out changes nothing."""
    calls = _backwards_in(frame.function) if frame.function is not None else ()
    return bool(calls) and all(
        any(_is_inside_wrapped(frame, function) for function in behind)
        or _is_by_bypass(frame, behind)
        or (_runs_plain(frame, behind, loss.lineno) and not any(is_wrapped(held(frame, one)) for one in behind))
        for loss, behind in ((loss, functions_behind(frame, loss)) for loss in calls)
    )


def _is_by_bypass(frame: Frame, called: list[ast.expr]) -> bool:
    """Is a loss made by a function that runs what is inside a wrapper, and by no model that is called itself?"""
    models = any(MODEL.search(last_part(function)) or is_wrapped(held(frame, function)) for function in called)
    return not models and any(runs_inside_alone(frame, function) for function in called)


@kept_by_node(256)
def _backwards_in(function: ast.AST) -> tuple[ast.expr, ...]:
    """What a function calls `backward` of."""
    functions = (node.func for node in children(function) if isinstance(node, ast.Call))
    return tuple(of.value for of in functions if isinstance(of, ast.Attribute) and of.attr == "backward")


def is_of_wrapped_model(frame: Frame, node: ast.Call) -> bool:
    """Is it the backward of what a wrapped model returned that this function was given, or its object holds?"""
    if not isinstance(node.func, ast.Attribute) or frame.function is None:
        return False
    return any(is_wrapped(held(frame, function)) for function in functions_behind(frame, node.func.value))


def held(frame: Frame, function: ast.expr) -> Value:
    """What a variable or an attribute holds that is called; nothing for what another call returns."""
    name = dotted(function)
    variable = bool(name) and name.count(".") == name.startswith("self.")
    return evaluate(frame, function) if variable else unknown(("behind", name))


def functions_behind(frame: Frame, loss: ast.expr) -> list[ast.expr]:
    """The functions that a value is made by, through what the function assigns."""
    assigned = made_by(frame.function, names_in(loss)) if frame.function is not None else ()
    return [*(call.func for call in calls_below(loss)), *assigned]


@kept_by_node(64)
def made_by(function: ast.AST, names: frozenset[str]) -> tuple[ast.expr, ...]:
    """The functions, one of each dotted name, that variables of a function are made by: a script may have thousands of
    backward passes of one name."""
    values = _assigned_in(function)
    found: dict[str, ast.expr] = {}
    seen, left = set(names), list(names)
    while left:
        for value in values.get(left.pop(), ()):
            found |= {dotted(call.func) or last_part(call.func): call.func for call in calls_below(value)}
            new = names_in(value) - seen
            seen |= new
            left += new
    return tuple(func for name, func in found.items() if name)


@kept_by_node(64)
def _assigned_in(function: ast.AST) -> dict[str, list[ast.expr]]:
    """What a function assigns to each dotted name."""
    values = collections.defaultdict(list)
    for node in children(function):
        if isinstance(node, (ast.Assign, ast.AugAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for name in {name for target in targets for name in _targets(target)}:
                values[name].append(node.value)
    return dict(values)


def _targets(target: ast.expr) -> list[str]:
    """``_, loss = model(x)``"""
    return [dotted(part) for part in (target.elts if isinstance(target, (ast.Tuple, ast.List)) else [target])]


@kept_by_node(64)
def _plainly_made(function: ast.AST) -> tuple[dict[str, list[ast.expr]], dict[str, int]]:
    """What a function assigns to each dotted name that is a target by itself, and the first line on which each variable
    is given to a call."""
    values = collections.defaultdict[str, list[ast.expr]](list)
    lines: dict[str, int] = {}
    for node in children(function):
        if isinstance(node, ast.Assign):
            for name in {dotted(target) for target in node.targets}:
                values[name].append(node.value)
        elif isinstance(node, ast.Call):
            for name in {given.id for given in node.args if isinstance(given, ast.Name)}:
                lines[name] = min(lines.get(name, node.lineno), node.lineno)
    return dict(values), lines


def _is_plain(frame: Frame, model: str, value: Value | None, line: int) -> bool:
    if value is not None and value.reference == ref.ON_ONE_DEVICE:
        return True
    values, given = _plainly_made(frame.function) if frame.function is not None else ({}, {})
    made = values.get(model, [])
    handed = given.get(model, line) < line
    of = value.reference.of if value is not None and isinstance(value.reference, ref.Instance) else None
    is_module = isinstance(of, ref.ClassRef) and frame.linker.is_module(of)
    return len(made) == 1 and not handed and (is_module or _is_new_module(frame, made[0]))


def _is_inside_wrapped(frame: Frame, function: ast.expr) -> bool:
    """``model.module``, or a method of it, or of a variable that holds what a replica has inside."""
    attribute = ""
    while isinstance(function, ast.Attribute):
        attribute, function = function.attr, function.value
    if not isinstance(function, ast.Name):
        return False
    value = evaluate(frame, function)
    of = value.reference
    if isinstance(of, ref.Method) and of.name == "module" and known().is_replica(of.of):
        return True
    return attribute == "module" and is_wrapped(value)


def is_wrapped(value: Value) -> bool:
    """Is it a model that was wrapped for several ranks?"""
    if isinstance(value.reference, ref.OneOf):
        return all(map(is_wrapped, value.reference.values))
    of = value.reference.of if isinstance(value.reference, ref.Instance) else None
    return isinstance(of, str) and known().is_parallel(of)


def of_arms(merged: Value, before: Value | None, yes: Value, no: Value, test: Test) -> Value:
    """What is one of two objects, by a test: ``worker = Learner() if rank == 0 else Actor()``. ``if args.distributed:
    model = DDP(model)``: in a job of several ranks the model is the wrapped one; wrapped in both arms, in one way each,
    it is wrapped in the way of the arm that was run."""
    if merged.reference is not None:
        return merged
    merged = of_either(merged, yes, no, test)
    if (first := ways(yes, test)) and (second := ways(no, negated(test))):
        return merged.with_reference(ref.OneOf(*zip(*first, *second, strict=True)))
    if test.varying() is not None:
        return merged
    wrapped = [value.reference for value in (yes, no) if is_wrapped(value)]
    if len(wrapped) == 2 and (before is None or not is_wrapped(before)):
        return merged.with_reference(ref.OneOf((yes, no), (test, negated(test))))
    if len(wrapped) != 1 or before is None or is_wrapped(before):  # ``model = model.module``
        return merged
    return merged.with_reference(wrapped[0])


def unwrapped(*values: Value) -> Value | None:
    """The object among those that a function may return, or an attribute hold, that is not wrapped."""
    return next((v for v in values if not is_wrapped(v) and v.constant is None and v.items is None), None)


def ways(value: Value, test: Test) -> list[tuple[Value, Test]]:
    """The objects and functions of the project that a value may be, each with the test that makes it this one; none for
    anything else."""
    of = value.reference
    if isinstance(of, ref.FunctionRef):
        return [(value, test)]
    if isinstance(of, ref.Instance) and isinstance(of.of, ref.ClassRef) and not of.guessed:
        return [(value, test)]
    if not isinstance(of, ref.OneOf) or not of.tests or len(of.values) > _WAYS:
        return []
    each = [ways(one, Test("and", (test, own))) for one, own in zip(of.values, of.tests, strict=True)]
    return [way for one in each for way in one] if all(each) else []


def _is_new_module(frame: Frame, node: ast.expr) -> bool:
    """``Net().to(device)``: an object of a module class of the project or of torch.nn, moved at most; or what a
    function returns that does nothing but make one."""
    if _makes_module(frame.linker, frame.facts, node):
        return True
    call = _unmoved(node)
    made = frame.linker.expression(frame.facts, call.func) if isinstance(call, ast.Call) else None
    body = made.node.body if isinstance(made, ref.FunctionRef) and isinstance(made.node, ast.FunctionDef) else []
    last = body[-1] if body else None
    if not isinstance(made, ref.FunctionRef) or not isinstance(last, ast.Return) or last.value is None:
        return False
    returns = [node for node in children(made.node) if isinstance(node, ast.Return)]
    return len(returns) == 1 and _makes_module(frame.linker, made.facts, last.value)


def _unmoved(node: ast.expr) -> ast.expr:
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Call):
        node = node.func.value
    return node


def _makes_module(linker: Linker, facts: ModuleFacts, node: ast.expr) -> bool:
    call = _unmoved(node)
    made = linker.expression(facts, call.func) if isinstance(call, ast.Call) else None
    if isinstance(made, ref.External):
        return bool(layer_kind(made.name)) and all(last_part(n.func) != "SyncBatchNorm" for n in calls_below(call))
    return isinstance(made, ref.ClassRef) and linker.is_module(made)


def distinctive(frame: Frame, name: str, arguments: Arguments) -> tuple[Collective, Confidence] | None:
    """What a method of this name does on any object, and how certain that is."""
    knows = known()
    if (known_by_name := frameworks.distinctive().get(name)) is not None:
        collective, confidence = known_by_name
        return knows.collectives[collective], Confidence[confidence.upper()]
    if name == "full_tensor":
        whole = knows.method("torch.distributed.tensor.DTensor", name)
        return (whole, Confidence.LOW if frame.depth else Confidence.MEDIUM) if whole is not None else None
    if name in _STEPS and any(frame.text(given) in _MODELS for given in arguments.nodes.values()):
        return knows.collectives["torch.Tensor.backward"], Confidence.MEDIUM
    return None


#: Methods that make a list longer.
GROWING: Final = frozenset({"append", "extend", "insert"})


#: ... and those that change a list or a dictionary.
CHANGING: Final = GROWING | {"update", "setdefault"}


def change(frame: Frame, name: str, node: ast.Call, arguments: Arguments) -> None:
    """What a method of a list or a dictionary makes of it."""
    if name in GROWING:
        _grow(frame, node, arguments.values)
    elif name == "update":
        _update(frame, node, arguments)
    elif arguments.positional:
        _set_default(frame, node, arguments)


def _grow(frame: Frame, node: ast.Call, given: Sequence[Value]) -> None:
    """``losses.append(x)`` on some ranks only: from here on the list is longer on them. On all ranks, of a value that
    is each rank's own: it is as long on all, and holds something else."""
    path = dotted(node.func.value) if isinstance(node.func, ast.Attribute) else ""
    before = frame.env.get(path) or _entry_that_grows(frame, node)
    if before is not None and isinstance(node.func, ast.Attribute) and node.func.attr == "extend" and node.args:
        frame.env[path] = before = as_long_as(frame, before, padded_to(frame, node.func.value, node.args[0]))
    if before is None:
        return
    added = (given[0].items or ()) if len(given) == 1 and getattr(node.func, "attr", "") == "extend" else given
    if (longer := with_objects(frame, node, before, added)) is not None:
        frame.env[path] = longer
        return
    if before.items is None:
        return
    if not before.items and (order := frame.order) is not None:
        listed = ref.Instance(ref.SET, handed=order.call_depth, filled=order.origin)
        frame.env[path] = unknown(frame.key(node, "list"), listed)
        return
    beside = _is_made_beside(frame, node)
    tests = (test.varying() for test in (*(() if beside else frame.path), *frame.staying))
    varies = next((v for v in tests if v is not None and v.cause != "file"), None)  # ranks mostly find the same files
    if varies is not None and not varies.local_only:
        frame.env[path] = divergent((GROWN, frame.key(node)), varies)
        return
    if frame.uneven is not None:
        frame.env[path] = divergent((GROWN, frame.key(node)), frame.uneven)
        return
    if before.items:
        return
    if tensor := next((tensor for value in given if (tensor := tensor_in(value)) is not None), None):
        listed = dataclasses.replace(tensor, of=LISTED[str(tensor.of)])
        frame.env[path] = unknown(frame.key(node, "list"), listed)
    elif (own := passed_on(frame, node, given).varies) is not None:
        frame.env[path] = filled(frame.key(node), own)
    elif beside:
        frame.env[path] = unknown((OF_ARM, frame.key(node)))
    elif given and all(value.agreed for value in given):
        frame.env[path] = unknown(frame.key(node, "list"), agreed=True)


def _is_made_beside(frame: Frame, node: ast.Call) -> bool:
    """Has the arm that makes a list longer made it as well? ``if rank == 0: parts = []; for ..: parts.append(x)``: on
    the other ranks it is another list, or none."""
    name = node.func.value if isinstance(node.func, ast.Attribute) else None
    if not isinstance(name, ast.Name) or frame.function is None or not any(test.varying() for test in frame.path):
        return False
    nodes = inside(frame.function)
    made = [n for n in nodes if isinstance(n, ast.Assign) and any(getattr(t, "id", "") == name.id for t in n.targets)]
    arms = [block for n in nodes for block in _arms(n) if _holds(block, node)]
    return len(made) == 1 and bool(arms) and all(_holds(block, made[0]) for block in arms)


def _arms(node: ast.AST) -> Iterator[Sequence[ast.stmt]]:
    if isinstance(node, ast.If):
        yield from (node.body, node.orelse)
    elif isinstance(node, ast.Match):
        yield from (case.body for case in node.cases)


def _holds(block: Sequence[ast.stmt], node: ast.expr | ast.stmt) -> bool:
    return any(part.lineno <= node.lineno <= (part.end_lineno or part.lineno) for part in block)


def _set_default(frame: Frame, node: ast.Call, arguments: Arguments) -> None:
    """``scores.setdefault(name, []).append(score)`` of a dictionary that the function has made."""
    path = dotted(node.func.value) if isinstance(node.func, ast.Attribute) else ""
    before = frame.env.get(path)
    if before is None or before.entries is None:
        return
    if (longer := grown_by_key(frame, node, node.args[0], arguments.values[0])) is not None:
        frame.env[path] = longer


def _update(frame: Frame, node: ast.Call, arguments: Arguments) -> None:
    """``metrics.update(evaluate(model))``, ``metrics.update(loss=loss)`` of a dictionary whose entries are known."""
    path = dotted(node.func.value) if isinstance(node.func, ast.Attribute) else ""
    before = frame.env.get(path)
    if before is None or before.entries is None:
        return
    added: dict[Hashable, Value] = dict(arguments.keywords.items())
    for given in (*arguments.positional, *arguments.spread):
        if given.entries is None:
            new = passed_on(frame, node, (before, given))
            if not new.open and before.entries:  # which entries it sets anew is not known: any of them, maybe
                key = frame.key(node)
                entries = {name: unknown(("updated", key, name), agreed=new.agreed) for name in before.entries}
                new = dictionary(("updated", key, before.key), entries, None)
            frame.env[path] = new
            return
        added |= given.entries
    varies = next((entry.varies for entry in added.values() if entry.varies is not None), before.varies)
    frame.env[path] = dictionary(("updated", frame.key(node), before.key), {**before.entries, **added}, varies)


def by_name(frame: Frame, name: str, parts: Sequence[Value], node: ast.Call, key: Hashable) -> Value:
    """What an unresolved function without effect returns."""
    if is_agreement(name):
        return unknown(key, agreed=True)
    group = handed_out(name, parts[1:])
    if group is not None:
        return unknown(key, ref.GroupRef(group))
    is_method = isinstance(node.func, ast.Attribute)
    if is_method and (part := _part_of_data(frame, name, parts, node, key)) is not None:
        return part
    if parts and parts[0].kind == PLACES and parts[0].varies is not None:
        return divergent((PLACES, frame.key(node)), parts[0].varies)
    if is_method and name in SELECTING and not node.keywords and len(node.args) == (name == "masked_select"):
        return selection(frame, node, parts)
    if is_method and is_generated(node, name):
        return unknown(frame.key(node), ref.Instance(PADDED))
    if name in _OF_ENTRIES and (part := _part_of_grown(frame, name, parts, node, key)) is not None:
        return part
    if is_method and name == "keys" and not node.args:
        return unknown(key, agreed=True)  # what a batch has is the same for all
    if is_method and name == "get" and node.args:  # ``batch.get("mask")`` is ``batch["mask"]``
        key = ("item", *(part.key for part in parts[:2]))
    value = passed_on(frame, node, parts, key)
    if is_method and (size := sized(frame, node, parts)) is not None:
        return size
    if not is_method or name not in _PIECES:
        return value
    count = parts[1] if len(parts) > 1 and name == "chunk" else None
    if count is not None and of_batches(count.varies) and not count.even:
        return divergent((GROWN, key), count.varies)
    return dataclasses.replace(value, even=True)


def _entry_that_grows(frame: Frame, node: ast.Call) -> Value | None:
    """The list that ``results["scores"].append(x)`` makes longer, where this function has made the dictionary."""
    entry = node.func.value if isinstance(node.func, ast.Attribute) else None
    if not isinstance(entry, ast.Subscript) or not isinstance(entry.slice, ast.Constant):
        return None
    of = frame.env.get(dotted(entry.value))
    return (of.entries or {}).get(entry.slice.value) if of is not None else None


def _part_of_grown(frame: Frame, name: str, parts: Sequence[Value], node: ast.Call, key: Hashable) -> Value | None:
    """What a dictionary gives that has more entries on some ranks: ``hits.items()``, ``results.get("loss", 0)``."""
    of = container(frame, node.func.value) if isinstance(node.func, ast.Attribute) else None
    asked = parts[1].constant if name in ("get", "pop") and len(parts) > 1 else None
    if of is not None and asked is not None and asked.value in (of.entries or {}):
        return (of.entries or {})[asked.value]
    if of is not None and name == "get" and of.varies is None and (held := any_of(of)) is not None:
        return unknown(key, held)
    if of is None or of.kind != GROWN or of.varies is None:
        return None
    if name not in ("get", "pop"):
        return divergent((GROWN, key), of.varies)
    return divergent(key, of.varies) if of.varies.cause == "rank" else None  # ranks that lack it get the default


def _part_of_data(frame: Frame, name: str, parts: Sequence[Value], node: ast.Call, key: Hashable) -> Value | None:
    """``dataset.shard(num_shards=world_size, index=rank)``: a part for each rank, not always of one length, unless
    ``part.take(n)`` makes it so."""
    if name in _EVENING and is_share(parts[0]):
        return unknown(key)
    if name != "shard":
        return None
    given = {keyword.arg: keyword.value for keyword in node.keywords}
    index = given.get("index") if "num_shards" in given else None
    varies = evaluate(frame, index).varies if index is not None else None
    if varies is None or varies.cause != "rank":
        return None
    return divergent(("share", frame.key(node)), own_share(frame, node))


def sized(frame: Frame, node: ast.Call, parts: Sequence[Value]) -> Value | None:
    """``batch.size()``, ``batch.size(0)``, ``batch.size(1)`` of a rank's own batch; None for another call."""
    if getattr(node.func, "attr", "") != "size":
        return None
    value = passed_on(frame, node, parts)
    if not of_batches(value.varies):
        return None
    key = ("call", frame.text(node), parts[0].key)
    dimension = parts[-1].constant if node.args else Known(0)
    if dimension is None:
        return None
    if dimension != Known(0):
        return extent_of(frame.linker.project, key, value.varies)
    return dataclasses.replace(value, even=True) if _of_piece(frame, node) else size_of(key, value.varies)


def _of_piece(frame: Frame, node: ast.Call) -> bool:
    """``x[i : i + n].size(0)``: of a piece that the code cuts off, as long on all ranks as what it is cut from."""
    of = node.func.value if isinstance(node.func, ast.Attribute) else None
    if not isinstance(of, (ast.Name, ast.Subscript)):
        return False
    outer, frame.effects = frame.effects, []  # it was evaluated before
    piece = evaluate(frame, of)
    frame.effects = outer
    return piece.kind == PIECE


def from_source(frame: Frame, source: Source, parts: Sequence[Value], node: ast.Call) -> Value:
    """A value that differs although no rank is mentioned. Data must come from this rank's batches."""
    anew = source.cause in ("clock", "random")  # each call returns something else
    key = ("call", frame.key(node) if anew else frame.text(node))
    if source.cause == "data" and source.name.rpartition(".")[2] in _NOT_A_NUMBER:
        if any(p.agreed or p.constant is not None for p in parts) or _names_shared(frame, node):
            return unknown(key)
    elif source.cause == "data":
        varying = next((p.varies for p in parts if p.varies is not None and p.open), None)
        if varying is None and source.name != "next":
            return unknown(key)
        if varying is not None and varying.cause == "rank" and source.name.rpartition(".")[2] in _SIZES:
            return unknown(key)  # tensors of another content, of one shape
        if varying is not None:
            return divergent(key, varying)
        if not _is_batch_iterator(frame, node):
            return unknown(key)
    label = Label(frame.span(node), f"`{frame.text(node)}` depends on {source.description}")
    return divergent(key, Variation.of_source(source, label))


def _names_shared(frame: Frame, test: ast.Call) -> bool:
    """Is what is tested for NaN by its name the same on all ranks? A total or a mean is the rank's own where the
    function makes it of its own numbers: ``total_loss = sum(losses.values())``."""
    text = frame.text(test).lower()
    if not _SHARED.search(text):
        return False
    of = test.args[0] if test.args else getattr(test.func, "value", None)
    return _SHARED.search(_OF_OWN.sub("", text)) is not None or of is None or not _is_of_own(frame, of)


def _is_of_own(frame: Frame, tested: ast.expr, above: frozenset[str] = frozenset()) -> bool:
    """Does the function compute a name from what only this rank has, as far as the names of the calls say? `above`:
    the names that are computed from it."""
    if not isinstance(tested, ast.Name) or not isinstance(frame.function, FunctionNode):
        return False
    values = assigned_in(frame.function, tested.id)
    return bool(values) and all(_has_own(frame, value, above | {tested.id}) for value in values)


def _has_own(frame: Frame, value: ast.expr, above: frozenset[str]) -> bool:
    """The same of a value: no call in it brings the ranks together, no attribute is named as what they have in common,
    and the names of the function in it hold what is the rank's own."""
    nodes = (value, *children(value))
    called = {call.func for call in nodes if isinstance(call, ast.Call)}
    for node in nodes:
        name = last_part(node) if isinstance(node, (ast.Name, ast.Attribute)) else ""
        # What an attribute calls a mean is one of all ranks as well: ``meter.global_avg``.
        words = name.lower() if isinstance(node, ast.Attribute) else _OF_OWN.sub("", name.lower())
        if is_agreement(name) or (node not in called and _SHARED.search(words)):
            return False
        if isinstance(node, ast.Name) and not (
            node.id in above or _is_given(frame, node) or _is_of_own(frame, node, above)
        ):
            return False
    return True


def _is_given(frame: Frame, name: ast.Name) -> bool:
    """Does the function get a name from elsewhere?"""
    return not isinstance(frame.function, FunctionNode) or not assigned_in(frame.function, name.id)


@functools.lru_cache(maxsize=8192)
def is_agreement(name: str) -> bool:
    """Does the name say that ranks agree on what the function returns?"""
    return _AGREED.search(name.lower()) is not None


def agreed_within(frame: Frame, name: str) -> bool:
    """Do ranks agree within the method of that name of some class of the project? What a call of it on an object of
    an unknown method returns does then not follow from its arguments: ``self.evaluator.evaluate(predictions)``."""
    project = frame.linker.project
    return project.remember(("agreed within", name), lambda: any(_agreements(frame.linker, name)))


def _agreements(linker: Linker, name: str) -> Iterator[bool]:
    project = linker.project
    for facts in project.modules.but_tests(project.contents.holding(f"def {name}(")):
        classes = (linker.class_ref(node, facts) for node in facts.tree.body if isinstance(node, ast.ClassDef))
        methods = (linker.members(of).get(name) for of in classes)
        calls = (n for method in methods if method is not None for n in children(method) if isinstance(n, ast.Call))
        for call in calls:
            meant = project.meanings.of(facts, call.func)
            own = meant.startswith("torch.distributed.") or (bool(meant) and project.meanings.split(meant) is not None)
            yield own and is_agreement(meant.rpartition(".")[2])


def _is_batch_iterator(frame: Frame, node: ast.Call) -> bool:
    made = assigned_once(frame, node.args[0]) if node.args else None
    maker = frame.linker.expression(frame.facts, made.func) if isinstance(made, ast.Call) else None
    if isinstance(maker, ref.External) and maker.name.startswith("torch.distributed."):
        return False  # where the processes of a group meet
    text = ast.unparse(node.args[0]).lower() if node.args else ""
    if _OF_DICTIONARY.search(text):
        return False  # any one entry of a dictionary
    fresh = re.fullmatch(r"iter\((.*)\)", text)
    if fresh is not None and "loader" not in fresh[1]:
        return False  # the first entry of a data set
    return "loader" in text or "iter" in text or "stream" in text


@functools.cache
def _collective_names() -> frozenset[str]:
    prefix = "torch.distributed."
    return frozenset(name[len(prefix) :] for name in known().collectives if name.startswith(prefix))


def is_collective_name(name: str) -> bool:
    """Is it what torch.distributed calls one of its collectives?"""
    return name in _collective_names()
