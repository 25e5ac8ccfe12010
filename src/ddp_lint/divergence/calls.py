"""Calls: who is called, what that does with other ranks, and what comes back."""

from __future__ import annotations

import ast
import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from ddp_lint.divergence import references as ref
from ddp_lint.divergence import signals, worlds
from ddp_lint.divergence.arguments import Arguments
from ddp_lint.divergence.builtins_and_torch import BUILTINS, LIBRARY
from ddp_lint.divergence.calls_by_name import (
    agreed_within,
    by_name,
    change,
    distinctive,
    from_source,
    is_of_plain_model,
    is_wrapped,
    sized,
    ways,
)
from ddp_lint.divergence.collectives import (
    agree,
    communicate,
    group_among,
    group_of,
    happens,
    output_of_model,
    together,
)
from ddp_lint.divergence.definitions import stored_by, stores_of
from ddp_lint.divergence.draws import draws_its_own
from ddp_lint.divergence.effects import Branch, Rounds, doubtful, matters
from ddp_lint.divergence.expressions import (
    RETURNING_MODULE,
    arguments_of,
    consume,
    dotted,
    evaluate,
    held_in,
    passed_on,
    unordered,
)
from ddp_lint.divergence.frame import Frame, bound
from ddp_lint.divergence.groups import along, of_source
from ddp_lint.divergence.inheritance import Question
from ddp_lint.divergence.iteration import element_of, rounds_of, streamed
from ddp_lint.divergence.lengths import is_cut_to_multiple
from ddp_lint.divergence.losses import made_on_the_spot, written
from ddp_lint.divergence.other_objects import is_of_another_class
from ddp_lint.divergence.own_tensors import holds_own_tensors
from ddp_lint.divergence.project_names import spellings, wrapped
from ddp_lint.divergence.records import fields_of, record
from ddp_lint.divergence.resolve import known
from ddp_lint.divergence.selections import LISTED, PADDED, is_generated, keeps, with_kept_shape
from ddp_lint.divergence.shards import gather
from ddp_lint.divergence.targets import fill
from ddp_lint.divergence.values import (
    MADE,
    NEVER,
    PREPARED,
    Test,
    Value,
    Variation,
    divergent,
    is_new_container,
    merge,
    per_rank,
    unknown,
    world_size,
)
from ddp_lint.findings import Confidence, Label
from ddp_lint.knowledge import frameworks
from ddp_lint.knowledge.communication import Collective, Gate, Rank
from ddp_lint.knowledge.tensors import writes
from ddp_lint.project.framework_imports import COMMUNICATION
from ddp_lint.project.parts import children, kept_by_node
from ddp_lint.project.project_names import Own
from ddp_lint.source.syntax import FunctionNode, defaults, first_name, positional

#: Methods that make a list longer.
_SET_METHODS = frozenset({"union", "difference", "intersection", "symmetric_difference", "copy"})
#: Methods by which an object is given one more number, to average it.
_METERING: Final = frozenset({"update", "add", "push"})
#: Arguments that say how a call shows what it does: ``tzip(xs, ys, disable=rank != 0)``.
_OF_DISPLAY: Final = frozenset({"disable", "verbose", "quiet", "silent", "desc", "leave", "position", "show_progress"})
#: Methods that a computed name is tried for.
_ALTERNATIVES = 40


def call(frame: Frame, node: ast.Call) -> Value:
    function = evaluate(frame, node.func)
    if isinstance(node.func, ast.Name) and function.reference is None:
        handler = _BUILTINS.get(node.func.id)
        if handler is not None:
            return handler(frame, node, arguments_of(frame, node))
    arguments = arguments_of(frame, node)
    result = made_on_the_spot(node, function, arguments, invoke(frame, function, arguments, node))
    result = _of_tensor(node, function, result)
    if isinstance(node.func, ast.Attribute) and writes(node.func.attr):
        written(frame, node.func.value)
    if any(map(is_new_container, arguments.values)):  # ``flatten(stats, into)``
        for index, argument in arguments.nodes.items():
            value = arguments.positional[index] if isinstance(index, int) else arguments.keywords[index]
            if is_new_container(value):
                fill(frame, dotted(argument), argument, passed_on(frame, node, arguments.values).varies)
    place = _filled(node.func.attr) if isinstance(node.func, ast.Attribute) else None
    if place is not None and place < len(node.args):  # ``comm.Allreduce(MPI.IN_PLACE, loss)``
        agree(frame, node.args[place])
    return result


@functools.cache
def _filled(name: str) -> int | None:
    """Which argument of a method, whosever it is, holds one value on all ranks after the call."""
    return next(
        (place for place, what in enumerate(("first", "second")) if known().is_uniform(what, f"*.{name}")), None
    )


