"""Iteration: what a loop variable is on each rank, how often ranks go round, and in which order."""

from __future__ import annotations

import ast
import dataclasses
import re
from collections.abc import Iterator, Sequence

from ddp_lint.divergence import references as ref
from ddp_lint.divergence import worlds
from ddp_lint.divergence.effects import Rounds, Yielded
from ddp_lint.divergence.expressions import (
    container,
    dotted,
    evaluate,
    held_in,
    is_set,
    of_ranks,
    parameter_group,
    passed_on,
    unordered,
)
from ddp_lint.divergence.frame import Frame, Handlers, reference_of
from ddp_lint.divergence.group_members import of_comprehension
from ddp_lint.divergence.lengths import (
    assigned_once,
    dealt_alike,
    dealt_evenly,
    feeds_training,
    gives_rest,
    is_loader,
    is_loader_name,
    is_share,
    is_undivided,
    may_be_one_for_all,
    of_batches,
    own_length,
    own_share,
)
from ddp_lint.divergence.object_lists import is_counted
from ddp_lint.divergence.pieces import own_pieces
from ddp_lint.divergence.resolve import iterated
from ddp_lint.divergence.selections import GRADIENTS, OF_DICTIONARY, are_gradients, kind_of, own_gradients, own_size
from ddp_lint.divergence.shards import element_of_parts
from ddp_lint.divergence.targets import bind
from ddp_lint.divergence.values import (
    BATCH,
    ELEMENT,
    FIELD,
    GROWN,
    INDEX,
    LISTED,
    NEVER,
    SHARDED,
    Condition,
    Known,
    Symbol,
    Test,
    Value,
    Variation,
    divergent,
    follow_from_sizes,
    is_every_rank,
    is_filled,
    is_whether_sharded,
    made_of_range,
    unknown,
)
from ddp_lint.findings import Confidence, Label
from ddp_lint.knowledge.communication import ASPECTS, Aspect
from ddp_lint.project.parts import children, inside, kept_by_node
from ddp_lint.source.imports import last_part
from ddp_lint.source.syntax import FunctionNode, calls_below, names_in, walk

#: What a collection is named after that holds no batches: loaders by data set, evaluators, metrics by name.
_NO_BATCH = re.compile(r"(^|_)(data)?(loader|dataset|evaluator|task|metric|name|key|split|set)s?$")
#: What hands out the elements that it is given: progress bars, and lists of them.
_HANDING_ON = frozenset({"tqdm", "track", "progress_bar", "ProgressBar", "list", "tuple"})
_REORDERING = frozenset({"sorted", "list", "tuple", "reversed", "enumerate"})
#: Methods of a module that give its parts, each behind its name.
_NAMED = frozenset({"named_parameters", "named_buffers", "named_modules", "named_children"})


