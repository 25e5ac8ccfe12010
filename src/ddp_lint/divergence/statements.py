"""Statements: how they change what is known, and the tree of their effects."""

from __future__ import annotations

import ast
import dataclasses
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from ddp_lint.divergence import references as ref
from ddp_lint.divergence import worlds
from ddp_lint.divergence.calls_by_name import of_arms
from ddp_lint.divergence.closures import visible
from ddp_lint.divergence.collectives import agree, backward_of_result
from ddp_lint.divergence.conditions import test_of
from ddp_lint.divergence.definitions import begins_empty, calls_in, made_anew, stores_of
from ddp_lint.divergence.effects import (
    Attempt,
    Branch,
    Effect,
    EventStep,
    Inline,
    Leave,
    Rounds,
    doubtful,
    doubtful_rounds,
    flat,
    matters,
    of_held,
    of_shards,
    shadowed,
)
from ddp_lint.divergence.event_graph import APART
from ddp_lint.divergence.expressions import (
    SET_OPERATORS,
    as_long_as,
    dotted,
    evaluate,
    is_set,
    rank_from_node,
    unordered,
    with_agreed,
)
from ddp_lint.divergence.failures import may_fail, names_of, refuses_own, whether_raised
from ddp_lint.divergence.frame import JOB_SIZE, LEFT_JOB, Frame, Returned, none, reference_of
from ddp_lint.divergence.hooks import is_followed_by_backward
from ddp_lint.divergence.iteration import counts_steps, element_of, order_of, rounds_of, times_of
from ddp_lint.divergence.iterators import ends_by_class, iterator_by_class
from ddp_lint.divergence.lengths import agrees_to_stop, as_dispatched, padded_to
from ddp_lint.divergence.losses import of_operation
from ddp_lint.divergence.object_lists import is_counted, with_objects
from ddp_lint.divergence.resolve import iterated, known
from ddp_lint.divergence.selections import OF_DICTIONARY, sums_up_batches
from ddp_lint.divergence.stop_iteration import own_refusal
from ddp_lint.divergence.targets import bind
from ddp_lint.divergence.unset import as_asked, is_bound_within
from ddp_lint.divergence.values import (
    ARITHMETIC,
    GROWN,
    TOTAL,
    Condition,
    Known,
    Symbol,
    Test,
    Value,
    Variation,
    combine,
    constant,
    divergent,
    equality,
    made_of_range,
    merge,
    needs_shards,
    negated,
    symbols_in,
    unknown,
    world_size,
)
from ddp_lint.knowledge import table
from ddp_lint.project.parts import PART_OF, children, kept_by_node
from ddp_lint.source.imports import last_part
from ddp_lint.source.names import Names
from ddp_lint.source.syntax import FunctionNode, calls_below, first_name, names_in, walk
from ddp_lint.tensors.contexts import body_without_gradient

#: Loops within loops are evaluated twice down to this depth, once below it.
_TWICE = 2
#: Calls that never return, as `NoReturn` says of functions of the project; those of them that end the process.
_NO_RETURN: Final = frozenset(table("failures")["no_return"])
_EXITING: Final = frozenset({"exit", "quit", "_exit", "abort"})


def run(frame: Frame, body: Sequence[ast.stmt]) -> None:
    for statement in body:
        if not frame.alive:
            return
        frame.summaries.spend()
        handler = _HANDLERS.get(type(statement))
        if handler is not None:
            handler(frame, statement)


def _arm(frame: Frame, body: Sequence[ast.stmt], test: Test | None) -> tuple[list[Effect], Names[Value], bool]:
    """Run a block apart: its effects, the names after it, whether its end is reached."""
    if not body:  # mostly an `else` that is not there: the names of thousands need not be copied
        return [], frame.env, frame.alive
    saved = frame.env, frame.effects, frame.alive, frame.staying
    frame.env, frame.effects, frame.staying = Names(frame.env), [], list(frame.staying)
    if test is not None:
        frame.path.append(test)
    run(frame, body)
    if test is not None:
        frame.path.pop()
    result = frame.effects, frame.env, frame.alive
    frame.env, frame.effects, frame.alive, frame.staying = saved
    return result


def _join(frame: Frame, test: Test, yes: Names[Value], no: Names[Value], node: ast.AST) -> Names[Value]:
    """The names after both arms."""
    after = no.gone_on_from(frame.env)
    after.update(_joined(frame, test, yes, no, node))
    return after


def _joined(frame: Frame, test: Test, yes: Names[Value], no: Names[Value], node: ast.AST) -> dict[str, Value]:
    """What the arms have set, as it is after both; a name that only one arm binds keeps that value."""
    merged = {}
    for name in yes.differing(no):
        value, other = yes.get(name), no.get(name)
        if value is other:
            continue
        if value is None or other is None:
            one, held = (test, value) if other is None else (negated(test), other)
            assert held is not None
            merged[name] = _set_by_some(frame, one, name, held, node)
            continue
        if _is_handed_on(value, other) or _is_handed_on(other, value):
            merged[name] = other if _is_handed_on(value, other) else value
            continue
        joined = merge(test, value, other, ("merge", frame.key(node), name))
        merged[name] = of_arms(joined, frame.env.get(name), value, other, test)
    return merged


def _is_handed_on(value: Value, other: Value) -> bool:
    """Is the one a generator that yields once for each element of the other: ``if logger is not None: steps =
    logger.counted(steps)``?"""
    of = value.reference
    return isinstance(of, ref.Generator) and of.hands_on is not None and of.hands_on.key == other.key


def _set_by_some(frame: Frame, test: Test, name: str, value: Value, node: ast.AST) -> Value:
    """A name that only one arm binds keeps that value; an attribute had one before, which other ranks still see, and
    so had a variable of the environment."""
    if name == JOB_SIZE and not _says(negated(test), unknown(("environment", "WORLD_SIZE")), value):
        return unknown(("set", frame.key(node), name))
    varies = test.varying()
    if name == LEFT_JOB and varies is not None:
        return unknown(("set", frame.key(node), name))
    if varies is not None and varies.by_rank_or_place and is_bound_within(frame, name, node):
        frame.unset[name] = value, test
    if "." not in name or varies is None or varies.local_only or not value.same:
        return value
    if value.reference is not None and not _is_counter(frame, value):
        return value
    key = ("set", frame.key(node), name)
    if value.constant is None:  # it may be what another rank has sent
        return divergent(key, varies)
    frame.apart.add(name)
    return merge(test, value, _flag_before(frame, name, value) or unknown(("before", key)), key)