def invoke(frame: Frame, function: Value, arguments: Arguments, node: ast.Call) -> Value:
    """What a call does and gives; what the configuration says of the callee counts before what its body shows."""
    own = frame.summaries.own
    if own is None:
        return _invoke(frame, function, arguments, node)
    spelled = spellings(frame, node.func, function.reference)
    name = own.collectives.find(*spelled)
    outer, frame.effects = frame.effects, [] if name else frame.effects
    value = _invoke(frame, function, arguments, node)
    frame.effects = outer
    if name:
        together(frame, name, arguments, node)
    return _returned(frame, own, value, arguments, node, spelled)


def _returned(
    frame: Frame, own: Own, value: Value, arguments: Arguments, node: ast.Call, spelled: tuple[str, ...]
) -> Value:
    """What comes back, with what the configuration says of it: the rank, a wrapped model, an object of its class."""
    if value.varies is None and value.items is None and own.ranks.find(*spelled):
        return frame.configured_rank(node, *spelled, group=group_among(frame, arguments).key) or value
    if own.wrappers.find(*spelled):
        return wrapped(frame, own, value, node, spelled)
    if value.reference is None and own.is_class(spelled[-1]):
        return unknown(frame.key(node), ref.Instance(spelled[-1]))
    return value


def _invoke(frame: Frame, function: Value, arguments: Arguments, node: ast.Call) -> Value:
    reference = function.reference
    if isinstance(reference, ref.FunctionRef):
        return frame.summaries.enter(frame, reference, arguments, node)
    if isinstance(reference, ref.ClassRef):
        return _construct(frame, reference, arguments, node)
    if isinstance(reference, ref.Instance):
        if isinstance(reference.of, ref.ClassRef) and _is_own_class(frame, node):
            return _construct(frame, reference.of, arguments, node)
        if reference.unit:
            gather(frame, reference, node)
        return _call_object(frame, function, reference, arguments, node)
    if isinstance(reference, ref.External):
        return _external(frame, reference.name, arguments, node)
    if isinstance(reference, ref.Method):
        return _method(frame, function, reference, arguments, node)
    if isinstance(reference, ref.Dynamic):
        return _dynamic(frame, reference, node)
    if isinstance(reference, ref.Partial):
        return _partial(frame, reference, arguments, node)
    if isinstance(reference, ref.OneOf):
        return _one_of(frame, reference, arguments, node)
    return _unresolved(frame, function, arguments, node)


def _is_own_class(frame: Frame, node: ast.Call) -> bool:
    """``cls(...)`` in a class method, whose receiver stands for the class and for its objects."""
    method = frame.function
    if not isinstance(node.func, ast.Name) or not isinstance(method, FunctionNode) or frame.owner is None:
        return False
    return ref.is_decorated(method, "classmethod") and first_name(method) == node.func.id


def _construct(frame: Frame, of: ref.ClassRef, arguments: Arguments, node: ast.Call) -> Value:
    if _is_alone(arguments):
        return unknown(frame.key(node), ref.ON_ONE_DEVICE)
    wrapper = known().collectives.get(frame.linker.wrapper(of))
    if wrapper is not None:
        return communicate(frame, wrapper, arguments, node)
    constructor = frame.linker.method(of, "__init__")
    given = _given(frame, of, constructor, arguments) if constructor is not None else ()
    instance = unknown((MADE, of.node.name, frame.text(node)), ref.Instance(of, given=given))
    if constructor is not None and not frame.values_alone:
        bound = dataclasses.replace(constructor, receiver=instance, of=of)
        frame.summaries.enter(frame, bound, arguments, node)
    return instance if constructor is not None else record(instance, fields_of(frame.linker, of), arguments)


_Flags = dict[str, bool | ref.GroupRef | None]


def _given(
    frame: Frame, of: ref.ClassRef, constructor: ref.FunctionRef, arguments: Arguments
) -> tuple[tuple[str, bool | ref.GroupRef | None], ...]:
    """The attributes that hold a flag or a group which this very object is made with: ``Lock(path, sync=False)``, or
    a flag that it is made without."""
    if arguments.starred:
        return ()
    given = arguments.given_to(tuple(a.arg for a in positional(constructor.node))[1:])
    kept: _Flags = {}
    for parameter, default in defaults(constructor.node.args):
        value = given.get(parameter.arg)
        if value is not None and value.constant is not None and type(value.constant.value) in (bool, type(None)):
            kept[parameter.arg] = value.constant.value
        elif value is not None and isinstance(value.reference, ref.GroupRef) and value.missing == NEVER:
            kept[parameter.arg] = value.reference
        elif value is None and (flag := _flag(default)) is not None:
            kept[parameter.arg] = flag
    return tuple(_stored(frame, of, constructor, kept)) if kept else ()