def _comprehension(frame: Frame, node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp) -> Value:
    outer, frame.effects = frame.effects, []
    iterables: list[Value] = []
    elements = (node.key, node.value) if isinstance(node, ast.DictComp) else (node.elt,)
    with frame.env.for_a_while():
        for generator in node.generators:
            iterable = evaluate(frame, generator.iter)
            iterables.append(iterable)
            element = element_of(frame, iterable, generator.iter, generator.target)
            bind(frame, generator.target, element, generator.iter, counted=True)
            for condition in generator.ifs:
                iterables.append(evaluate(frame, condition))
        values = [evaluate(frame, element) for element in elements]
    inner, frame.effects = frame.effects, outer
    rounds = rounds_of(frame, iterables[0], node.generators[0].iter, node.generators[0].target)
    rounds = rounds if is_counted(iterables[0], inner) else None
    source = reference_of(iterables[0])
    if isinstance(source, ref.Generator):
        frame.effects.append(dataclasses.replace(source.call, yields=inner))
    elif inner:
        times = 0 if rounds or len(node.generators) > 1 or node.generators[0].ifs else times_of(iterables[0])
        frame.effects.append(Rounds(inner, [], rounds, frame.span(node), times=times))
    if isinstance(node, ast.SetComp) or is_set(iterables[0]):
        return unordered(frame, node)
    even = rounds is None and len(node.generators) == 1 and not node.generators[0].ifs
    alike = len(elements) == 1 and values[0].varies is None and _asks_for_none(node)  # for each element
    parts = [*iterables[int(alike) :], *values]
    value = passed_on(frame, node, parts, frame.key(node) if follow_from_sizes(values) else (LISTED, frame.key(node)))
    if of_batches(value.varies) and any(generator.ifs for generator in node.generators):
        return dataclasses.replace(divergent(frame.key(node, "kept"), own_size(frame, node)), missing=NEVER)
    own = iterables[0].varies if iterables[0].kind == GROWN else None
    if own is not None and len(node.generators) == 1 and not node.generators[0].ifs:  # as many
        return divergent((GROWN, frame.key(node)), own)
    gradients = _lacks_gradients(node) or _maps_gradients(node, iterables[0])
    if value.varies is None and gradients and not _has_gone_backward(frame, node) and not _is_written_back(frame, node):
        return emptiness(frame, node, unknown((GRADIENTS, frame.key(node))))
    ranks = is_every_rank(iterables[0])
    share = _share(frame, node) if value.varies is None and not ranks else None
    if share is not None:
        return dataclasses.replace(divergent(frame.key(node, "share"), share), missing=NEVER)
    if isinstance(node, ast.ListComp):  # ``[r for r in range(world_size) if r // 8 == rank // 8]``
        value = of_ranks(value, [*values, *iterables[1:]] if ranks else values)
    if value.varies is None:
        value = of_comprehension(frame, node, iterables[0]) or value
    if value.varies is None and len(values) == 1 and is_whether_sharded(values[0]):
        value = unknown((SHARDED, frame.key(node)))
    return dataclasses.replace(value, even=even, missing=NEVER)


def _yield_from(frame: Frame, node: ast.YieldFrom) -> Value:
    """``yield from batches`` is a loop that hands out each of them, where ranks may have other numbers of them."""
    value = evaluate(frame, node.value)
    reference = reference_of(value)
    if isinstance(reference, ref.Generator):
        frame.effects.append(dataclasses.replace(reference.call, yields=[Yielded()]))
    elif streamed(_numbered(value)) is not None or is_share(value):
        frame.effects.append(Rounds([Yielded()], [], rounds_of(frame, value, node.value), frame.span(node)))
    else:
        frame.effects.append(Yielded())
    return unknown(frame.key(node))


def _asks_for_none(node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp) -> bool:
    """``all(value is not None for value in values)``"""
    test = None if isinstance(node, ast.DictComp) else node.elt
    asks = isinstance(test, ast.Compare) and isinstance(test.ops[0], (ast.Is, ast.IsNot))
    return asks and not any(generator.ifs for generator in node.generators)


def emptiness(frame: Frame, node: ast.expr, value: Value) -> Value:
    """A list of gradients, or its length: whether there are any is each rank's own, how many else is no question."""
    condition = Condition(
        (("empty", value.key),) * worlds.COUNT, frame.text(node), own_gradients(frame, node), open=True
    )
    return dataclasses.replace(value, test=Test("atom", atom=condition), missing=NEVER)


def _lacks_gradients(node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp) -> bool:
    """``[p.grad for p in parameters if p.grad is not None]``: which parameters have one a rank's own batch decides.

    The parameters themselves are listed to average the gradients of replicas, all of which lack the same.
    """
    element = None if isinstance(node, ast.DictComp) else node.elt
    if isinstance(element, ast.Name):
        return False
    tests = (test for generator in node.generators for test in generator.ifs)
    return any(
        isinstance(test, ast.Compare)
        and isinstance(test.ops[0], ast.IsNot)
        and getattr(test.left, "attr", "") == "grad"
        and getattr(test.comparators[0], "value", 0) is None
        for test in tests
    )


def _has_gone_backward(frame: Frame, node: ast.expr) -> bool:
    """Has the function itself gone backward before? Then there are gradients on all ranks."""
    calls = (n for n in children(frame.function) if isinstance(n, ast.Call)) if frame.function is not None else ()
    return any(call.lineno < node.lineno and last_part(call.func) == "backward" for call in calls)


