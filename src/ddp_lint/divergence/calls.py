"""Calls: who is called, what that does with other ranks, and what comes back."""

from __future__ import annotations

import ast
import dataclasses
import functools
import re
from collections.abc import Callable, Hashable
from typing import Final

from ddp_lint.divergence import references as ref
from ddp_lint.divergence.effects import Branch, Emitted, Rounds, doubtful, matters
from ddp_lint.divergence.expressions import (
    HANDLERS,
    bind,
    consume,
    dotted,
    element_of,
    environment,
    evaluate,
    fill,
    forget_parts,
    pair,
    passed_on,
    unordered,
)
from ddp_lint.divergence.frame import Frame, reference_of
from ddp_lint.divergence.groups import Group, handed_out, named, of_callee
from ddp_lint.divergence.lengths import is_whole, of_batches, own_length, size_of, streams
from ddp_lint.divergence.resolve import children, known
from ddp_lint.divergence.selections import (
    MAKING,
    PADDED,
    SELECTING,
    SELECTION,
    SIZED,
    is_generated,
    is_padded,
    is_selection,
    is_sized,
    keeps,
    needs_one_shape,
    own_longest,
    own_size,
    selection,
)
from ddp_lint.divergence.values import (
    MADE,
    SET,
    Known,
    Value,
    Variation,
    combine,
    constant,
    divergent,
    filled,
    is_filled,
    unknown,
)
from ddp_lint.divergence.words import Letter
from ddp_lint.findings import Confidence, Label
from ddp_lint.knowledge import table
from ddp_lint.knowledge.communication import Collective, Gate, Source

#: An object of a framework that works on one device.
_ALONE = "builtins.alone"
#: In the name of an unresolved function: what it returns has probably been agreed on by all ranks.
_AGREED = re.compile(r"reduce|gather|sync|broadcast|(^|_)all_|consensus|agree|average_across")
#: Methods that are collective on whatever object has them.
_DISTINCTIVE = frozenset(
    {
        "all_reduce", "all_gather", "all_gather_object", "all_gather_into_tensor", "reduce_scatter",
        "reduce_scatter_tensor", "broadcast_object_list", "all_to_all_single", "monitored_barrier", "barrier",
    }
)  # fmt: skip
#: Methods that run the model that they are given forward and backward, and what the model is called there.
_STEPS: Final = frozenset(table("tensors")["steps"]["methods"])
_MODELS: Final = frozenset(table("tensors")["steps"]["models"])
_ACCELERATE = ("wait_for_everyone", "gather_for_metrics", "pad_across_processes")
_RETURNING_MODULE: Final = frozenset(table("tensors")["layers"]["returning_module"])
#: Methods that make a list longer.
_GROWING = frozenset({"append", "extend", "insert"})
#: Tests of a number that are made of each rank's own loss.
_NOT_A_NUMBER = frozenset({"isnan", "isinf", "isfinite"})
#: In a name: a number that is the same on all ranks.
_SHARED = re.compile(r"norm|reduced|global|avg|average|mean|total|scale\b")
#: Methods that a computed name is tried for.
_ALTERNATIVES = 40
_SET_METHODS = frozenset({"union", "difference", "intersection", "symmetric_difference", "copy"})
_KEPT = frozenset({"int", "float", "bool", "abs", "round", "min", "max", "sum", "any", "all", "str", "divmod", "pow"})
_SHAPELESS = frozenset(
    {"isinstance", "hasattr", "callable", "type", "print", "repr", "id", "issubclass", "vars", "dir"}
)
_CONSUMERS = frozenset({"list", "tuple", "dict", "set", "sorted", "sum", "min", "max", "any", "all", "enumerate"})


@dataclasses.dataclass(eq=False, slots=True)
class Arguments:
    """Evaluated arguments; `starred` when `*args` or `**kwargs` hide some."""

    positional: tuple[Value, ...] = ()
    keywords: dict[str, Value] = dataclasses.field(default_factory=dict)
    nodes: dict[int | str, ast.expr] = dataclasses.field(default_factory=dict)
    starred: bool = False

    def get(self, name: str, takes: tuple[str, ...]) -> tuple[Value | None, ast.expr | None]:
        """The argument for a parameter of a callee whose positional parameters are `takes`."""
        if name in self.keywords:
            return self.keywords[name], self.nodes.get(name)
        if name in takes and takes.index(name) < len(self.positional):
            return self.positional[takes.index(name)], self.nodes.get(takes.index(name))
        return None, None

    @property
    def values(self) -> list[Value]:
        return [*self.positional, *self.keywords.values()]