def _stored(
    frame: Frame, of: ref.ClassRef, constructor: ref.FunctionRef, kept: _Flags
) -> Iterator[tuple[str, bool | ref.GroupRef | None]]:
    """The attributes in which a constructor, or the one that it passes on to, keeps what it is given."""
    owner = constructor.owner
    if owner is None or not kept:
        return
    for attribute in stored_by(constructor.node):
        (method, stored), *others = stores_of(owner.node, attribute) or ((None, None),)
        name = _stored_name(stored, kept)
        once = not others and method is constructor.node and name in kept
        if once and not _set_elsewhere(frame, of, owner, attribute):
            yield attribute, kept[name]
    base = frame.linker.method(of, "__init__", owner)
    call = _call_of_base(constructor.node) if base is not None else None
    if base is not None and call is not None:
        yield from _stored(frame, of, base, _handed_on(call, base.node.args, kept))


@kept_by_node(4096)
def _call_of_base(constructor: ast.AST) -> ast.Call | None:
    """The call by which a constructor passes on to that of a base."""
    return next((n for n in children(constructor) if isinstance(n, ast.Call) and _hands_on(n)), None)


def _hands_on(node: ast.Call) -> bool:
    """``super().__init__(config, sync)``"""
    if not isinstance(node.func, ast.Attribute) or node.func.attr != "__init__":
        return False
    above = node.func.value
    plain = not any(isinstance(a, ast.Starred) for a in node.args) and all(k.arg for k in node.keywords)
    return plain and isinstance(above, ast.Call) and getattr(above.func, "id", "") == "super"


def _handed_on(call: ast.Call, signature: ast.arguments, kept: _Flags) -> _Flags:
    """What the parameters of the constructor that is passed on to get, as far as it is flags and groups."""
    taken = [parameter.arg for parameter, _ in defaults(signature)][1:]
    given: dict[str | None, ast.expr] = dict(zip(taken, call.args, strict=False))
    given.update({keyword.arg: keyword.value for keyword in call.keywords})
    found: _Flags = {}
    for parameter, default in defaults(signature):
        value = given.get(parameter.arg)
        if isinstance(value, ast.Name) and value.id in kept:
            found[parameter.arg] = kept[value.id]
        elif (flag := _flag(default if parameter.arg not in given else value)) is not None:
            found[parameter.arg] = flag
    return found


def _flag(node: ast.expr | None) -> bool | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, bool) else None


def _stored_name(stored: ast.AST | None, kept: Mapping[str, bool | ref.GroupRef | None]) -> str:
    """The parameter that is stored: by itself, or a group that may be replaced by the default."""
    if isinstance(stored, ast.Name):
        return stored.id
    parts = (stored.body, stored.orelse) if isinstance(stored, ast.IfExp) else getattr(stored, "values", ())
    named = [part.id for part in parts if isinstance(part, ast.Name) and isinstance(kept.get(part.id), ref.GroupRef)]
    return named[0] if len(named) == 1 else ""


def _set_elsewhere(frame: Frame, of: ref.ClassRef, owner: ref.ClassRef, attribute: str) -> bool:
    """Does another class of the object's set the attribute, too, or the function that makes it?"""
    classes = frame.linker.linearised(of)[0]
    if any(stores_of(class_.node, attribute) for class_ in classes if class_ != owner):
        return True
    return attribute in _set_from_outside(frame.function or frame.facts.tree)


@kept_by_node(4096)
def _set_from_outside(scope: ast.AST) -> frozenset[str]:
    """The attributes of other objects than its own that some code assigns: ``loader.divided = True``."""
    stores = (n for n in children(scope) if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Store))
    return frozenset(store.attr for store in stores if dotted(store.value) != "self")


def _call_object(frame: Frame, function: Value, instance: ref.Instance, arguments: Arguments, node: ast.Call) -> Value:
    """`obj(...)`: `__call__`, or `forward` of a module."""
    of = instance.of
    if isinstance(of, str):
        entry = known().method(of, "__call__") or known().method(of, "forward")
        if entry is not None:
            return communicate(frame, entry, arguments, node, guessed=instance.guessed)
        return passed_on(frame, node, [function, *arguments.values])
    method = frame.linker.method(of, "__call__") or (
        frame.linker.method(of, "forward") if frame.linker.is_module(of) else None
    )
    if method is not None:
        bound = dataclasses.replace(method, receiver=function, of=of)
        return frame.summaries.enter(frame, bound, arguments, node)
    return passed_on(frame, node, arguments.values)