def _is_counter(frame: Frame, value: Value) -> bool:
    """Is it an attribute that a method of the class counts, ``self.epoch += 1``, and no method, as its name alone may
    say: ``self.best_epoch = self.epoch``?"""
    by_name = isinstance(value.reference, ref.Method) and value.reference.guessed and frame.owner is not None
    counted = _counted_in(frame.owner.node) if by_name and frame.owner is not None else frozenset()
    return any(getattr(part, "key", None) == ("attribute", path) for part in value.components for path in counted)


@kept_by_node(2048)
def _counted_in(owner: ast.AST) -> frozenset[str]:
    """The attributes of its object that a class adds a number to."""
    counts = (n for n in walk(owner) if isinstance(n, ast.AugAssign) and isinstance(n.value, ast.Constant))
    return frozenset(path for n in counts if (path := dotted(n.target)).startswith("self."))


def _flag_before(frame: Frame, name: str, value: Value) -> Value | None:
    """What a constructor sets a flag to that is set to the opposite here: ``self.stop = False``."""
    path, _, attribute = name.rpartition(".")
    of = reference_of(frame.env.get(path))
    is_flag = value.constant in (Known(True), Known(False))
    if not is_flag or not isinstance(of, ref.Instance) or not isinstance(of.of, ref.ClassRef):
        return None
    for owner in frame.linker.linearised(of.of)[0]:
        for method, stored in stores_of(owner.node, attribute):
            start = getattr(stored, "value", None) if method.name == "__init__" else None
            if isinstance(start, bool):
                return constant(start) if Known(start) != value.constant else None
    return None


def attributes_left(frame: Frame) -> dict[str, Value]:
    """The attributes that the function has set by its end, on ranks that have returned before as they were there."""
    left = {path: value for path, value in frame.env.items() if "." in path}
    for test, _, attributes in reversed(frame.returned):
        if test is not None and test.varying() is not None:
            left = _join(frame, test, Names(attributes), Names(left), frame.function or frame.facts.tree)
    return left


def _says(test: Test, what: Value, value: Value) -> bool:
    """Does the test hold only where the one equals the other: ``what == value``?"""
    compared = equality(test.atom.truths[0]) if test.atom is not None else None
    return compared is not None and compared == (what.key, value.constant)


def _if(frame: Frame, node: ast.If) -> None:
    test = as_asked(frame, node.test, test_of(frame, node.test))
    settled = test.settled
    if settled is not None:
        run(frame, node.body if settled else node.orelse)
        return
    yes, yes_env, yes_alive = _narrowed_arm(frame, node, test)
    no, no_env, no_alive = _arm(frame, node.orelse, negated(test))
    own = test.varying()
    by_place = own is not None and own.cause == "membership"  # of the ranks in groups of which each rank has one
    if yes and (frame.depth or by_place) and _makes_once(frame, node.test, node.body):
        yes = doubtful(yes)
    if yes and needs_shards(test):
        yes = of_shards(yes)
    if (yes or no) and own is not None:
        yes, no = _as_trained(yes, node.body, node.orelse), _as_trained(no, node.orelse, node.body)
    if yes or no:
        frame.effects.append(Branch(test, yes, no, frame.span(node)))
    if own is not None and no_alive and yes and isinstance(yes[-1], Leave) and yes[-1].what == "continue":
        frame.staying.append(negated(test))
    _fill_up(node.test, yes_env, no_env)
    _continue_after(frame, test, (yes_env, yes_alive), (no_env, no_alive), node)


def _fill_up(test: ast.expr, filled: Names[Value], other: Names[Value]) -> None:
    """``if len(mine) < n: mine.extend(...)``: where nothing is lacking, there are as many as behind that."""
    shorter = isinstance(test, ast.Compare) and isinstance(test.ops[0], ast.Lt)
    counted = test.left if isinstance(test, ast.Compare) else None
    if not shorter or not isinstance(counted, ast.Call) or dotted(counted.func) != "len" or not counted.args:
        return
    path = dotted(counted.args[0])
    before, after = other.get(path), filled.get(path)
    if before is not None and after is not None and before is not after and after.even:
        other[path] = dataclasses.replace(before, even=True)


#: What replicas of a model do together.
_OF_REPLICAS = frozenset({"forward", "backward", "step"})
_OPTIMIZER = re.compile(r"optim", re.IGNORECASE)


def _as_trained(effects: list[Effect], body: Sequence[ast.stmt], other: Sequence[ast.stmt]) -> list[Effect]:
    """What the ranks of one arm do with a model. They have no replicas elsewhere where the arm wraps it over a group of
    its own; and the ranks of the other arm take a step, too, where they do so with an optimizer that is not known."""
    if not effects:
        return effects
    if any(keyword.arg == "process_group" for call in calls_in(body) for keyword in call.keywords):
        return doubtful(effects, _OF_REPLICAS)
    stepping = (call.func for call in calls_in(other) if isinstance(call.func, ast.Attribute))
    if any(func.attr == "step" and _OPTIMIZER.search(dotted(func.value)) for func in stepping):
        return doubtful(effects, frozenset({"step"}))
    return effects


def _makes_once(frame: Frame, condition: ast.expr, body: Sequence[ast.stmt]) -> bool:
    """``if self.x is None: self.x = ...``, a global, or ``if key not in CACHE: CACHE[key] = ...``: made by the first
    caller, which may have been all ranks."""
    if isinstance(condition, ast.BoolOp) and isinstance(condition.op, ast.And):
        return any(_makes_once(frame, part, body) for part in condition.values)
    test = condition.operand if isinstance(condition, ast.UnaryOp) else condition
    if isinstance(test, ast.Compare) and isinstance(test.ops[0], (ast.In, ast.NotIn)):
        return _fills(frame, test.comparators[0], body)
    if isinstance(test, ast.Compare) and isinstance(test.left, ast.Call) and dotted(test.left.func) == "len":
        return any(_fills(frame, cache, body) for cache in test.left.args)
    path = dotted(test.left) if isinstance(test, ast.Compare) else dotted(test)
    if isinstance(test, ast.Call) and len(test.args) == 2 and dotted(test.func) == "hasattr":
        path = f"{dotted(test.args[0])}.{getattr(test.args[1], 'value', '')}"
    kept = "." in path or path in frame.global_names
    return kept and any(path in _set_in(statement) for statement in body)