def call(frame: Frame, node: ast.Call) -> Value:
    function = evaluate(frame, node.func)
    if isinstance(node.func, ast.Name) and function.reference is None:
        handler = _BUILTINS.get(node.func.id)
        if handler is not None:
            return handler(frame, node, arguments_of(frame, node))
    arguments = arguments_of(frame, node)
    result = invoke(frame, function, arguments, node)
    for index, argument in arguments.nodes.items():
        value = arguments.positional[index] if isinstance(index, int) else arguments.keywords[index]
        if value.items == () or value.entries == {}:  # ``flatten(stats, into)``
            fill(frame, dotted(argument), argument, passed_on(frame, node, arguments.values).varies)
    return result


def arguments_of(frame: Frame, node: ast.Call) -> Arguments:
    positional: list[Value] = []
    nodes: dict[int | str, ast.expr] = {}
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
            starred = True
    return Arguments(tuple(positional), keywords, nodes, starred)


def invoke(frame: Frame, function: Value, arguments: Arguments, node: ast.Call) -> Value:
    reference = function.reference
    if isinstance(reference, ref.FunctionRef):
        return frame.summaries.enter(frame, reference, arguments, node)
    if isinstance(reference, ref.ClassRef):
        return _construct(frame, reference, arguments, node)
    if isinstance(reference, ref.Instance):
        return _call_object(frame, function, reference, arguments, node)
    if isinstance(reference, ref.External):
        return _external(frame, reference.name, arguments, node)
    if isinstance(reference, ref.Method):
        return _method(frame, function, reference, arguments, node)
    if isinstance(reference, ref.Dynamic):
        return _dynamic(frame, reference, node)
    if isinstance(reference, ref.Partial):
        return _partial(frame, reference, arguments, node)
    return _unresolved(frame, function, frame.text(node.func), arguments, node)


def _construct(frame: Frame, of: ref.ClassRef, arguments: Arguments, node: ast.Call) -> Value:
    instance = unknown((MADE, of.node.name, frame.text(node)), ref.Instance(of))
    constructor = frame.linker.method(of, "__init__")
    if constructor is not None:
        bound = dataclasses.replace(constructor, receiver=instance, of=of)
        frame.summaries.enter(frame, bound, arguments, node)
    return instance


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
    """Any one of the methods that the class itself defines is called."""
    for name in list(frame.linker.members(dynamic.of))[:_ALTERNATIVES]:
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
    from ddp_lint.divergence import worlds
    from ddp_lint.divergence.values import per_rank

    label = Label(frame.span(node), f"`{gate.name.rpartition('.')[2]}` lets only some ranks run this")
    confidence = Confidence.MEDIUM if gate.name.startswith("*.") else Confidence.HIGH
    scope = "node" if "local" in gate.runs_on else "world"
    varies = Variation("rank", "the rank", scope, label, confidence)
    numbers = worlds.known(gate.runs_on)
    return per_rank(numbers, varies) if numbers is not None else divergent(("gate", gate.name), varies)


# ---- what the knowledge knows


def _external(frame: Frame, name: str, arguments: Arguments, node: ast.Call) -> Value:
    special = _SPECIAL.get(name)
    if special is not None:
        return special(frame, node, arguments)
    key = ("call", name, tuple(value.key for value in arguments.values))
    knows = known()
    if knows.is_uniform("call", name) or knows.is_uniform("call", "*." + name.rpartition(".")[2]):
        return unknown(key)
    rank = knows.rank("call", name) or knows.rank("call", "*." + name.rpartition(".")[2])
    if rank is not None:
        group = arguments.get(rank.group, rank.takes) if rank.group else (None, None)
        return frame.rank_value(rank, node, _group_of(frame, *group).key)
    entry = knows.collectives.get(name)
    if entry is not None:
        return communicate(frame, entry, arguments, node)
    gate = knows.gates.get(name)
    if gate is not None and gate.what == "call" and arguments.positional:
        return _gated(frame, gate, arguments.positional[0], Arguments(starred=True), node)
    if gate is not None and gate.what == "decorator" and arguments.positional:
        return unknown(key, ref.Partial(arguments.positional[0], (gate,), identity=id(node)))
    source = knows.source("call", name)
    if source is not None:
        return _from_source(frame, source, arguments.values, node)
    group_source = knows.group(name)
    if group_source is not None:
        return unknown(key, ref.GroupRef(Group(name.rpartition(".")[2], group_source.scope)))
    made = knows.type_of(name)
    if made:
        return unknown(frame.key(node), ref.Instance(_ALONE if _is_on_one_device(arguments) else made))
    head, _, last = name.rpartition(".")
    owner_entry = known().method(head, last) if head in knows.types else None
    if owner_entry is not None:
        return communicate(frame, owner_entry, arguments, node)
    if last in _DISTINCTIVE and _is_communication(head):
        entry = knows.collectives.get(f"torch.distributed.{last}")
        if entry is not None:
            return communicate(frame, entry, arguments, node, confidence=Confidence.MEDIUM)
    return _unresolved(frame, unknown(("name", name)), name, arguments, node)