def _dynamic(frame: Frame, dynamic: ref.Dynamic, node: ast.Call) -> Value:
    """Any one of the methods that the class itself defines is called, of those with the beginning of the name."""
    frame.linker.questions.note(Question(dynamic.of, "members"), dynamic.of)
    named = [name for name in frame.linker.members(dynamic.of) if name.startswith(dynamic.prefix)]
    for name in named[:_ALTERNATIVES]:
        method = frame.linker.method(dynamic.of, name)
        if method is None or name.startswith("__"):
            continue
        outer, frame.effects = frame.effects, []
        frame.summaries.enter(
            frame, dataclasses.replace(method, receiver=dynamic.receiver), Arguments(starred=True), node
        )
        inside, frame.effects = frame.effects, outer
        if matters(inside):
            test = unknown(("dynamic", name)).truth(f"the method is {name}")
            frame.effects.append(Branch(test, inside, [], frame.span(node)))
    return unknown(frame.key(node))


def _one_of(frame: Frame, callees: ref.OneOf, arguments: Arguments, node: ast.Call) -> Value:
    """Any one of several functions is called, the same on all ranks."""
    tests = callees.tests or tuple(
        unknown(("one of", frame.key(node), number)).truth("it is this one") for number in range(len(callees.values))
    )
    wrapped: list[tuple[Value, Test]] = []
    results: list[Value] = []
    alone = frame.values_alone
    for callee, test in zip(callees.values, tests, strict=True):
        # Of the classes in a table, all models of a library, only what they make objects of is needed.
        frame.values_alone = alone or (not callees.tests and isinstance(callee.reference, ref.ClassRef))
        outer, frame.effects = frame.effects, []
        results.append(invoke(frame, callee, arguments, node))
        inside, frame.effects = frame.effects, outer
        if matters(inside):
            frame.effects.append(Branch(test, inside, [], frame.span(node)))
        if is_wrapped(results[-1]):
            wrapped.append((results[-1], test))
    frame.values_alone = alone
    if len(wrapped) > 1:  # ``WRAPPERS[strategy](model)``
        return unknown(frame.key(node), ref.OneOf(*zip(*wrapped, strict=True)))
    if callees.tests and len(results) == 2:
        either = merge(tests[0], results[0], results[1], frame.key(node))
        if either.reference is not None:  # both give the same: ``(lambda x: tqdm(x)) if shown else (lambda x: x)``
            return either
    value = passed_on(frame, node, arguments.values)
    if callees.tests and all(ways(result, test) for result, test in zip(results, tests, strict=True)):
        return value.with_reference(ref.OneOf(tuple(results), tests))
    return value.with_reference(wrapped[0][0].reference if wrapped else held_in(results))


def _partial(frame: Frame, partial: ref.Partial, arguments: Arguments, node: ast.Call) -> Value:
    inner: Value = partial.function
    if isinstance(partial.arguments, tuple) and partial.arguments and isinstance(partial.arguments[0], Gate):
        return _gated(frame, partial.arguments[0], inner, arguments, node)
    merged = Arguments(
        (*partial.arguments, *arguments.positional),
        {**dict(partial.keywords), **arguments.keywords},
        {
            (key + len(partial.arguments) if isinstance(key, int) else key): value
            for key, value in arguments.nodes.items()
        },
        arguments.starred,
    )
    return invoke(frame, inner, merged, node)


def _gated(frame: Frame, gate: Gate, inner: Value, arguments: Arguments, node: ast.Call) -> Value:
    """Only some ranks run the function; all of them do what follows."""
    entry_value = _gate_value(frame, gate, node)
    outer, frame.effects = frame.effects, []
    result = invoke(frame, inner, arguments, node)
    inside, frame.effects = frame.effects, outer
    if inside:
        test = entry_value.truth(gate.name)
        frame.effects.append(Branch(test, inside, [], frame.span(node)))
    for name in gate.then:
        entry = known().collectives.get(name) or known().collectives.get(f"torch.distributed.{name}")
        if entry is not None:
            communicate(frame, entry, Arguments(), node)
    return result if not gate.then else unknown(frame.key(node))


def _gate_value(frame: Frame, gate: Gate, node: ast.AST) -> Value:
    label = Label(frame.span(node), f"`{gate.name.rpartition('.')[2]}` runs this on some ranks only")
    confidence = Confidence.MEDIUM if gate.name.startswith("*.") else Confidence.HIGH
    scope = "node" if "local" in gate.runs_on else "world"
    varies = Variation("rank", "the rank", scope, label, confidence)
    numbers = worlds.known(gate.runs_on)
    return per_rank(numbers, varies) if numbers is not None else divergent(("gate", gate.name), varies)