@kept_by_node(8192)
def _set_in(statement: ast.stmt) -> frozenset[str]:
    """What a statement or one in it assigns to, by ``=`` alone. What a handler gives up shows nothing that is made:
    ``except OSError: args.cached = False``."""
    handled = (h for t in (statement, *children(statement)) if isinstance(t, ast.Try) for h in t.handlers)
    given_up = {id(part) for handler in handled for part in children(handler)}
    stores = (child for child in (statement, *children(statement)) if isinstance(child, ast.Assign))
    return frozenset(dotted(target) for store in stores if id(store) not in given_up for target in store.targets)


def _fills(frame: Frame, cache: ast.expr, body: Sequence[ast.AST]) -> bool:
    """Does the body, or a function of the file that it calls, store into a collection that outlives the call?"""
    path = dotted(cache)
    if not path or ("." not in path and path in frame.env):
        return False
    parts = [part for statement in body for part in (statement, *children(statement))]
    called = {dotted(part.func) for part in parts if isinstance(part, ast.Call)}
    made = [node for node in frame.facts.tree.body if isinstance(node, ast.FunctionDef) and node.name in called]
    return any(
        isinstance(target, ast.Subscript) and dotted(target.value) == path
        for part in (*parts, *(part for function in made for part in children(function)))
        if isinstance(part, ast.Assign)
        for target in part.targets
    )


def _narrowed_arm(frame: Frame, node: ast.If, test: Test) -> tuple[list[Effect], Names[Value], bool]:
    """The arm in which ``isinstance(x, DTensor)`` has shown what `x` is."""
    if not isinstance(node.test, (ast.BoolOp, ast.Call)):
        return _arm(frame, node.body, test)
    narrowed = dict(_narrowed_classes(frame, node.test))
    before = {name: frame.env[name] for name in narrowed if name in frame.env}
    frame.env.update(narrowed)
    effects, env, alive = _arm(frame, node.body, test)
    for scope in (frame.env, env):
        for name in [name for name in narrowed if scope.get(name) is narrowed[name]]:
            if name in before:
                scope[name] = before[name]
            else:
                del scope[name]
    return effects, env, alive


def _narrowed_classes(frame: Frame, test: ast.expr) -> Iterator[tuple[str, Value]]:
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
        for part in test.values:
            yield from _narrowed_classes(frame, part)
    elif frame.depth and frame.closure is None:
        return  # a helper that copes with sharded tensors says nothing of the one that it gets
    elif isinstance(test, ast.Call) and getattr(test.func, "id", "") == "isinstance" and len(test.args) == 2:
        path, of = dotted(test.args[0]), reference_of(evaluate(frame, test.args[1]))
        value = evaluate(frame, test.args[0])
        unknown_class = value.reference is None or (isinstance(value.reference, ref.Method) and not value.reference.of)
        if path and unknown_class and isinstance(of, ref.External) and of.name in known().types:
            yield path, value.with_reference(ref.Instance(of.name))


def _continue_after(
    frame: Frame, test: Test, yes: tuple[Names[Value], bool], no: tuple[Names[Value], bool], node: ast.AST
) -> None:
    if yes[1] and no[1]:
        if no[0] is frame.env:  # without an `else`, the names of thousands need not be copied
            frame.env.update(_joined(frame, test, yes[0], no[0], node))
        else:
            frame.env = _join(frame, test, yes[0], no[0], node)
    elif yes[1] or no[1]:
        frame.env = yes[0] if yes[1] else no[0]
    else:
        frame.alive = False


@kept_by_node(8192)
def _assigned(node: ast.AST) -> dict[str, bool]:
    """Names that the statement binds, and of what it binds a part; whether that is more than a part of an element."""
    found: dict[str, bool] = {}
    for child in children(node):
        targets: list[ast.expr] = []
        if isinstance(child, ast.Assign):
            targets = child.targets
        elif isinstance(child, (ast.AugAssign, ast.AnnAssign, ast.For, ast.AsyncFor, ast.NamedExpr)):
            targets = [child.target]
        for target in targets:
            for path, itself in _changed_by(target):
                found[path] = itself or found.get(path, False)
    return found


def _changed_by(target: ast.expr) -> Iterator[tuple[str, bool]]:
    """``totals[name][0] += 1`` changes what `totals` holds, which has the same keys as before: False."""
    if isinstance(target, (ast.Tuple, ast.List)):
        for part in target.elts:
            yield from _changed_by(part)
        return
    node, itself = target.value if isinstance(target, ast.Starred) else target, True
    while True:
        if path := dotted(node):
            yield path, itself
        if not isinstance(node, (ast.Attribute, ast.Subscript)):
            return
        itself = itself and (node is target or not isinstance(node, ast.Subscript))
        node = node.value


def _for(frame: Frame, node: ast.For | ast.AsyncFor) -> None:
    iterable = as_dispatched(frame, evaluate(frame, node.iter), node.iter)
    if _is_never_entered(frame, node.iter):
        orelse, frame.env, frame.alive = _arm(frame, node.orelse, None)
        frame.effects += orelse
        return
    element = element_of(frame, iterable, node.iter, node.target)
    iterator = iterator_by_class(frame, iterable, node.iter) or iterable
    rounds = rounds_of(frame, iterator, node.iter, node.target)
    source = reference_of(iterator)

    def once() -> tuple[list[Effect], Names[Value], bool]:
        ends = ends_by_class(frame, iterator, node.iter)
        # Set again in each round.
        bind(frame, node.target, element, node.iter, counted=True)
        inside, env, alive = _arm(frame, node.body, _round_test(frame, node))
        return [*ends, *inside], env, alive

    outer, frame.order = frame.order, order_of(iterable, rounds) or frame.order
    around, frame.uneven = frame.uneven, _uneven_by(rounds, iterator) or frame.uneven
    body, env = _rounds(frame, node, once)
    frame.order, frame.uneven = outer, around
    is_range = isinstance(node.iter, ast.Call) and dotted(node.iter.func) == "range"
    by_rank = rounds.varies if rounds is not None and is_range else None
    body = _each_in_turn(frame, node, iterable, body)
    if rounds is not None and rounds.varies is not None and rounds.varies.cause == "length" and agrees_to_stop(body):
        rounds = None
    if rounds is not None and (
        not is_counted(iterable, body)
        or _within_common_rounds(body)
        or _leaves_at_once(body)
        or _in_groups_of_rounds(frame, node, body)
    ):
        rounds = None
    if matters(body) and _goes_through_held(frame, node.iter):
        body = of_held(body)
    frame.env = env
    _count_by_rank(frame, node, by_rank)
    if (of := _agreed_by_key(frame, node)) is not None:
        agree(frame, of)
    orelse, after, alive = _arm(frame, node.orelse, None)
    if isinstance(source, ref.Generator) and matters(source.call.effects):
        frame.effects.append(dataclasses.replace(source.call, call=frame.span(node.iter), yields=body))
    elif body or orelse:
        frame.effects.append(Rounds(body, orelse, rounds, frame.span(node), times=0 if rounds else times_of(iterable)))
    frame.env = after
    if not alive and not _breaks(node):
        frame.alive = False