def _is_on_one_device(arguments: Arguments) -> bool:
    """``Trainer(devices=1)``: nobody to communicate with, whichever rank makes it."""
    devices, nodes = arguments.keywords.get("devices"), arguments.keywords.get("num_nodes")
    return _is_one(devices) and (nodes is None or _is_one(nodes))


def _is_one(value: Value | None) -> bool:
    return value is not None and value.constant is not None and value.constant.value == 1


def _is_communication(module: str) -> bool:
    return bool(re.search(r"(^|[._])(dist|distributed|comm|communication|collectives|idist)([._]|$)", module))


def _method(frame: Frame, function: Value, method: ref.Method, arguments: Arguments, node: ast.Call) -> Value:
    knows = known()
    if method.of:
        if method.name == "__init__" and method.of in knows.collectives:
            return communicate(frame, knows.collectives[method.of], arguments, node)
        entry = knows.method(method.of, method.name)
        if method.guessed and method.name == "step" and len(arguments.positional) > 1:
            entry = (
                None  # no optimizer and no learning rate, whatever it is called: a diffusion's ``scheduler.step(x, t)``
            )
        if entry is not None and not (method.guessed and _is_project_method(frame, method)):
            return communicate(frame, entry, arguments, node, guessed=method.guessed)
        rank = knows.rank("method", method.name, method.of)
        if rank is not None:
            return frame.rank_value(rank, node)
        if method.of == ref.SET and method.name in _SET_METHODS:
            return unordered(frame, node)
        if method.of == SELECTION and keeps(method.name):
            return selection(frame, node, [function])
        if method.of == PADDED and keeps(method.name):
            return unknown(frame.key(node), ref.Instance(PADDED))
        gate = next((g for a in knows.ancestors(method.of) if (g := knows.gates.get(f"{a}.{method.name}"))), None)
        if gate is not None and arguments.positional:
            return unknown(frame.key(node), ref.Partial(arguments.positional[0], (gate,), identity=id(node)))
        source = knows.source("method", f"{method.of}.{method.name}")
        if source is not None and _happens(source, arguments):
            return _from_source(frame, source, arguments.values, node)
        if not method.guessed:
            if method.name in _RETURNING_MODULE:
                return unknown(frame.key(node), ref.Instance(method.of))
            return passed_on(frame, node, [function, *arguments.values], ("call", frame.text(node)))
    return _unresolved(frame, function, frame.text(node.func), arguments, node, method.name)


def _is_of_plain_model(frame: Frame, node: ast.Call) -> bool:
    """``reference(x).backward()`` of a model that this function makes and hands to nothing that would wrap it."""
    loss = node.func.value if isinstance(node.func, ast.Attribute) else None
    model = loss.func.id if isinstance(loss, ast.Call) and isinstance(loss.func, ast.Name) else ""
    if not model or frame.function is None:
        return False
    made = [
        child.value
        for child in children(frame.function)
        if isinstance(child, ast.Assign) and any(dotted(target) == model for target in child.targets)
    ]
    return len(made) == 1 and _is_new_module(frame, made[0])


def _is_new_module(frame: Frame, node: ast.expr) -> bool:
    """``Net().to(device)``: an object of a module class of the project, moved at most."""
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Call):
        node = node.func.value
    reference = frame.linker.expression(frame.facts, node.func) if isinstance(node, ast.Call) else None
    return isinstance(reference, ref.ClassRef) and frame.linker.is_module(reference)


def _is_project_method(frame: Frame, method: ref.Method) -> bool:
    """Has the project a class of its own under the guessed name, with such a method? Then that is what is meant."""
    framework, last = method.of.partition(".")[0], method.of.rpartition(".")[2]
    project = frame.linker.project
    for path in project.holding(f"class {last}"):
        facts = project.facts_of(path)
        definition = facts.definitions.get(last) if facts is not None else None
        if facts is not None and isinstance(definition, ast.ClassDef):
            of = frame.linker.class_ref(definition, facts)
            if method.name in frame.linker.members(of) and framework not in facts.name.split("."):
                return True
    return False