# ---- what the knowledge knows


def _external(frame: Frame, name: str, arguments: Arguments, node: ast.Call) -> Value:
    if name == signals.REGISTERING:
        signals.register(frame, arguments, node)
    special = _LIBRARY.get(name)
    if special is not None:
        value = special(frame, node, arguments)
        is_tensor = name.startswith("torch.") and value.constant is None and value.missing is None
        return dataclasses.replace(value, missing=NEVER) if is_tensor else value
    key = ("call", name, tuple(value.key for value in arguments.values))
    knows = known()
    if knows.is_uniform("call", name) or knows.is_uniform("call", "*." + name.rpartition(".")[2]):
        return _counted(frame, name, arguments) or unknown(key)
    rank = knows.rank("call", name) or knows.rank("call", "*." + name.rpartition(".")[2])
    if rank is not None:
        return _rank_in(frame, rank, arguments, node)
    entry = knows.collectives.get(name)
    if entry is not None:
        return communicate(frame, entry, arguments, node)
    gate = knows.gates.get(name)
    if gate is not None and gate.what == "call" and arguments.positional:
        return _gated(frame, gate, arguments.positional[0], Arguments(starred=True), node)
    if gate is not None and gate.what == "decorator" and arguments.positional:
        return unknown(key, ref.Partial(arguments.positional[0], (gate,), identity=id(node)))
    source = knows.source("call", name)
    if source is not None and (source.cause != "random" or draws_its_own(frame)):
        return from_source(frame, source, arguments.values, node)
    group_source = knows.group(name)
    if group_source is not None:
        return unknown(key, ref.GroupRef(of_source(group_source)))
    made = knows.type_of(name)
    if made:
        alone = _is_alone(arguments) or _is_silent(made, arguments) or _is_of_own_tensors(frame, made, node)
        return unknown(frame.key(node), ref.ON_ONE_DEVICE if alone else ref.Instance(made))
    head, _, last = name.rpartition(".")
    owner_entry = known().method(head, last) if head in knows.types else None
    if owner_entry is not None:
        return communicate(frame, owner_entry, arguments, node)
    by_name = frameworks.distinctive().get(last)
    if by_name is not None and _is_communication(head):
        return communicate(frame, knows.collectives[by_name[0]], arguments, node, confidence=Confidence.MEDIUM)
    return _unresolved(frame, unknown(("name", name)), arguments, node, foreign=name)


def _counted(frame: Frame, name: str, arguments: Arguments) -> Value | None:
    """The number of ranks, if the function of this name gives that: in the group that it is given, or in the world."""
    if name.rpartition(".")[2] != "get_world_size":
        return None
    return world_size(group_of(frame, *arguments.get("group", ("group",))).key)


def _is_alone(arguments: Arguments) -> bool:
    """``Trainer(devices=1)``: there is no other rank to communicate with, for all that is to be seen."""
    devices, nodes = arguments.keywords.get("devices"), arguments.keywords.get("num_nodes")
    return _has_own_group(arguments) or (_is_one(devices) and (nodes is None or _is_one(nodes)))


def _has_own_group(arguments: Arguments) -> bool:
    """``Fabric(strategy=DDPStrategy(process_group=group))``: it communicates among the members of a group. Who they are
    is not to be seen from here, so that it counts as silent."""
    strategy = arguments.keywords.get("strategy")
    return strategy is not None and strategy.reference == ref.ON_ONE_DEVICE


def _is_of_own_tensors(frame: Frame, made: str, node: ast.Call) -> bool:
    """``Adam([shape, pose])`` of tensors that the function makes: no step of it changes a model."""
    return made == "torch.optim.Optimizer" and holds_own_tensors(frame, node)


def _is_silent(made: str, arguments: Arguments) -> bool:
    """``Metric(sync_on_compute=False)``: an object that is settled not to communicate."""
    types = [known().types[of] for of in known().ancestors(made) if of in known().types]
    given = arguments.keywords
    return any(
        name in given and _is_as(given[name], unless) for type_ in types for name, unless in type_.silent_if.items()
    )


def _is_as(value: Value, setting: bool | str) -> bool:
    """Is it the value of a setting? ``"*"`` stands for all but None."""
    constant = value.constant
    if setting == "*":
        return constant is None or constant.value is not None
    return constant is not None and constant.value == setting