def _goes_through_held(frame: Frame, iterable: ast.expr) -> bool:
    """``for name in self.totals:``, of a collection that is empty when the object has been made."""
    while isinstance(iterable, ast.Call) and (over := iterated(iterable)) is not None:
        iterable = over
    if isinstance(iterable, ast.Call) and last_part(iterable.func) in OF_DICTIONARY:
        iterable = getattr(iterable.func, "value", iterable)
    if frame.owner is None or not isinstance(frame.function, FunctionNode) or not isinstance(iterable, ast.Attribute):
        return False
    if dotted(iterable.value) != first_name(frame.function):
        return False
    return any(begins_empty(owner.node, iterable.attr) for owner in frame.linker.linearised(frame.owner)[0])


def _is_never_entered(frame: Frame, iterable: ast.expr) -> bool:
    """Whether a loop has no round: ``range(left)`` with 0, as the function is called."""
    if not isinstance(iterable, ast.Call) or dotted(iterable.func) != "range" or len(iterable.args) != 1:
        return False
    given = iterable.args[0]
    if any(isinstance(part, ast.Call) for part in walk(given)):
        return False  # it was called already
    count = evaluate(frame, given).constant
    return count is not None and isinstance(count.value, int) and count.value <= 0


def _agreed_by_key(frame: Frame, node: ast.For | ast.AsyncFor) -> ast.expr | None:
    """The dictionary of ``for name in losses: all_reduce(losses[name])``: the ranks have agreed on each of its values.
    None where a round may leave one as it was, or sets one that is not made of the one before."""
    of = node.iter
    if isinstance(of, ast.Call) and dotted(of.func) in ("sorted", "list") and of.args:
        of = of.args[0]
    if isinstance(of, ast.Call) and isinstance(of.func, ast.Attribute) and of.func.attr == "keys":
        of = of.func.value
    path = dotted(of)
    if not path or not isinstance(node.target, ast.Name) or f"{path}[{node.target.id}]" not in frame.agreed:
        return None
    parts = [child for part in node.body for child in (part, *children(part))]
    if any(isinstance(part, (ast.Break, ast.Continue)) for part in parts):
        return None
    stores = (
        part for part in parts if isinstance(part, ast.Assign)
        and any(isinstance(target, ast.Subscript) and dotted(target.value) == path for target in part.targets)
    )  # fmt: skip
    return of if all(names_in(of) <= names_in(store.value) for store in stores) else None


def _each_in_turn(frame: Frame, node: ast.For | ast.AsyncFor, iterable: Value, body: list[Effect]) -> list[Effect]:
    """``for peer in range(world_size): if peer == rank: continue``: each rank has one round of its own, so that all of
    them come equally often to what is in the other rounds, or in that one alone."""
    first = next((effect for effect in body if matters([effect]) or isinstance(effect, Branch)), None)
    if not isinstance(first, Branch) or not _asks_whose_turn(node, iterable, first):
        return body
    only = first.yes[0] if len(first.yes) == 1 and not first.no else None
    skips = isinstance(only, Leave) and only.what == "continue"
    one_arm = not (matters(first.yes) and matters(first.no))
    alone = one_arm and not any(matters([effect]) for effect in body if effect is not first)
    if not (skips or alone):
        return body
    turn = Test("atom", atom=Condition((("turn", frame.key(node)),) * worlds.COUNT, "the own turn"))
    return [dataclasses.replace(effect, test=turn) if effect is first else effect for effect in body]


def _asks_whose_turn(node: ast.For | ast.AsyncFor, iterable: Value, branch: Branch) -> bool:
    """``peer == rank``, where the loop goes through all ranks of the group in which it is that"""
    varies = branch.test.varying()
    asked = next((n.test for n in node.body if isinstance(n, ast.If) and n.lineno == branch.span.line), None)
    if varies is None or not varies.by_rank_or_place or not isinstance(asked, ast.Compare):
        return False
    group = varies.scope.removeprefix("group:") if varies.scope.startswith("group:") else ""
    equal = len(asked.ops) == 1 and isinstance(asked.ops[0], (ast.Eq, ast.NotEq))
    sides = [dotted(side) for side in (asked.left, *asked.comparators)]
    return equal and dotted(node.target) in sides and made_of_range(iterable) == (world_size(group).key,)


def _uneven_by(rounds: Condition | None, iterator: Value) -> Variation | None:
    """Why a rank goes round a loop as often as its own data say, if it does."""
    varies = rounds.varies if rounds is not None else None
    own = varies is not None and (varies.cause == "length" or varies.aspect == "share" or iterator.kind == GROWN)
    return varies if own else None


def _leaves_at_once(body: list[Effect]) -> bool:
    """Does the first round leave the loop: ``for batch in batches: ...; break``? As often as any rank repeats."""
    return bool(body) and isinstance(body[-1], Leave) and body[-1].what in ("break", "return")