def _unresolved(
    frame: Frame, function: Value, text: str, arguments: Arguments, node: ast.Call, name: str = ""
) -> Value:
    """A call that nothing resolves: by name where the name leaves no doubt, else without effect."""
    knows = known()
    name = name or text.rpartition(".")[2]
    key = ("call", text, tuple(value.key for value in arguments.values))
    if knows.is_uniform("call", f"*.{name}"):
        return unknown(key)
    rank = knows.rank("call", f"*.{name}")
    if rank is not None and not arguments.starred:
        group = arguments.get(rank.group, rank.takes) if rank.group else (None, None)
        return frame.rank_value(rank, node, _group_of(frame, *group).key)
    is_method = isinstance(node.func, ast.Attribute)
    if name == "backward" and is_method:
        if _is_of_plain_model(frame, node):
            return unknown(key)
        return communicate(frame, knows.collectives["torch.Tensor.backward"], arguments, node)
    distinctive = _distinctive(frame, name, arguments) if is_method else None
    if distinctive is not None:
        return communicate(frame, distinctive[0], arguments, node, confidence=distinctive[1])
    gate = knows.gates.get(f"*.{name}")
    if gate is not None and arguments.positional and isinstance(arguments.positional[0].reference, ref.FunctionRef):
        return unknown(key, ref.Partial(arguments.positional[0], (gate,), identity=id(node)))
    source = knows.source("method", name) if is_method else None
    parts = [function, *arguments.values]
    told = source is not None and source.cause != "data" and (source.cause != "future" or not arguments.values)
    if source is not None and told:
        return _from_source(frame, source, parts, node)
    for argument in arguments.values:
        consume(frame, argument)
    _hand_over(frame, arguments, node)
    if name in _GROWING:
        _grow(frame, node, arguments.values)
    return _by_name(frame, name, parts, node, key)


def _hand_over(frame: Frame, arguments: Arguments, node: ast.Call) -> None:
    """Functions that some ranks alone hand to an unknown call, like the handlers of a server: it calls them as often
    as requests come."""

    if not any(test.varying() is not None for test in frame.path):
        return
    for value in arguments.values:
        if isinstance(value.reference, ref.FunctionRef):
            outer, frame.effects = frame.effects, []
            invoke(frame, value, Arguments(starred=True), node)
            inside, frame.effects = frame.effects, outer
            if matters(inside):
                frame.effects.append(Rounds(doubtful(inside), [], None, frame.span(node)))


def _distinctive(frame: Frame, name: str, arguments: Arguments) -> tuple[Collective, Confidence] | None:
    """What a method does on whatever object has it, and how sure that is."""
    knows = known()
    if name in _DISTINCTIVE:
        return knows.collectives[f"torch.distributed.{name}"], Confidence.LOW
    if name == "full_tensor":
        whole = knows.method("torch.distributed.tensor.DTensor", name)
        return (whole, Confidence.LOW if frame.depth else Confidence.MEDIUM) if whole is not None else None
    if name in _ACCELERATE:
        return knows.collectives[f"accelerate.Accelerator.{name}"], Confidence.HIGH
    if name in _STEPS and any(frame.text(given) in _MODELS for given in arguments.nodes.values()):
        return knows.collectives["torch.Tensor.backward"], Confidence.MEDIUM
    return None


def _grow(frame: Frame, node: ast.Call, given: list[Value]) -> None:
    """``losses.append(x)`` on some ranks only: from here on the list is longer on them. On all ranks, of a value that
    is each rank's own: it is as long on all, and holds something else."""
    path = dotted(node.func.value) if isinstance(node.func, ast.Attribute) else ""
    before = frame.env.get(path)
    if before is None or before.items != ():
        return
    if (order := frame.order) is not None:
        listed = ref.Instance(ref.SET, handed=order.foreign, filled=order.origin)
        frame.env[path] = unknown(frame.key(node, "list"), listed)
        return
    varies = next((v for test in frame.path if (v := test.varying()) is not None), None)
    if varies is not None and not varies.confined:
        frame.env[path] = divergent(("grown", frame.key(node)), varies)
        return
    if (own := passed_on(frame, node, given).varies) is not None:
        frame.env[path] = filled(frame.key(node), own)


def _by_name(frame: Frame, name: str, parts: list[Value], node: ast.Call, key: Hashable) -> Value:
    """What an unresolved function without effect returns."""
    if is_agreement(name):
        return unknown(key, agreed=True)
    group = handed_out(name)
    if group is not None:
        return unknown(key, ref.GroupRef(group))
    is_method = isinstance(node.func, ast.Attribute)
    if is_method and name in SELECTING and not node.keywords and len(node.args) == (name == "masked_select"):
        return selection(frame, node, parts)
    if is_method and is_generated(node, name):
        return unknown(frame.key(node), ref.Instance(PADDED))
    if is_method and name == "keys" and not node.args:
        return unknown(key)  # what a batch has is the same for all
    value = passed_on(frame, node, parts, key)
    if is_method and name == "size" and (not node.args or parts[-1].constant == Known(0)) and of_batches(value.varies):
        return size_of(key, value.varies)
    if not is_method or name not in _PIECES:
        return value
    count = parts[1] if len(parts) > 1 and name == "chunk" else None
    if count is not None and of_batches(count.varies) and not count.even:
        return divergent(("grown", key), count.varies)
    return dataclasses.replace(value, even=True)