def _is_written_back(frame: Frame, node: ast.expr) -> bool:
    """Does the function copy something into tensors further down: ``for grad, mean in zip(grads, reduced):
    grad.copy_(mean)``? Then it averages the gradients of replicas, all of which lack the same ones: a norm of what each
    rank holds leaves them as they are."""
    calls = (n for n in children(frame.function) if isinstance(n, ast.Call)) if frame.function is not None else ()
    return any(call.lineno > node.lineno and last_part(call.func) == "copy_" for call in calls)


def _maps_gradients(node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp, iterable: Value) -> bool:
    """``[g.detach() for g in grads]``: as many as there are gradients."""
    whole = len(node.generators) == 1 and not node.generators[0].ifs
    return whole and (iterable.kind == GRADIENTS or are_gradients(getattr(node.generators[0].iter, "id", "")))


def _share(frame: Frame, node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp) -> Variation | None:
    """``[f for i, f in enumerate(files) if i % world == rank]``: why ranks have different numbers of elements."""
    for source, test in ((generator.iter, test) for generator in node.generators for test in generator.ifs):
        sides = (test.left, *test.comparators) if isinstance(test, ast.Compare) else ()
        number = next((s.right for s in sides if isinstance(s, ast.BinOp) and isinstance(s.op, ast.Mod)), None)
        over = iterated(source) if _called(source) == "enumerate" else source
        if number is None or (over is not None and dealt_evenly(frame, over, number)):
            continue
        if any(evaluate(frame, side).by_rank for side in sides):
            return own_share(frame, node)
    return None


def element_of(frame: Frame, iterable: Value, node: ast.expr, target: ast.expr | None = None) -> Value:
    """What a loop variable is: an element of the iterable."""
    if isinstance(iterable.reference, ref.ListOf):
        return unknown((ELEMENT, frame.key(node)), iterable.reference.of)
    if isinstance(node, (ast.List, ast.Tuple)) and iterable.items is not None and len(iterable.items) == 1:
        return iterable.items[0]  # ``for times in [0]``: the loop has one round
    element = _element(frame, iterable, node, target)
    if element.varies is None or not isinstance(iterable.reference, ref.Generator):
        return element
    # ``yield batch, False`` .. ``yield batch, True``: a flag that ranks which go round together see alike
    literal, yields = iterable.reference.literal, iterable.reference.yields
    if not any(literal) and not any(yields):
        return element
    items = []
    for index in range(max(len(literal), len(yields))):
        key = ("yielded", index, frame.key(node))
        own = unknown(key) if index < len(literal) and literal[index] else divergent(key, element.varies)
        items.append(yields[index] if index < len(yields) and yields[index] is not None else own)
    return dataclasses.replace(element, items=tuple(items))


def _element(frame: Frame, iterable: Value, node: ast.expr, target: ast.expr | None = None) -> Value:
    while (over := iterated(node)) is not None and _called(node).rpartition(".")[2] in _HANDING_ON:
        node = over
    path = frame.text(node)
    if over is not None and isinstance(node, ast.Call):
        parts = target.elts if isinstance(target, ast.Tuple) else [None] * (len(node.args) + 1)
        if _called(node) == "enumerate":
            return pair(frame, node, element_of(frame, _numbered(iterable), over, parts[-1]))
        if _called(node) == "zip" and len(parts) >= len(node.args):
            return _zipped(frame, node, parts)
    if isinstance(iterable.reference, ref.Enumerated):
        return pair(frame, node, iterable.reference.element)
    if (part := element_of_parts(iterable)) is not None:
        method = getattr(node.func, "attr", "") if isinstance(node, ast.Call) else ""
        return (
            part
            if method != "items"
            else dataclasses.replace(unknown((ELEMENT, frame.key(node))), items=(unknown(frame.key(node, "key")), part))
        )
    if of_batches(iterable.varies) and iterable.open and _is_field(node):
        return divergent((FIELD, frame.key(node)), iterable.varies)
    if isinstance(target, ast.Name) and _NO_BATCH.search(target.id.lower()) and not iterable.by_rank:
        return unknown((ELEMENT, frame.key(node)), held_in(iterable.items or ()))
    if isinstance(node, ast.Call) and dotted(node.func) == "range" and (len(node.args) == 1 or iterable.varies is None):
        # ranks that go round together count alike
        return dataclasses.replace(unknown((INDEX, frame.key(node))), missing=NEVER)
    if (entry := _entry(frame, node)) is not None:
        return entry
    if iterable.varies is not None and iterable.open:
        return _element_of_own(frame, iterable, node, target)
    if is_loader(iterable, path) or (_is_unresolved(iterable) and feeds_training(frame, node)):
        origin = Label(frame.span(node), "each rank iterates over its own batches here")
        varies = Variation.of_data("batches", origin, Confidence.MEDIUM)
        return divergent((BATCH, frame.key(node)), varies)
    whole = is_undivided(iterable)
    of = held_in(iterable.items or ()) or parameter_group(frame, node)
    return unknown((ELEMENT, frame.key(node)), of, agreed=whole or iterable.agreed)