def _in_groups_of_rounds(frame: Frame, node: ast.For | ast.AsyncFor, body: list[Effect]) -> bool:
    """Has each round a group of its own: ``for edge in self.edges: dist.broadcast(x, edge.src, group=edge.group)``?
    Those that are in it go round with it."""
    names = {name.id for name in walk(node.target) if isinstance(name, ast.Name)}
    calls = [n for n in children(node) if isinstance(n, ast.Call)]
    given = ((call, dotted(each.value)) for call in calls for each in call.keywords if each.arg == "group")
    own = {frame.span(call) for call, group in given if group.partition(".")[0] in names}
    return bool(own) and all(step.event.span in own for step in flat(body) if isinstance(step, EventStep))


def _within_common_rounds(body: list[Effect]) -> bool:
    """Are all events of a round under a test that its number is below one that all ranks share, as many as each
    of them repeats at least (``if i < fewest and i % 20 == 0: barrier()``)?"""
    for effect in body:
        if isinstance(effect, Branch) and not matters(effect.no):
            if not any(_bounds_round(atom) for atom in effect.test.atoms()) and not _within_common_rounds(effect.yes):
                return False
        elif matters([effect]):
            return False
    return True


def _bounds_round(condition: Condition) -> bool:
    symbol = condition.truths[0][1] if isinstance(condition.truths[0], tuple) else None
    key = getattr(symbol, "key", None)
    compared = key[0] if isinstance(key, tuple) and key else None
    if condition.varies is not None or not isinstance(compared, tuple) or compared[:2] not in _BOUNDS:
        return False
    return any(getattr(leaf, "key", ("",))[0] == "index" for leaf in symbols_in(compared[2]))


_BOUNDS = (("compare", "Lt"), ("compare", "Gt"))


def _round_test(frame: Frame, node: ast.AST) -> Test:
    """ "There is a round": what happens in a loop may not happen at all."""
    return Test("atom", atom=Condition((("round", frame.key(node)),) * worlds.COUNT, "the loop runs"))


def _rounds(
    frame: Frame,
    node: ast.For | ast.AsyncFor | ast.While,
    once: Callable[[], tuple[list[Effect], Names[Value], bool]],
) -> tuple[list[Effect], Names[Value]]:
    """Effects of one round in general, and the names after any number of rounds."""
    frame.loops += 1
    test = _round_test(frame, node)
    entry = frame.env
    if frame.loops <= _TWICE:
        before, rebound = Names(entry), frame.summaries.variables.rebound()
        returned = len(frame.returned)
        body, end, _ = once()
        frame.env = _counted_on(frame, node, _join(frame, test, end, entry, node), entry)
        touched = {*end.differing(entry), *entry.differing(before), *_counters(node)}
        changed = [name for name in touched if frame.env.get(name) is not before.get(name)]
        if frame.summaries.variables.rebound() == rebound and _is_settled(node, changed):
            frame.loops -= 1
            _set_again(frame.env, before, entry)
            frame.env.update(_joined(frame, test, end, frame.env, node))
            return body, frame.env
        del frame.returned[returned:]
    else:
        assigned = _assigned(node)
        frame.env = Names(entry)
        for name in assigned.keys() & entry.keys():
            kept = not assigned[name] and not entry[name].items and not entry[name].entries
            if entry[name].varies is None and not kept:
                frame.env[name] = unknown(("loop", frame.key(node), name), entry[name].reference)
    body, end, _ = once()
    frame.loops -= 1
    frame.env.update(_joined(frame, test, end, frame.env, node))
    return body, frame.env


def _is_settled(node: ast.For | ast.AsyncFor | ast.While, changed: Sequence[str]) -> bool:
    """Does the next round find what the first one found, which has changed these names? Then it does the same."""
    anew = made_anew(node) if changed else ()
    return all(name in anew or _ROOT.split(name, 1)[0] in anew for name in changed)


_ROOT = re.compile(r"[.\[]")


def _set_again(env: Names[Value], before: Names[Value], entry: Names[Value]) -> None:
    """What the head of a loop sets for each round, such as its target, is set again."""
    for name in entry.differing(before):
        if name not in entry:
            env.pop(name, None)
        elif entry[name] is not before.get(name):
            env[name] = entry[name]


def _counted_on(frame: Frame, node: ast.stmt, after: Names[Value], entry: Names[Value]) -> Names[Value]:
    """Numbers that a round changes on some ranks only: unknown there after any number of rounds."""
    for name in _counters(node):
        before, value = entry.get(name), after.get(name)
        if before is None or value is None or value.varies is None or value.open:
            continue
        components = tuple(
            now if now == then else Symbol(("counted", frame.key(node), name))
            for now, then in zip(value.components, before.components, strict=True)
        )
        after[name] = dataclasses.replace(value, components=components, test=None)
    return after


def _count_by_rank(frame: Frame, node: ast.stmt, varies: Variation | None) -> None:
    """What the rounds of a loop add up is another number on each rank where the rank decides how many there are."""
    if varies is None or not varies.by_rank_or_place:
        return
    for name in _counters(node):
        value = frame.env.get(name) if name.isidentifier() else None
        if value is not None and value.varies is None and value.reference is None:
            frame.env[name] = divergent(("counted", frame.key(node), name), varies)


@kept_by_node(8192)
def _counters(node: ast.stmt) -> frozenset[str]:
    """Names[Value] that the loop adds to."""
    return frozenset(dotted(child.target) for child in children(node) if isinstance(child, ast.AugAssign))


@kept_by_node(8192)
def _breaks(loop: ast.For | ast.AsyncFor | ast.While) -> bool:
    return any(isinstance(child, ast.Break) for part in loop.body for child in (part, *children(part)))


def _while(frame: Frame, node: ast.While) -> None:
    told, varies = False, None

    def once() -> tuple[list[Effect], Names[Value], bool]:
        nonlocal told, varies
        outer, frame.effects = frame.effects, []
        test = as_asked(frame, node.test, test_of(frame, node.test))
        varies = test.varying()
        before, frame.effects = frame.effects, outer
        settled = test.settled
        inside, env, alive = _arm(frame, node.body, test)
        asked = (env.get(name) for name in names_in(node.test))
        told = matters(inside) and any(value is not None and value.agreed for value in asked)
        if settled is True:
            return [*before, *inside], env, alive
        return [*before, Branch(test, inside, [Leave("break")], frame.span(node))], env, alive

    body, env = _rounds(frame, node, once)
    frame.env = env
    _count_by_rank(frame, node, varies)
    orelse, after, _ = _arm(frame, node.orelse, None)
    endless = isinstance(node.test, ast.Constant) and bool(node.test.value)
    if matters(body) or orelse or any(not _is_break(effect) for effect in body):
        by_steps = counts_steps(frame, node)
        serves = endless and agrees_to_stop(body)
        whole = Rounds(body, [], None, frame.span(node), endless, by_steps, serves=serves, answers=told or serves)
        frame.effects.append(whole)
        frame.effects.extend(orelse)
    frame.env = after
    if endless and not _breaks(node):
        frame.alive = False