def _from_source(frame: Frame, source: Source, parts: list[Value], node: ast.Call) -> Value:
    """A value that differs although no rank is mentioned. Data must come from this rank's batches."""
    key = ("call", frame.text(node))
    if source.cause == "data" and source.name.rpartition(".")[2] in _NOT_A_NUMBER:
        text = frame.text(node).lower()
        if any(p.agreed or p.constant is not None for p in parts) or _SHARED.search(text):
            return unknown(key)
    elif source.cause == "data":
        varying = next((p.varies for p in parts if p.varies is not None and p.open), None)
        if varying is None and source.name != "next":
            return unknown(key)
        if varying is not None and varying.cause == "rank" and source.name.rpartition(".")[2] in _SIZES:
            return unknown(key)  # tensors of another content, of one shape
        if varying is not None:
            return divergent(key, varying)
        if not frame.summaries.is_batch_iterator(node):
            return unknown(key)
    label = Label(frame.span(node), f"`{frame.text(node)}` depends on {source.says}")
    return divergent(key, Variation(source.cause, source.says, origin=label, confidence=Confidence.MEDIUM))


def communicate(
    frame: Frame, entry: Collective, arguments: Arguments, node: ast.Call, *, guessed: bool = False,
    confidence: Confidence = Confidence.HIGH,
) -> Value:  # fmt: skip
    """Emit the letter of a knowledge entry and give what the call returns."""
    key = ("result", entry.op, frame.text(node))
    if entry.kind in ("p2p", "local") or not _happens(entry, arguments):
        _turn_arguments(frame, entry, arguments)
        return _result(frame, entry, arguments, node, key)
    replicas = entry.kind in ("backward", "step", "forward", "leave") and entry.op != "learning rate"
    if replicas and not frame.summaries.is_distributed(frame.facts, frame.owner):
        return passed_on(frame, node, arguments.values, key)
    evident = not entry.when or frame.summaries.shows(frame.facts, frame.owner, entry.when)
    if guessed:
        confidence = Confidence.LOW if entry.when and not evident else Confidence.MEDIUM
    elif entry.when:
        confidence = Confidence.MEDIUM if evident else Confidence.LOW
    if entry.when == "sharded" and _is_sharded_later(frame, node):
        confidence = Confidence.LOW
    group = _group_of(frame, *arguments.get(entry.group, entry.takes)) if entry.group else Group()
    if group.is_world and entry.scope != "world":
        group = Group(entry.scope, entry.scope)
    if entry.kind == "group":  # made by the whole world, or by the ranks of a mesh
        is_method = entry.name.rpartition(".")[0] in known().types and isinstance(node.func, ast.Attribute)
        group = named(frame.text(node.func.value)) if is_method and isinstance(node.func, ast.Attribute) else Group()
    root = arguments.get(entry.root, entry.takes)[0] if entry.root else None
    reduce_op = arguments.get(entry.reduce_op, entry.takes)[0] if entry.reduce_op else None
    letter = Letter(
        entry.op, entry.kind, group, frame.span(node), frame.text(node.func), entry.implicit, entry.condition, evident,
        confidence, root, reduce_op, _uneven_payload(frame, entry, arguments, node, group),
        _own_number(entry, arguments), _own_members(entry, arguments),
        buffer=dotted(node.args[0]) if node.args else "",
    )  # fmt: skip
    frame.effects.append(Emitted(letter))
    for name in entry.uniform:
        _agree(frame, arguments.get(name, entry.takes)[1])
    _turn_arguments(frame, entry, arguments)
    return _result(frame, entry, arguments, node, key)


def _turn_arguments(frame: Frame, entry: Collective, arguments: Arguments) -> None:
    for name, type_ in entry.turns.items():
        turn(frame, arguments.get(name, entry.takes)[1], type_)


_SHARDS = re.compile(r"fully_shard|shard_model|FullyShardedDataParallel|\bFSDP$|parallelize|prepare$")


#: Methods that cut a batch into pieces, as many as its size asks for.
_PIECES = frozenset({"split", "chunk", "unbind"})
#: Methods that tell a tensor's shape, whatever it holds.
_SIZES = frozenset({"numel", "size", "dim", "nelement", "shape"})