def _is_unresolved(value: Value) -> bool:
    """Is nothing known of what it is, or of the attribute of an object that it was read from?"""
    of = value.reference
    return of is None or (isinstance(of, ref.Method) and not of.of)


def _element_of_own(frame: Frame, iterable: Value, node: ast.expr, target: ast.expr | None) -> Value:
    """An element of what each rank has for itself. Its keys, and the names of parts, are the same on all ranks."""
    method = _method_in(node)
    if method == "keys":
        return unknown((ELEMENT, frame.key(node)))
    assert iterable.varies is not None
    # Of a list that is another one on some ranks, as long as theirs for all that is known: so is what it holds, unless
    # that goes through a data set of its own.
    alike = iterable.even and iterable.by_rank and not iterable.varies.aspect
    alike = alike and not is_loader_name(last_part(target))
    element = divergent((ELEMENT, frame.key(node)), iterable.varies, even=alike)
    named = method in _NAMED or method == "items"
    return dataclasses.replace(element, items=(unknown(frame.key(node, "name")), element)) if named else element


def _is_field(node: ast.expr) -> bool:
    """``batch["dataset"]``: one entry for each sample. A loop over ``batch`` or its items goes through its keys."""
    return isinstance(node, ast.Subscript) and isinstance(getattr(node.slice, "value", None), str)


def _entry(frame: Frame, node: ast.expr) -> Value | None:
    """``for name, value in parts.items()``: what a dictionary of this function holds, where that is tensors that have
    a shape of their own on each rank."""
    method = node.func if isinstance(node, ast.Call) and not node.args else None
    if not isinstance(method, ast.Attribute) or method.attr not in ("items", "values"):
        return None
    of = container(frame, method.value)
    entries = (of.entries or {}).values() if of is not None else ()
    held = next((value for value in entries if kind_of(value)), None)
    if held is None and (objects := held_in(entries)) is not None:
        held = unknown((ELEMENT, frame.key(node)), objects)
    if held is None or method.attr == "values":
        return held
    return dataclasses.replace(unknown((ELEMENT, frame.key(node))), items=(unknown(frame.key(node, "key")), held))


def _called(node: ast.expr) -> str:
    return dotted(node.func) if isinstance(node, ast.Call) else ""


def pair(frame: Frame, node: ast.AST, element: Value) -> Value:
    """What ``enumerate()`` hands out: a number, the same on all ranks in one round, and an element."""
    items = (dataclasses.replace(unknown((INDEX, frame.key(node))), missing=NEVER), element)
    return dataclasses.replace(unknown((ELEMENT, frame.key(node))), items=items)


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
    return dataclasses.replace(unknown((ELEMENT, frame.key(node))), items=items)