def _is_one(value: Value | None) -> bool:
    return value is not None and value.constant is not None and value.constant.value == 1


def _is_communication(module: str) -> bool:
    return COMMUNICATION.search(module) is not None


def _method(frame: Frame, function: Value, method: ref.Method, arguments: Arguments, node: ast.Call) -> Value:
    knows = known()
    if method.of:
        if method.name == "__init__" and method.of in knows.collectives:
            return communicate(frame, knows.collectives[method.of], arguments, node)
        entry = _entry_of(frame, method, arguments, node)
        if entry is not None and not (method.guessed and _is_project_method(frame, method)):
            _call_closure(frame, entry, arguments, node)
            return communicate(frame, entry, arguments, node, guessed=method.guessed)
        rank = knows.rank("method", method.name, method.of)
        if rank is not None:
            return frame.rank_value(rank, node, along(node) if rank.value == "group_rank" else "")
        if method.of == ref.SET and method.name in _SET_METHODS:
            return unordered(frame, node)
        if (own := _of_own_tensor(frame, function, method, arguments, node)) is not None:
            return own
        gate = next((g for a in knows.ancestors(method.of) if (g := knows.gates.get(f"{a}.{method.name}"))), None)
        if gate is not None and arguments.positional:
            return unknown(frame.key(node), ref.Partial(arguments.positional[0], (gate,), identity=id(node)))
        source = knows.source("method", f"{method.of}.{method.name}")
        if source is not None and happens(source, arguments):
            if source.cause == "length" and is_cut_to_multiple(frame, node):
                return unknown(frame.key(node))
            return from_source(frame, source, arguments.values, node)
        if method.of == ref.ON_ONE_DEVICE.of and method.name in knows.wrapping_methods:
            return unknown(frame.key(node), ref.ON_ONE_DEVICE)
        if not method.guessed:
            if method.name in RETURNING_MODULE:
                return unknown(frame.key(node), method.instance or ref.Instance(method.of))
            return passed_on(frame, node, [function, *arguments.values], ("call", frame.text(node)))
    return _unresolved(frame, function, arguments, node, method.name)


def _entry_of(frame: Frame, method: ref.Method, arguments: Arguments, node: ast.Call) -> Collective | None:
    """What the knowledge has for a method of a class that it knows."""
    if method.guessed and method.name == "step" and len(arguments.positional) > 1:
        return None  # no optimizer and no schedule, despite its name: a diffusion's ``scheduler.step(x, t)``
    entry = known().method(method.of, method.name)
    if entry is not None and method.guessed and not _is_used(frame, method.of):
        entry = None
    if entry is None and is_generated(node, method.name):  # the forwards of the parts communicate
        forward = known().method(method.of, "__call__")
        # DDP passes on no method of the module inside.
        entry = forward if forward is not None and forward.when != "buffers" else None
    return _by_imports(frame, method) if entry is None and method.guessed else entry


def _is_used(frame: Frame, class_: str) -> bool:
    """Does the project import, or is it, a framework that has objects of a class which is known by their name alone?"""
    packages = _packages_with(class_.partition(".")[0])
    project = frame.linker.project
    imports = (f"{how} {each}" for each in packages for how in ("from", "import"))
    return (
        "torch" in packages or any(map(project.meanings.split, packages)) or any(map(project.contents.holding, imports))
    )


@functools.cache
def _packages_with(package: str) -> frozenset[str]:
    """All import names of the framework that has this one, and of those that hold its objects."""
    return frameworks.packages(lambda framework: package in (*framework.packages, *framework.holds))


def _by_imports(frame: Frame, method: ref.Method) -> Collective | None:
    """The method of another class whose objects have this name, too, where the file imports its framework."""
    packages = frame.facts.imports.packages
    named = (of for of in known().known_as(method.of) if of.partition(".")[0] in packages)
    return next((entry for of in named if (entry := known().method(of, method.name)) is not None), None)


def _of_own_tensor(
    frame: Frame, function: Value, method: ref.Method, arguments: Arguments, node: ast.Call
) -> Value | None:
    """What a method of a tensor gives that has a shape of its own on each rank; None where it is no such tensor."""
    if method.of in LISTED and method.name in ("resize_", "resize_as_") and isinstance(node.func, ast.Attribute):
        frame.env[dotted(node.func.value)] = unknown(frame.key(node))  # it has the size that it is told now
        return unknown(frame.key(node))
    if method.of in LISTED and keeps(method.name):
        return with_kept_shape(frame, node, function, method)
    return sized(frame, node, [function, *arguments.values]) if method.of == PADDED else None