def _is_sharded_later(frame: Frame, node: ast.Call) -> bool:
    """Is the object of the call still whole: the function shards it further down, and nowhere before?"""
    model = dotted(node.args[0]) if node.args else ""
    if not model or frame.function is None:
        return False
    shards = [
        call.lineno
        for call in children(frame.function)
        if isinstance(call, ast.Call)
        and _SHARDS.search(dotted(call.func))
        and any(dotted(argument) == model for argument in call.args)
    ]
    return bool(shards) and min(shards) > node.lineno


def _uneven_payload(
    frame: Frame, entry: Collective, arguments: Arguments, node: ast.Call, group: Group
) -> Variation | None:
    """Why a tensor that must have one shape on all ranks has as many elements as each rank's own data give.

    Ranks of a smaller group (tensor, context parallel) mostly have the same batch, so that its length is no reason.
    """
    if entry.objects and arguments.get(entry.objects, entry.takes)[1] is not None:
        return None
    payload = [arguments.get(name, entry.takes) for name in entry.payload]
    pairs = [(each, at) for value, at in payload if value is not None for each in (value, *(value.items or ()))]
    for value, at in pairs:
        if is_selection(value):
            return own_size(frame, at or node)
        if is_sized(value) and needs_one_shape(entry.op):
            return value.varies
        if is_padded(value) and group.is_world and "gather" in entry.op:
            return own_longest(frame, at or node)
    return None


def _own_number(entry: Collective, arguments: Arguments) -> Variation | None:
    """Why the number by which the call decides is another one on each rank: ``plateau.step(loss.item())``."""
    number = arguments.get(entry.decides, entry.takes)[0] if entry.decides else None
    return number.varies if number is not None and number.open else None


def _own_members(entry: Collective, arguments: Arguments) -> Variation | None:
    """Why each rank asks for a group of other members, where it names those of its own group alone."""
    ranks = arguments.get(entry.ranks, entry.takes)[0] if entry.ranks else None
    varies = ranks.varies if ranks is not None else None
    return varies if varies is not None and varies.cause in ("rank", "membership") else None


def _happens(entry: Collective | Source, arguments: Arguments) -> bool:
    for name, expected in entry.only_if.items() if isinstance(entry, Collective) else ():
        value = arguments.get(name, entry.takes)[0]
        if value is None or value.constant is None or value.constant.value != expected:
            return False
    for name, expected in entry.unless.items():
        value = arguments.get(name, entry.takes)[0]
        if value is not None and value.constant is not None and value.constant.value == expected:
            return False
    return True


def _agree(frame: Frame, argument: ast.expr | None) -> None:
    """After the call the argument holds one value on all ranks."""
    if isinstance(argument, (ast.List, ast.Tuple)):
        for element in argument.elts:
            _agree(frame, element)
        return
    path = dotted(argument).removesuffix(".data") if argument is not None else ""
    if path:
        forget_parts(frame, path)
        reference = reference_of(frame.env.get(path))
        frame.env[path] = unknown(("agreed", path), reference, agreed=True)
        frame.agreed.add(path)


def turn(frame: Frame, argument: ast.expr | None, type_: str) -> None:
    """After the call the argument is an object of this class."""
    path = dotted(argument) if argument is not None else ""
    if path:
        frame.env[path] = unknown(("turned", path), ref.Instance(type_))
        frame.turned[path] = type_


def _result(frame: Frame, entry: Collective, arguments: Arguments, node: ast.Call, key: Hashable) -> Value:
    if entry.returns == "group":
        return unknown(frame.key(node), ref.GroupRef(Group(str(frame.key(node)), "", own=frame.owner is not None)))
    if len(entry.result) == 1 and entry.result[0]:
        return unknown(frame.key(node), ref.Instance(entry.result[0]))
    if entry.result:
        items = tuple(
            unknown((*_pair(key), index), ref.Instance(name) if name else None)
            for index, name in enumerate(entry.result)
        )
        return dataclasses.replace(unknown(key), items=items)
    made = known().type_of(entry.name)
    if made:
        return unknown(frame.key(node), ref.Instance(made))
    if entry.kind == "forward":  # replicas: each rank's output follows from its own batch
        return passed_on(frame, node, arguments.values, key)
    return unknown(key, agreed=entry.returns == "uniform")


@functools.lru_cache(maxsize=8192)
def is_agreement(name: str) -> bool:
    """Does the name say that ranks agree on what the function returns?"""
    return _AGREED.search(name.lower()) is not None


def _pair(key: Hashable) -> tuple[Hashable]:
    return (key,)


def _group_of(frame: Frame, value: Value | None, node: ast.expr | None) -> Group:
    if value is None or (value.constant is not None and value.constant.value is None):
        return Group()
    if isinstance(value.reference, ref.GroupRef):
        return value.reference.group
    text = frame.text(node) if node is not None else "group"
    if text.endswith("WORLD") or text.endswith("get_default_group()"):
        return Group()
    return of_callee(text) if frame.depth else named(text)