def _is_break(effect: Effect) -> bool:
    return isinstance(effect, Branch) and not effect.yes


def _try(frame: Frame, node: ast.Try) -> None:
    prefix, body, body_env, alive = _body_of_try(frame, node)
    frame.effects.extend(prefix)
    handlers: list[tuple[Condition, list[Effect]]] = []
    caught: list[frozenset[str]] = []
    entry = frame.env
    env, any_alive = body_env, alive
    for handler in node.handlers if _may_raise(node) else ():
        condition = own_refusal(frame, handler, body) or refuses_own(frame, node, handler)
        condition = condition or whether_raised(frame, node, handler)
        test = Test("atom", atom=condition)
        frame.env = _join(frame, _round_test(frame, node), body_env, entry, node)
        if handler.name:
            frame.env[handler.name] = unknown(("error", frame.key(handler)))
        effects, after, handler_alive = _arm(frame, handler.body, test)
        if _tells_parent(handler):
            effects, handler_alive = [Leave("raise")], False
        handlers.append((condition, effects))
        caught.append(names_of(handler))
        if handler_alive:
            env = _join_flags(frame, condition, after, env, handler) if any_alive else after
            any_alive = True
    frame.env, frame.alive = env, any_alive
    final, after, final_alive = _arm(frame, node.finalbody, None)
    frame.env = after
    frame.alive = any_alive and final_alive
    if body or final or any(effects for _, effects in handlers):
        frame.effects.append(Attempt(body, handlers, final, frame.span(node), caught))


def _tells_parent(handler: ast.ExceptHandler) -> bool:
    """Does it put the traceback into a queue, for the process that has started this one and ends the others then?"""
    calls = list(calls_in(handler.body))
    put = (call for call in calls if getattr(call.func, "attr", "") in ("put", "put_nowait"))
    return any(last_part(inner.func) == "format_exc" for call in put for inner in _calls_of(call))


def _calls_of(call: ast.Call) -> Iterator[ast.Call]:
    return calls_below(call)


@kept_by_node(8192)
def _may_raise(attempt: ast.Try) -> bool:
    """Is there anything in its body that can raise at all?"""
    return any(isinstance(node, _RAISING) for part in attempt.body for node in (part, *children(part)))


#: What can raise; reading a name or a constant does not.
_RAISING = (
    ast.Call, ast.Raise, ast.Subscript, ast.BinOp, ast.Import, ast.ImportFrom, ast.Assert, ast.For, ast.AsyncFor,
    ast.With, ast.AsyncWith, ast.Await, ast.Yield, ast.YieldFrom, ast.Delete, ast.Attribute, ast.Compare,
    ast.comprehension,
)  # fmt: skip


def _join_flags(
    frame: Frame, condition: Condition, raised: Names[Value], normal: Names[Value], node: ast.AST
) -> Names[Value]:
    """After a `try`: flags that a handler sets show whether this rank failed; other values are taken to be alike."""
    failed = Test("atom", atom=condition)
    alike = Test("atom", atom=Condition(condition.truths, condition.text))
    merged = _join(frame, alike, raised, normal, node)
    for name, value in raised.items():
        other = normal.get(name)
        if other is not None and other is not value and "." not in name and _is_flag(value, other):
            merged[name] = merge(failed, value, other, ("merge", frame.key(node), name))
    return merged


def _is_flag(value: Value, other: Value) -> bool:
    return other.constant is not None and (value.constant is not None or other.constant.value is None)


def _body_of_try(frame: Frame, node: ast.Try) -> tuple[list[Effect], list[Effect], Names[Value], bool]:
    """The effects before the first statement that may fail on one rank alone, those after it, names, end reached."""
    saved = frame.env, frame.effects, frame.alive
    frame.env, frame.effects = Names(frame.env), []
    boundary: int | None = None
    for statement in [*node.body, *node.orelse]:
        if not frame.alive:
            break
        start = len(frame.effects)
        fails = boundary is None and may_fail(frame, statement)
        run(frame, [statement])
        if fails and not _fails_together(statement, frame.effects[start:]):
            boundary = start
    effects, env, alive = frame.effects, frame.env, frame.alive
    frame.env, frame.effects, frame.alive = saved
    boundary = len(effects) if boundary is None else boundary
    if node.finalbody and any(isinstance(effect, Leave) for effect in effects[:boundary]):
        boundary = 0
    prefix = effects[:boundary]
    if not all(isinstance(effect, (EventStep, Inline)) for effect in prefix):
        return [], effects, env, alive
    return prefix, effects[boundary:], env, alive


def _fails_together(statement: ast.stmt, effects: list[Effect]) -> bool:
    """Is it a collective and nothing else, ``dcp.save(state, checkpoint_id=path)``? What fails in it on one rank, all
    get to know. Not so in what several ranks do with a model, which may lack memory."""
    call = statement.value if isinstance(statement, ast.Expr) else None
    if not isinstance(call, ast.Call) or len(effects) != 1 or any(below is not call for below in calls_below(call)):
        return False
    step = effects[0]
    return isinstance(step, EventStep) and not step.event.when and step.event.kind not in APART


def _with(frame: Frame, node: ast.With | ast.AsyncWith) -> None:
    before = frame.quiet
    frame.quiet = before or (isinstance(node, ast.With) and body_without_gradient(node, frame.facts))
    _with_items(frame, node, 0)
    frame.quiet = before