def _is_project_method(frame: Frame, method: ref.Method) -> bool:
    """Has the project a class of its own under the guessed name, with such a method? Then that is what is meant."""
    module, _, last = method.of.rpartition(".")
    framework, project = module.partition(".")[0], frame.linker.project
    files = [
        facts
        for path in project.contents.holding(f"class {last}")
        if (facts := project.modules.facts_of(path)) is not None
    ]
    # In the framework's own code, or a copy of it, it is that very class; a fork may have another one in its place.
    own = [facts for facts in files if framework not in facts.name.split(".")]
    if not any(f".{module}." in f".{facts.name}." for facts in files):
        own = files
    classes = (frame.linker.class_ref(d, f) for f in own if isinstance(d := f.definitions.get(last), ast.ClassDef))
    return any(method.name in frame.linker.members(of) for of in classes)


def _unresolved(
    frame: Frame, function: Value, arguments: Arguments, node: ast.Call, name: str = "", *, foreign: str = ""
) -> Value:
    """A call that nothing resolves: by name where the name leaves no doubt, else without effect.

    `foreign`: the name of what another package has, ``transformers.AutoConfig.from_pretrained``, which belongs to no
    object of the project.
    """
    text = foreign or frame.text(node.func)
    name = name or text.rpartition(".")[2]
    meant = known().called(name)
    if _has_own_group(arguments):  # ``hydra.utils.instantiate(cfg.fabric, strategy=...)``
        return unknown(frame.key(node), ref.ON_ONE_DEVICE)
    key = ("call", text, tuple([value.key for value in arguments.values]))
    if meant.uniform:
        return _counted(frame, name, arguments) or unknown(key)
    rank = meant.rank
    if rank is not None and not arguments.starred:
        axis = along(node) if rank.value in ("rank", "local_rank") else ""
        if axis:  # ``comm.get_rank("tp")``, ``context.get_local_rank(ParallelMode.TENSOR)``
            return frame.rank_value(dataclasses.replace(rank, value="group_rank", scope="world"), node, axis)
        return _rank_in(frame, rank, arguments, node)
    is_method = isinstance(node.func, ast.Attribute)
    plain = is_method and name == "backward" and is_of_plain_model(frame, node)
    if plain or (is_method and name.startswith("on_")):  # ``control = callbacks.on_evaluate(args, control, metrics)``
        return unknown(key)
    if is_method and name == "backward":
        return communicate(frame, known().collectives["torch.Tensor.backward"], arguments, node)
    sure = distinctive(frame, name, arguments) if is_method else None
    if sure is not None:
        return communicate(frame, sure[0], arguments, node, confidence=sure[1])
    if is_method and name in _METERING:
        _meter(frame, node, arguments.values)
    by_object = is_method and not foreign and not _is_super(function)
    if by_object and (made := _of_some_object(frame, name, text, arguments, node)) is not None:
        return made
    gate = meant.gate
    if gate is not None and arguments.positional and isinstance(arguments.positional[0].reference, ref.FunctionRef):
        return unknown(key, ref.Partial(arguments.positional[0], (gate,), identity=id(node)))
    told = [value for keyword, value in arguments.keywords.items() if keyword not in _OF_DISPLAY]
    parts = [function, *arguments.positional, *told, *arguments.spread]
    source = meant.source if is_method else None
    if source is not None and source.cause != "data" and (source.cause != "future" or not arguments.values):
        return from_source(frame, source, parts, node)
    for argument in arguments.values:
        consume(frame, argument)
    _hand_over(frame, arguments, node)
    change(frame, name, node, arguments)
    is_model = function.kind == PREPARED and not is_method  # of what is prepared it alone is called
    return output_of_model(frame, arguments, node, key) if is_model else by_name(frame, name, parts, node, key)


def _of_tensor(node: ast.Call, function: Value, result: Value) -> Value:
    """``batch["tokens"].cuda()``: what a method of tensors gives is never None, unless it is the project's own."""
    if not isinstance(node.func, ast.Attribute) or not keeps(node.func.attr):
        return result
    plain = result.constant is None and result.missing is None and result.reference is None
    unresolved = function.reference is None or isinstance(function.reference, ref.Method)
    return dataclasses.replace(result, missing=NEVER) if plain and unresolved else result


def _rank_in(frame: Frame, rank: Rank, arguments: Arguments, node: ast.Call) -> Value:
    """The rank in the group that a call names, or in the world."""
    group = arguments.get(rank.group, rank.takes) if rank.group else (None, None)
    return frame.rank_value(rank, node, group_of(frame, *group).key)