# ---- builtins and the standard library


def _kept(frame: Frame, node: ast.Call, arguments: Arguments) -> Value:
    """int(rank) is the rank."""
    for value in arguments.values:
        consume(frame, value)
    assert isinstance(node.func, ast.Name)
    kept: dict[str, Callable[..., object]] = {"int": int, "bool": bool, "str": str, "abs": abs, "float": float}
    function = kept.get(node.func.id, _nothing)
    if len(arguments.positional) == 1 and not arguments.keywords:
        value = arguments.positional[0]
        if value.test is SET and node.func.id in ("int", "float"):
            return dataclasses.replace(value, test=None)
        if value.test is not None and node.func.id in ("bool", "int"):
            return value
        result = combine(function, (value,), (node.func.id, value.key))
        return dataclasses.replace(result, agreed=True) if value.agreed else result
    if not arguments.values:
        return unknown(frame.key(node))
    return combine(function, tuple(arguments.values), (node.func.id, tuple(v.key for v in arguments.values)))


def _nothing(*_: object) -> object:
    raise TypeError


def _length(frame: Frame, node: ast.Call, arguments: Arguments) -> Value:
    if not arguments.positional:
        return unknown(frame.key(node))
    of = arguments.positional[0]
    key = ("len", of.key)
    if is_selection(of):
        return divergent(key, own_size(frame, node))
    if is_filled(of):
        return unknown(key)
    if of.kind == "grown" and of.varies is not None:
        return divergent(key, of.varies)
    value = passed_on(frame, node, arguments.values, key)
    return size_of(value.key, value.varies) if of_batches(value.varies) else value


def _selected(frame: Frame, node: ast.Call, arguments: Arguments) -> Value:
    if node.keywords:  # a tuple, with counts or places besides
        return passed_on(frame, node, arguments.values)
    return selection(frame, node, arguments.values)


def _made(count: int, frame: Frame, node: ast.Call, arguments: Arguments) -> Value:
    """``torch.zeros(rank + 1)``: a tensor of another shape on each rank. The first `count` arguments tell the size (0:
    all)."""
    sizes = [
        *arguments.positional[: count or None],
        *(value for key, value in arguments.keywords.items() if key == "size"),
    ]
    parts = [part for size in sizes for part in (size.items or (size,))]
    varies = next((p.varies for p in parts if p.varies is not None and p.varies.cause == "rank"), None)
    if varies is None:
        return passed_on(frame, node, arguments.values)
    return dataclasses.replace(unknown(frame.key(node), ref.Instance(SIZED)), varies=varies)


def _range(frame: Frame, node: ast.Call, arguments: Arguments) -> Value:
    return combine(_nothing, tuple(arguments.values), ("range", tuple(v.key for v in arguments.values)))


def _shapeless(frame: Frame, node: ast.Call, arguments: Arguments) -> Value:
    return unknown(("call", frame.text(node)))


def _getattr(frame: Frame, node: ast.Call, arguments: Arguments) -> Value:
    from ddp_lint.divergence.expressions import attribute

    name = arguments.positional[1].constant if len(arguments.positional) > 1 else None
    if name is None or not isinstance(name.value, str):
        return frame.summaries.dynamic_attribute(frame, arguments.positional[0] if arguments.positional else None, node)
    base = arguments.positional[0]
    path = f"{frame.text(node.args[0])}.{name.value}"
    return frame.env.get(path) or attribute(frame, base, name.value, node, path)


def _next(frame: Frame, node: ast.Call, arguments: Arguments) -> Value:
    for value in arguments.positional[:1]:
        consume(frame, value)
    source = known().source("call", "next")
    if len(node.args) == 2 and (own := own_length(frame, arguments.positional[0], node.args[0], None)) is not None:
        return divergent(("next or default", frame.key(node)), own)
    if source is None or len(node.args) > 1:
        return passed_on(frame, node, arguments.values)
    reference = arguments.positional[0].reference if arguments.positional else None
    if isinstance(reference, ref.Enumerated):
        return pair(frame, node, reference.element)
    if isinstance(reference, ref.Instance) and reference.whole:
        return unknown(frame.key(node))
    return _from_source(frame, source, arguments.values, node)