def _with_items(frame: Frame, node: ast.With | ast.AsyncWith, index: int) -> None:
    """One manager around the rest: its entry, the others and the body, its exit."""
    if index == len(node.items):
        run(frame, node.body)
        return
    item = node.items[index]
    start = len(frame.effects)
    manager = evaluate(frame, item.context_expr)
    if item.optional_vars is not None:
        bind(frame, item.optional_vars, _entered(frame, manager, item.context_expr), item.context_expr)
    reference = reference_of(manager)
    call = item.context_expr
    deferred: list[Effect] = []
    if isinstance(call, ast.Call) and _is_context_event(call, frame.effects[start:]):
        deferred = [frame.effects.pop()]
    joins = any(isinstance(effect, EventStep) and effect.event.op in _JOINS for effect in deferred)
    outer, frame.effects = frame.effects, []
    with frame.summaries.variables.switched(reference.switched if isinstance(reference, ref.Generator) else {}):
        _with_items(frame, node, index + 1)
    body, frame.effects = shadowed(frame.effects) if joins else frame.effects, outer
    if isinstance(reference, ref.Generator):
        frame.effects.append(dataclasses.replace(reference.call, yields=body, manager=True))
    elif isinstance(reference, ref.Instance) and isinstance(reference.of, ref.ClassRef):
        _class_manager(frame, manager, reference, body, node)
    elif isinstance(call, ast.Call) and _suppresses(frame, call) and body:
        handler = _handler_of(call)
        condition = whether_raised(frame, ast.Try(node.body, [], [], []), handler)
        frame.effects.append(Attempt(body, [(condition, [])], [], frame.span(node), [names_of(handler)]))
        frame.alive = True
    else:
        replaced = _replaced(frame, call) if isinstance(call, ast.Call) else ""
        frame.effects.extend(doubtful(body, op=replaced) if replaced else body)
    frame.effects.extend(deferred)


def _entered(frame: Frame, manager: Value, node: ast.expr) -> Value:
    return (
        manager
        if isinstance(manager.reference, (ref.Instance, ref.Enumerated, ref.Counter)) or manager.open
        else unknown(("entered", frame.key(node)))
    )


#: Managers of loops that end when all ranks have no more inputs.
_JOINS = frozenset({"join", "Join"})


def _is_context_event(call: ast.Call, effects: list[Effect]) -> bool:
    """A framework's context manager has its event where it ends."""
    if not effects or not isinstance(effects[-1], EventStep):
        return False
    name = last_part(call.func)
    return effects[-1].event.op == name or name.endswith("_first")


def _replaced(frame: Frame, call: ast.Call) -> str:
    """The last name of what a mock replaces: ``patch("package.module.load")``, ``patch.object(dist, "barrier")``."""
    resolved = frame.facts.imports.resolve(dotted(call.func)) if dotted(call.func) else None
    place = _MOCKS.get(resolved or "")
    target = call.args[place] if place is not None and len(call.args) > place else None
    return target.value.rpartition(".")[2] if isinstance(target, ast.Constant) and isinstance(target.value, str) else ""


#: Which argument says what is replaced.
_MOCKS = {"unittest.mock.patch": 0, "unittest.mock.patch.object": 1}


def _suppresses(frame: Frame, call: ast.Call) -> bool:
    name = dotted(call.func)
    resolved = frame.facts.imports.resolve(name) if name else None
    return resolved == "contextlib.suppress"


def _handler_of(call: ast.Call) -> ast.ExceptHandler:
    """``suppress(A, B)`` as what it amounts to: ``except (A, B): pass``."""
    names = ast.Tuple(elts=list(call.args), ctx=ast.Load())
    handler = ast.ExceptHandler(type=names, name=None, body=[ast.copy_location(ast.Pass(), call)])
    return ast.copy_location(handler, call)


def _class_manager(
    frame: Frame, manager: Value, instance: ref.Instance, body: list[Effect], node: ast.With | ast.AsyncWith
) -> None:
    """`__enter__`, the body, `__exit__` however the body ends."""
    assert isinstance(instance.of, ref.ClassRef)
    parts: list[list[Effect]] = []
    for name in ("__enter__", "__exit__"):
        outer, frame.effects = frame.effects, []
        method = frame.linker.method(instance.of, name)
        if method is not None:
            bound = dataclasses.replace(method, receiver=manager, of=instance.of)
            frame.summaries.enter_unseen(frame, bound, node.items[0].context_expr)
        parts.append(frame.effects)
        frame.effects = outer
    if any(test.varying() is not None for test in frame.path):
        parts[1] = doubtful_rounds(parts[1])  # over what was put into the manager, if anything
    frame.effects.extend(parts[0])
    if parts[1]:
        frame.effects.append(Attempt(body, [], parts[1], frame.span(node)))
    else:
        frame.effects.extend(body)


def _return(frame: Frame, node: ast.Return) -> None:
    value = evaluate(frame, node.value) if node.value is not None else none()
    _record(frame, value)
    if not frame.depth and is_followed_by_backward(frame.linker, frame.owner, frame.function):
        backward_of_result(frame, value, node)
    _leave(frame, "return")


def _record(frame: Frame, value: Value) -> None:
    if not frame.path:
        test = None
    elif len(frame.path) == 1:
        test = frame.path[0]
    else:
        test = Test("and", tuple(frame.path))
    by_rank = test is not None and test.varying() is not None
    set_by_now = {path: held for path, held in frame.env.items() if "." in path} if by_rank else {}
    frame.returned.append(Returned(test, value, set_by_now))


def _leave(frame: Frame, what: str, raised: str = "") -> None:
    frame.effects.append(Leave(what, raised))
    frame.alive = False


def _raise(frame: Frame, node: ast.Raise) -> None:
    evaluate(frame, node.exc)
    class_ = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
    _leave(frame, "raise", dotted(class_) if class_ is not None else "")


def _expression(frame: Frame, node: ast.Expr) -> None:
    value = evaluate(frame, node.value)
    if isinstance(node.value, ast.Call) and _ends_process(frame, node.value):
        if _succeeds(node.value):
            _leave(frame, "exit")
        else:
            _leave(frame, "raise", "SystemExit" if _name_of(node.value) in _EXITING else "")
    if isinstance(reference_of(value), ref.Generator) and isinstance(node.value, ast.Await):
        frame.effects.append(reference_of(value).call)  # type: ignore[union-attr]


def _ends_process(frame: Frame, node: ast.Call) -> bool:
    name = dotted(node.func)
    resolved = (frame.facts.imports.resolve(name) if name else None) or name
    return resolved in _NO_RETURN or (name.startswith("self.") and f"unittest.TestCase.{name[5:]}" in _NO_RETURN)