def rounds_of(frame: Frame, iterable: Value, node: ast.expr, target: ast.AST | None = None) -> Condition | None:
    """How often a loop over the iterable repeats, where ranks may differ in it."""
    text, iterable = frame.text(node), _numbered(iterable)
    if is_set(iterable):
        here = Label(frame.span(node), "a set: its order differs between processes")
        origin = iterable.reference.filled or here
        description = "the order of a set, which differs between processes"
        varies = Variation("order", description, origin=origin, call_depth=iterable.reference.handed)
        return Condition((("order", frame.key(node)),) * worlds.COUNT, text, varies, open=True)
    own = own_length(frame, iterable, node, target) or own_pieces(frame, node)
    if own is not None:
        return Condition((("rounds", frame.key(node)),) * worlds.COUNT, text, own, open=True)
    if iterable.varies is None or iterable.even or iterable.items is not None or is_filled(iterable):
        return None
    if iterable.varies.cause == "rank" and (dealt_alike(frame, node) or gives_rest(frame, node)):
        return None
    if iterable.varies.cause == "data" and _goes_deeper(frame, target):
        return None  # lists within lists: what they hold differs between ranks, how they are built does not
    counted = iterable.kind == GROWN or (isinstance(node, ast.Call) and dotted(node.func) == "range")
    if not counted and (iterable.varies.cause == "random" or iterable.varies.local_only):
        return None  # random numbers and missing data decide what a list holds, not for how many there is room
    if of_batches(iterable.varies) and not counted and isinstance(iterable.reference, (type(None), ref.Method)):
        return None  # as many as the batch holds
    if _method_in(node) in OF_DICTIONARY and not counted:
        return None  # values differ between ranks, the keys hardly ever
    if not iterable.open and all(isinstance(component, Symbol) for component in iterable.components):
        return None  # something else on each rank, which may well be as long
    varies = iterable.varies
    if counted and of_batches(varies) and _is_count_from_sampler(frame, node):
        return None
    truths = tuple(("rounds", component) for component in iterable.components)
    if counted and of_batches(varies):
        aspect: Aspect = "size" if may_be_one_for_all(frame.linker.project, iterable) else "count"
        varies = dataclasses.replace(varies, description=ASPECTS[aspect], aspect=aspect)
    return Condition(truths, text, varies, open=True)


def streamed(*values: Value) -> ref.Instance | None:
    """The first of these that is a loader whose batches end with this rank's own data."""
    found = (value.reference for value in values)
    return next((each for each in found if isinstance(each, ref.Instance) and each.streams), None)


def own_rounds(
    frame: Frame, iterable: Value, node: ast.expr, target: ast.AST | None = None, *, ends: bool = False
) -> Variation | None:
    """Why what hands out one element at a time, ``next(source)``, ends on each rank for itself, if it does."""
    own = own_length(frame, iterable, node, target, ends=ends)
    rounds = rounds_of(frame, iterable, node, target) if own is None else None
    if own is not None or rounds is None or rounds.varies is None:
        return own
    return rounds.varies if rounds.varies.cause != "order" else None


def counts_steps(frame: Frame, loop: ast.While) -> bool:
    """Is a loop left after a number of steps, which the rounds of a loop within count? However often a rank starts the
    inner one again, it makes as many: ``while step < steps: for batch in loader: train(batch); step += 1``."""
    counted = {last_part(n.target) for n in _within(loop) if isinstance(n, ast.AugAssign) and isinstance(n.op, ast.Add)}
    tests = _exits(loop) if isinstance(loop.test, ast.Constant) else [loop.test]
    tested = {last_part(part) for test in tests for each in _asked(frame, test) for part in walk(each)}
    return not counted.isdisjoint(tested)


def _exits(loop: ast.While) -> list[ast.expr]:
    """By which tests an endless loop is left: from a loop within at once, or behind that, also by a flag that it has
    set: ``if step >= steps: done = True; break`` within, and ``if done: break`` behind it."""
    within = [n for n in _within(loop) if isinstance(n, ast.If)]
    tests = [n.test for n in within if isinstance(n.body[-1], ast.Return)]
    for exit_ in (n for n in loop.body if isinstance(n, ast.If) and isinstance(n.body[-1], (ast.Break, ast.Return))):
        tests.append(exit_.test)
        tests += [n.test for n in within if any(_sets(part, dotted(exit_.test)) for part in n.body)]
    return tests