def _collected(frame: Frame, node: ast.Call, arguments: Arguments) -> Value:
    for value in arguments.values:
        consume(frame, value)
    assert isinstance(node.func, ast.Name)
    if not arguments.positional:
        value = passed_on(frame, node, arguments.values)
        if node.func.id != "dict" or arguments.starred:
            return value
        return dataclasses.replace(value, entries=dict(arguments.keywords.items()))
    first = arguments.positional[0]
    if node.func.id in ("list", "tuple", "iter", "enumerate", "reversed") and len(arguments.positional) == 1:
        if node.func.id == "enumerate" and not isinstance(first.reference, ref.Generator):
            numbered = ref.Enumerated(first.reference, element_of(frame, first, node.args[0]))
            return dataclasses.replace(first, items=None, reference=numbered)
        if node.func.id in ("enumerate", "reversed"):
            return dataclasses.replace(first, items=None)
        return first
    return passed_on(frame, node, arguments.values)


def _loader(frame: Frame, node: ast.Call, arguments: Arguments) -> Value:
    dataset = arguments.get("dataset", ("dataset",))[0]
    streamed = streams(frame, dataset)
    whole = is_whole(node) and not streamed and (dataset is None or dataset.varies is None)
    return unknown(frame.key(node), ref.Instance("torch.utils.data.DataLoader", whole=whole, streams=streamed))


def _set(frame: Frame, node: ast.Call, arguments: Arguments) -> Value:
    return unordered(frame, node)


def _super(frame: Frame, node: ast.Call, arguments: Arguments) -> Value:
    if frame.owner is None or frame.receiver is None:
        return unknown(frame.key(node))
    instance = reference_of(frame.receiver)
    of = instance.of if isinstance(instance, ref.Instance) and isinstance(instance.of, ref.ClassRef) else frame.owner
    return unknown(("super",), ref.Super(of, frame.owner, frame.receiver))


def _environ_get(frame: Frame, node: ast.Call, arguments: Arguments) -> Value:
    key = arguments.positional[0].constant if arguments.positional else None
    return environment(frame, key.value, node) if key is not None else unknown(frame.key(node))


def _functools_partial(frame: Frame, node: ast.Call, arguments: Arguments) -> Value:
    if not arguments.positional:
        return unknown(frame.key(node))
    partial = ref.Partial(
        arguments.positional[0], arguments.positional[1:], tuple(arguments.keywords.items()), identity=id(node)
    )
    return unknown(frame.key(node), partial)


def _same(frame: Frame, node: ast.Call, arguments: Arguments) -> Value:
    return arguments.positional[0] if arguments.positional else unknown(frame.key(node))


def _map(frame: Frame, node: ast.Call, arguments: Arguments) -> Value:
    """`map(f, xs)`: f is called for each, as if in a loop."""
    from ddp_lint.divergence.expressions import rounds_of

    if len(node.args) < 2:
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
    return passed_on(frame, node, arguments.values)


def _thread(frame: Frame, node: ast.Call, arguments: Arguments) -> Value:
    """``Thread(target=serve)``: what the thread does is what this rank does."""
    target = arguments.keywords.get("target")
    given = arguments.keywords.get("args")
    if target is not None and isinstance(target.reference, (ref.FunctionRef, ref.Partial)):
        invoke(frame, target, Arguments(given.items or () if given is not None else ()), node)
    return unknown(frame.key(node))


_Handler = Callable[[Frame, ast.Call, Arguments], Value]
_BUILTINS: dict[str, _Handler] = {
    **dict.fromkeys(_KEPT, _kept), **dict.fromkeys(_SHAPELESS, _shapeless), "len": _length, "range": _range,
    "getattr": _getattr, "next": _next, "super": _super, "set": _set, "frozenset": _set, "map": _map,
    **dict.fromkeys(("list", "tuple", "iter", "enumerate", "sorted", "dict", "reversed", "zip"), _collected),
}  # fmt: skip
_SPECIAL: dict[str, _Handler] = {
    "threading.Thread": _thread,
    "os.environ.get": _environ_get, "os.getenv": _environ_get, "functools.partial": _functools_partial,
    **{f"torch.{name}": _selected for name in SELECTING},
    **{f"torch.{name}": functools.partial(_made, count) for name, count in MAKING.items()},
    "copy.copy": _same, "copy.deepcopy": _same, "torch.compile": _same, "tqdm.tqdm": _same, "tqdm.auto.tqdm": _same,
    **dict.fromkeys(("torch.utils.data.DataLoader", "torchdata.stateful_dataloader.StatefulDataLoader"), _loader),
    # The worlds are those of a distributed job.
    "torch.distributed.is_initialized": lambda frame, node, arguments: constant(True),
    "torch.distributed.is_available": lambda frame, node, arguments: constant(True),
    **dict.fromkeys(("torch.is_tensor", "torch.is_floating_point", "torch.is_complex"), _shapeless),
    "typing.cast": lambda frame, node, arguments: arguments.positional[-1] if arguments.positional else constant(None),
}  # fmt: skip

HANDLERS[ast.Call] = call

__all__ = ["Arguments", "bind", "call", "communicate", "invoke"]