def _of_some_object(frame: Frame, name: str, text: str, arguments: Arguments, node: ast.Call) -> Value | None:
    """What a method returns for an object of unknown class, where its name is sufficient."""
    only = frame.linker.only_method(name)
    called_on = node.func.value if isinstance(node.func, ast.Attribute) else None
    if only is not None and (called_on is None or not is_of_another_class(frame, called_on, only)):
        assert only.owner is not None
        receiver = unknown((MADE, text), ref.Instance(only.owner, guessed=True))
        return frame.summaries.enter(frame, bound(only, receiver, only.owner), arguments, node)
    if any(value.varies is not None for value in arguments.values) and agreed_within(frame, name):
        return unknown(("call", text, tuple(value.key for value in arguments.values)), agreed=True)
    return None


def _meter(frame: Frame, node: ast.Call, given: Sequence[Value]) -> None:
    """``meter.update(reduced.item(), n)``: what an object holds that is given what the ranks have agreed on is the same
    on all of them, until it is given something of their own. How much a batch holds is only a weight."""
    path = dotted(getattr(node.func, "value", node))
    held, own = frame.env.get(path), any(value.varies is not None and not value.even for value in given)
    if held is not None and (own or any(value.agreed for value in given)):
        frame.env[path] = dataclasses.replace(held, agreed=not own)


def _is_super(function: Value) -> bool:
    """``super().setup_model()`` of a class that is none of the project's."""
    return isinstance(function.reference, ref.Method) and function.reference.inherited


def _call_closure(frame: Frame, entry: Collective, arguments: Arguments, node: ast.Call) -> None:
    """``optimizer.step(closure)``: it calls the closure, as often as it needs to."""
    closure = arguments.get("closure", ("closure",))[0] if entry.kind == "step" else None
    if closure is not None and isinstance(closure.reference, ref.FunctionRef):
        outer, frame.effects = frame.effects, []
        invoke(frame, closure, Arguments(starred=True), node)
        inside, frame.effects = frame.effects, outer
        if matters(inside):
            frame.effects.append(Rounds(inside, [], None, frame.span(node)))


def _hand_over(frame: Frame, arguments: Arguments, node: ast.Call) -> None:
    """Functions that are handed to an unknown call, like the handlers of a server: it calls them as often as requests
    come; on some ranks only, once: ``if rank == 0: wandb.agent(function=train)``, where the others call it themselves,
    or as often as they do: ``study.optimize(train, n_trials=n)``.
    What a process of its own does is not this rank's."""
    handed = [value for value in arguments.values if isinstance(value.reference, ref.FunctionRef)]
    if not handed or frame.text(node.func).rpartition(".")[2] == "Process":
        return
    apart = any(test.varying() is not None for test in frame.path)
    for value in handed:
        outer, frame.effects = frame.effects, []
        invoke(frame, value, Arguments(starred=True), node)
        inside, frame.effects = frame.effects, outer
        if matters(inside):
            inside = doubtful(inside)
            often = Rounds([], [], None, frame.span(node), serves=True)
            once_or_often = [*inside, often] if apart else [Rounds(inside, [], None, frame.span(node), callback=True)]
            frame.effects += once_or_often


def _map(frame: Frame, node: ast.Call, arguments: Arguments) -> Value:
    """`map(f, xs)`: f is called for each, as if in a loop."""
    if len(arguments.positional) < 2:  # ``map(f, *lists)``
        return unknown(frame.key(node))
    outer, frame.effects = frame.effects, []
    items = tuple(
        element_of(frame, value, source) for value, source in zip(arguments.positional[1:], node.args[1:], strict=False)
    )
    invoke(frame, arguments.positional[0], Arguments(items), node)
    inner, frame.effects = frame.effects, outer
    if matters(inner):
        frame.effects.append(
            Rounds(inner, [], rounds_of(frame, arguments.positional[1], node.args[1]), frame.span(node))
        )
    value, stream = passed_on(frame, node, arguments.values), streamed(*arguments.positional[1:])
    return value if stream is None else value.with_reference(stream)


def _thread(frame: Frame, node: ast.Call, arguments: Arguments) -> Value:
    """``Thread(target=serve)``: what the thread does is what this rank does."""
    target = arguments.keywords.get("target")
    given = arguments.keywords.get("args")
    if target is not None and isinstance(target.reference, (ref.FunctionRef, ref.Partial)):
        invoke(frame, target, Arguments(given.items or () if given is not None else ()), node)
    return unknown(frame.key(node))


#: Functions of Python, those with them that call what they are given.
_BUILTINS: Final = {**BUILTINS, "map": _map}
_LIBRARY: Final = {**LIBRARY, "threading.Thread": _thread}

__all__ = ["call", "invoke"]