def _name_of(node: ast.Call) -> str:
    return dotted(node.func).rpartition(".")[2]


def _succeeds(node: ast.Call) -> bool:
    """``sys.exit()`` or ``exit(0)``: a launcher ends the other ranks only when one fails."""
    if _name_of(node) not in _EXITING:
        return False
    if not node.args:
        return _name_of(node) != "abort"
    return isinstance(node.args[0], ast.Constant) and node.args[0].value in (0, None)


def _assign(frame: Frame, node: ast.Assign) -> None:
    value = evaluate(frame, node.value)
    for target in node.targets:
        bind(frame, target, value, node.value)


def _annotated(frame: Frame, node: ast.AnnAssign) -> None:
    if node.value is not None:
        bind(frame, node.target, evaluate(frame, node.value), node.value)


def _augmented(frame: Frame, node: ast.AugAssign) -> None:
    left, right = evaluate(frame, node.target), evaluate(frame, node.value)
    function = ARITHMETIC.get(type(node.op))
    if isinstance(node.op, SET_OPERATORS) and (is_set(left) or is_set(right)):
        bind(frame, node.target, unordered(frame, node), node)
        return
    if function is None:
        return
    total = isinstance(node.op, ast.Add) and sums_up_batches(frame, node, right)
    key = (TOTAL if total else "augmented", type(node.op).__name__, left.key, right.key)
    ranked = rank_from_node(node.op, (node.target, left), (node.value, right))
    value = ranked or combine(function, (left, right), key)
    if isinstance(node.op, ast.Add):
        value = as_long_as(frame, value, padded_to(frame, node.target, node.value))
        value = with_objects(frame, node, left, right.items or ()) or value
    bind(frame, node.target, of_operation(node, left, right, with_agreed(value, left, right)), node)


def _delete(frame: Frame, node: ast.Delete) -> None:
    for target in node.targets:
        frame.env.pop(dotted(target), None)


def _assert(frame: Frame, node: ast.Assert) -> None:
    """Where a rank alone may come by (``assert rank == 0``), the others end here; other tests hold on all ranks."""
    test = evaluate(frame, node.test).truth(frame.text(node.test))
    varies = test.varying()
    if isinstance(node.test, ast.Constant) and not node.test.value:
        _leave(frame, "raise", "AssertionError")
    elif varies is not None and varies.cause == "rank":
        frame.effects.append(Branch(test, [], [Leave("raise", "AssertionError")], frame.span(node)))


def _function(frame: Frame, node: FunctionNode) -> None:
    closure = visible(frame, node)
    function = ref.FunctionRef(node, frame.facts, frame.owner, frame.receiver, closure=closure)
    value = unknown(("function", frame.key(node)), function)
    closure[node.name] = value
    frame.env[node.name] = value


def _global(frame: Frame, node: ast.Global) -> None:
    frame.global_names = frame.global_names | frozenset(node.names)
    for name in node.names:
        frame.env.pop(name, None)


def _match(frame: Frame, node: ast.Match) -> None:
    """Cases as a chain of choices on one subject."""
    subject = evaluate(frame, node.subject)
    _cases(frame, node, subject, 0)


def _cases(frame: Frame, node: ast.Match, subject: Value, index: int) -> None:
    if index == len(node.cases):
        return
    case = node.cases[index]
    test = _case_test(frame, subject, case)
    if test is None:
        run(frame, case.body)
        return
    yes, yes_env, yes_alive = _arm(frame, case.body, test)
    saved = frame.env, frame.effects, frame.alive
    frame.env, frame.effects = Names(frame.env), []
    frame.path.append(negated(test))
    _cases(frame, node, subject, index + 1)
    frame.path.pop()
    no, no_env, no_alive = frame.effects, frame.env, frame.alive
    frame.env, frame.effects, frame.alive = saved
    if yes or no:
        frame.effects.append(Branch(test, yes, no, frame.span(case.pattern)))
    _continue_after(frame, test, (yes_env, yes_alive), (no_env, no_alive), case.pattern)


def _case_test(frame: Frame, subject: Value, case: ast.match_case) -> Test | None:
    """None for a case that always matches."""
    pattern = case.pattern
    if isinstance(pattern, ast.MatchAs) and pattern.pattern is None and case.guard is None:
        return None
    test = _pattern_test(frame, subject, pattern)
    return Test("and", (test, test_of(frame, case.guard))) if case.guard is not None else test


def _pattern_test(frame: Frame, subject: Value, pattern: ast.pattern) -> Test:
    if isinstance(pattern, ast.MatchOr):
        return Test("or", tuple(_pattern_test(frame, subject, part) for part in pattern.patterns))
    if isinstance(pattern, ast.MatchValue):
        value = combine(lambda a, b: a == b, (subject, evaluate(frame, pattern.value)), ("case", frame.key(pattern)))
    elif isinstance(pattern, ast.MatchSingleton):
        value = combine(lambda a: a is pattern.value, (subject,), ("case", frame.key(pattern)))
    else:
        value = combine(_no_answer, (subject,), ("case", frame.key(pattern)))
    return value.truth(f"case {ast.unparse(pattern)}")


def _no_answer(*_: object) -> object:
    raise TypeError


_HANDLERS: dict[type[ast.stmt], Callable[[Frame, Any], None]] = {
    ast.If: _if, ast.For: _for, ast.AsyncFor: _for, ast.While: _while, ast.Try: _try, ast.With: _with,
    ast.AsyncWith: _with, ast.Return: _return, ast.Raise: _raise, ast.Expr: _expression, ast.Assign: _assign,
    ast.AnnAssign: _annotated, ast.AugAssign: _augmented, ast.Delete: _delete, ast.Assert: _assert,
    ast.FunctionDef: _function, ast.AsyncFunctionDef: _function, ast.Global: _global, ast.Match: _match,
    ast.Break: lambda frame, node: _leave(frame, "break"),
    ast.Continue: lambda frame, node: _leave(frame, "continue"),
}  # fmt: skip
if hasattr(ast, "TryStar"):  # Python 3.11
    _HANDLERS[ast.TryStar] = _try
_HANDLERS |= {part: _HANDLERS[kind] for kind, part in PART_OF.items()}  # type: ignore[index]