def _sets(statement: ast.stmt, flag: str) -> bool:
    """Is it ``flag = True``?"""
    value = statement.value if isinstance(statement, ast.Assign) else None
    on = isinstance(value, ast.Constant) and value.value is True
    return on and isinstance(statement, ast.Assign) and flag in map(dotted, statement.targets)


def _within(loop: ast.While) -> Iterator[ast.AST]:
    """What is in the loops within a loop."""
    for statement in loop.body:
        if isinstance(statement, (ast.For, ast.AsyncFor, ast.While)):
            yield from inside(statement)


def _asked(frame: Frame, test: ast.expr) -> Iterator[ast.expr]:
    """A test, and what the functions of the project return that it calls."""
    yield test
    for call in calls_below(test):
        function = evaluate(frame, call.func).reference
        if isinstance(function, ref.FunctionRef):
            yield from (n.value for n in inside(function.node) if isinstance(n, ast.Return) and n.value is not None)


def _goes_deeper(frame: Frame, target: ast.AST | None) -> bool:
    """Does the function call itself for the elements, as one does that goes through a nested structure?"""
    if not isinstance(frame.function, FunctionNode) or target is None:
        return False
    elements = names_in(target)
    return any(elements & names_in(argument) for argument in _given_again(frame.function))


@kept_by_node(4096)
def _given_again(function: FunctionNode) -> tuple[ast.expr, ...]:
    """The first arguments of a function's calls of itself."""
    calls = (n for n in inside(function) if isinstance(n, ast.Call) and n.args)
    return tuple(call.args[0] for call in calls if last_part(call.func) == function.name)


def _method_in(node: ast.expr) -> str:
    """The method whose results a loop goes through, also in another order: ``sorted(x.items())``."""
    while isinstance(node, ast.Call) and getattr(node.func, "id", "") in _REORDERING and node.args:
        node = node.args[0]
    return getattr(node.func, "attr", "") if isinstance(node, ast.Call) else ""


def _is_count_from_sampler(frame: Frame, node: ast.expr) -> bool:
    """``range(batch["pieces"])``: a number that the sampler stores with the samples, so that all ranks finish at the
    same time; it does not depend on the samples."""
    bounds = node.args if isinstance(node, ast.Call) and dotted(node.func) == "range" else []
    picked = [assigned_once(frame, bound) for bound in bounds if not isinstance(bound, ast.Constant)]
    fields = (each.slice for each in picked if isinstance(each, ast.Subscript))
    return bool(picked) and sum(isinstance(getattr(field, "value", None), str) for field in fields) == len(picked)


def times_of(iterable: Value) -> int:
    """How often a loop over the iterable repeats, where the same number is written for all ranks; else 0."""
    made = made_of_range(iterable) if iterable.varies is None else ()
    bounds = [bound[0].value for bound in made if isinstance(bound, tuple) and isinstance(bound[0], Known)]
    if len(bounds) < len(made) or not all(type(bound) is int for bound in bounds):
        return 0
    if not 0 < len(bounds) < 3:  # a third one may be 0
        return 0
    first, end = (0, *bounds)[-2:]  # `len` takes no more than an index of C may be
    return int(max(end - first, 0))


def order_of(iterable: Value, rounds: Condition | None) -> Variation | None:
    """Why a loop meets its elements in an order of each process's own: over a set, or a generator that has one."""
    generator = iterable.reference if isinstance(iterable.reference, ref.Generator) else None
    loops = [e.rounds for e in generator.call.effects if isinstance(e, Rounds)] if generator is not None else [rounds]
    varies = next((loop.varies for loop in loops if loop and loop.varies and loop.varies.cause == "order"), None)
    if varies is None or generator is None:
        return varies
    return dataclasses.replace(varies, call_depth=generator.call.handed)


HANDLERS: Handlers = {
    **dict.fromkeys((ast.ListComp, ast.SetComp, ast.GeneratorExp, ast.DictComp), _comprehension),
    ast.YieldFrom: _yield_from,
}
