"""What a communicating call of the knowledge does: its event, what it agrees on, and what comes back."""

from __future__ import annotations

import ast
import dataclasses
import re
from collections.abc import Hashable, Sequence
from typing import NamedTuple

from ddp_lint.divergence import references as ref
from ddp_lint.divergence.arguments import Arguments
from ddp_lint.divergence.backends import under_its_backends
from ddp_lint.divergence.calls_by_name import goes_around_wrapper, is_agreement, is_of_wrapped_model
from ddp_lint.divergence.definitions import MODEL
from ddp_lint.divergence.effects import Branch, Effect, EventStep
from ddp_lint.divergence.event_graph import Event
from ddp_lint.divergence.expressions import container, dotted, evaluate, passed_on
from ddp_lint.divergence.frame import LEFT_JOB, Frame, reference_of
from ddp_lint.divergence.group_members import members_as_written, with_members
from ddp_lint.divergence.groups import WORLD_AXIS, Group, named, names_group, of_callee
from ddp_lint.divergence.lengths import is_loader, is_undivided
from ddp_lint.divergence.losses import without_gradients
from ddp_lint.divergence.outputs import keys_of_output
from ddp_lint.divergence.references import ClassRef
from ddp_lint.divergence.resolve import known
from ddp_lint.divergence.selections import (
    handed,
    is_of_each_token,
    is_padded,
    is_selection,
    is_sized,
    needs_one_shape,
    own_longest,
    own_size,
)
from ddp_lint.divergence.values import (
    ALWAYS,
    NEVER,
    PREPARED,
    Known,
    Symbol,
    Value,
    Variation,
    constant,
    dictionary,
    divergent,
    holding,
    is_every_rank,
    is_on,
    loose_of,
    negated,
    unknown,
)
from ddp_lint.findings import Confidence, Label
from ddp_lint.knowledge.communication import LEARNING_RATE, Collective, Source
from ddp_lint.knowledge.frameworks import every
from ddp_lint.knowledge.project_names import last
from ddp_lint.project.parts import children, kept_by_node
from ddp_lint.project.requirements import requires_older
from ddp_lint.project.uses import Use, uses
from ddp_lint.source.imports import last_part
from ddp_lint.source.syntax import FunctionNode, calls_below, parameters

#: Files that a function is called in; beyond it, one of them may well have wrapped its model.
_FILES = 8
_GROUP = "group"
#: What the file that sets up a job shows of it, and not that of each helper.
_OF_JOB = ("sharded", "launched")
_CONFIGURED = "the project's configuration"
_WRAPS = re.compile(
    r"DataParallel$|\b(Distributed)?DDP$|\bFSDP$|fully_shard|prepare$|deepspeed\.initialize|parallelize"
)
_SHARDS = re.compile(r"fully_shard|shard_model|FullyShardedDataParallel|\bFSDP$|parallelize|prepare$")


def communicate(
    frame: Frame, entry: Collective, arguments: Arguments, node: ast.Call, *, guessed: bool = False,
    confidence: Confidence = Confidence.HIGH,
) -> Value:  # fmt: skip
    """Emit the event of a knowledge entry and give what the call returns."""
    key = ("result", entry.op, frame.text(node))
    if entry.since and _is_of_later_release(frame, entry):
        entry = dataclasses.replace(entry, when=entry.earlier)
    if (
        entry.kind in ("p2p", "local")
        or frame.single
        or not happens(entry, arguments)
        or _is_of_loaders(entry, arguments)
    ):
        _turn_arguments(frame, entry, arguments)
        _receive(frame, entry, arguments)
        return _result(frame, entry, arguments, node, key)
    if entry.kind == "leave" and not arguments.values:  # what a rank does from here on, it does alone
        frame.env[LEFT_JOB] = constant(1)
    broadcasts = _broadcasts_buffers(frame, node) if entry.when == "buffers" else True
    if broadcasts is False or _is_of_one_process(frame, entry, node, guessed):
        return passed_on(frame, node, arguments.values, key)
    evident = _is_evident(frame, entry, node, guessed)
    if guessed:
        confidence = Confidence.LOW if entry.when and not evident else Confidence.MEDIUM
    elif entry.when:
        confidence = Confidence.MEDIUM if evident else Confidence.LOW
    unproven = entry.when if entry.when in _OF_JOB and not evident else ""
    if entry.when == "sharded" and _is_sharded_later(frame, node):
        confidence, unproven = Confidence.LOW, ""
    if broadcasts is None:
        confidence = Confidence.LOW
    group = group_of(frame, *arguments.get(entry.group, entry.takes)) if entry.group else Group()
    if group.is_world and entry.scope != "world":
        group = Group(entry.scope, entry.scope)
    given = arguments.get(entry.group, entry.takes)
    if not group.is_world and (_may_be_no_member(frame, *given) or _is_kept_by_some(frame, *given)):
        confidence, unproven = Confidence.LOW, ""
    if entry.kind == "group":  # made by the whole world, or by the ranks of a mesh
        is_method = entry.name.rpartition(".")[0] in known().types and isinstance(node.func, ast.Attribute)
        group = named(frame.text(node.func.value)) if is_method and isinstance(node.func, ast.Attribute) else Group()
    root = arguments.get(entry.root, entry.takes)[0] if entry.root else None
    reduce_op = arguments.get(entry.reduce_op, entry.takes)[0] if entry.reduce_op else None
    event = Event(
        entry.op, entry.kind, group, frame.span(node), frame.text(node.func), entry.implicit, entry.condition, evident,
        confidence, root, reduce_op, _uneven_payload(frame, entry, arguments, node, group),
        _own_number(entry, arguments), _own_key(entry, arguments), *_members(entry, arguments),
        buffer=dotted(node.args[0]) if node.args else "", unproven=unproven,
        replica=last_part(node.func) if entry.kind == "forward" and entry.when == "buffers" else "",
        quiet=frame.is_quiet,
        shares_statistics=entry.when == "statistics", at_end=_is_at_end(frame, entry, arguments),
    )  # fmt: skip
    frame.effects.append(_where_it_comes_about(frame, entry, event, arguments, node))
    for name in entry.uniform:
        agree(frame, arguments.get(name, entry.takes)[1])
    _receive(frame, entry, arguments)
    _turn_arguments(frame, entry, arguments)
    return _result(frame, entry, arguments, node, key)


def backward_of_result(frame: Frame, value: Value, node: ast.Return) -> None:
    """A framework goes backward from what a training step has returned, where that is a loss with gradients."""
    loose = loose_of(value)
    if value.constant is not None or loose == ALWAYS or frame.single:
        return
    step = Event(
        "backward", "backward", Group(), frame.span(node), "backward", implicit=True, confidence=Confidence.MEDIUM
    )
    tests = [test for test in (loose, value.missing) if test not in (None, ALWAYS, NEVER)]
    effect: Effect = EventStep(dataclasses.replace(step, loose=tests[:1] == [loose]))
    for test in tests:
        assert test is not None
        effect = Branch(negated(test), [effect], [], step.span)
    frame.effects.append(effect)


def _where_it_comes_about(
    frame: Frame, entry: Collective, event: Event, arguments: Arguments, node: ast.Call
) -> Effect:
    """The event; of a backward, where it reaches parameters."""
    if entry.backends:
        return under_its_backends(frame, entry, EventStep(event))
    loose = without_gradients(frame, arguments, node) if event.kind == "backward" else None
    if loose is None:
        return EventStep(event)
    return Branch(negated(loose), [EventStep(dataclasses.replace(event, loose=True))], [], event.span)


def _is_evident(frame: Frame, entry: Collective, node: ast.Call, guessed: bool) -> bool:
    """Is there evidence that the object is one for which the call communicates: here, or where it was made?"""
    evidence = frame.summaries.evidence
    if not guessed and known().is_metric(entry.name.rpartition(".")[0]):
        return True
    model = reference_of(container(frame, node.func)) if entry.when == "buffers" else None
    if isinstance(model, ref.Instance) and (model.inside is not None or model.buffered):
        return model.inside is None or evidence.has_buffers(model.inside)
    return evidence.shows(frame.facts, frame.owner, entry.when)


def _broadcasts_buffers(frame: Frame, node: ast.Call) -> bool | None:
    """Whether the forward of a wrapped model broadcasts its buffers, by the flag that the wrapper was made with."""
    model = reference_of(container(frame, node.func))
    return model.broadcasts if isinstance(model, ref.Instance) else True


def _is_of_loaders(entry: Collective, arguments: Arguments) -> bool:
    """Is it a call that communicates for models, and gets loaders alone?"""
    texts = [dotted(node) for node in arguments.nodes.values()]
    given = zip(arguments.positional, texts, strict=False)
    only = bool(texts) and len(texts) == len(arguments.positional) and not arguments.starred
    return entry.models and only and all(is_loader(value, text) or is_undivided(value) for value, text in given)


def _is_of_one_process(frame: Frame, entry: Collective, node: ast.Call, guessed: bool) -> bool:
    """Is it a forward, a backward or a step in a file that wraps no models for several ranks, or before the wrap? One
    that a caller has wrapped and passed communicates in any file."""
    if entry.kind not in ("backward", "step", "forward", "leave"):
        return False
    if entry.kind == "step" and goes_around_wrapper(frame):
        return True
    if entry.op == LEARNING_RATE and not _calls_by_name(frame):
        return False
    handed_over = entry.kind == "forward" and not guessed
    if entry.kind == "backward":  # an accelerator's or an engine's is for several ranks, wherever it was made
        handed_over = is_of_wrapped_model(frame, node) if entry.name.startswith("torch.") else True
    shown = handed_over or frame.summaries.evidence.is_distributed(frame.facts, frame.owner)
    if not shown or _is_wrapped_later(frame, node):
        return True
    return not handed_over and (_is_of_the_other_way(frame) or _is_called_before_wraps(frame))


def _calls_by_name(frame: Frame) -> bool:
    """Do the processes of the file's program call functions of each other? What one of them sets is its own then: it
    has no replica, unless the file wraps one, too."""
    return any(name.startswith("torch.distributed.rpc") for name in frame.facts.imports.names.values())


def _is_of_later_release(frame: Frame, entry: Collective) -> bool:
    """Whether what an entry says holds since a release that the project does not have."""
    package = entry.name.partition(".")[0]
    names = every(lambda framework: framework.packages if package in framework.packages else ())
    project, inside = frame.linker.project, frame.facts.source.inside
    return any(requires_older(project, name, entry.since, inside) for name in names)


def _is_of_the_other_way(frame: Frame) -> bool:
    """Is it in a function that takes its model as it is, where all that the file wraps is trained by the functions that
    wrap it (``train_with_deepspeed``, next to ``train_without``)? Unless one that calls it may have wrapped that
    model."""
    node, project = frame.function, frame.linker.project
    if not isinstance(node, ast.FunctionDef) or node.name not in _trained_as_given(frame.facts.tree):
        return False
    paths = project.contents.holding(f"{node.name}(")
    callers = [facts for path in paths[:_FILES] if (facts := project.modules.facts_of(path)) is not None]
    return len(paths) <= _FILES and not any(
        project.texts.shows(facts, "wraps") for facts in callers if facts.name != frame.facts.name
    )


@kept_by_node(256)
def _trained_as_given(tree: ast.Module) -> frozenset[str]:
    """The functions of a file that take a model and wrap none, where each of those that wrap one goes backward itself,
    and calls none of these. None at all where something else wraps."""
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    called = {name: [dotted(call.func) for call in calls_below(node)] for name, node in functions.items()}
    wrapping = {name for name, names in called.items() if any(map(_WRAPS.search, names))}
    others = (node for node in tree.body if not isinstance(node, ast.FunctionDef))
    elsewhere = any(_WRAPS.search(dotted(call.func)) for node in others for call in calls_below(node))
    if elsewhere or not all(any(last(name) == "backward" for name in called[each]) for each in wrapping):
        return frozenset()
    reached, stack = set(wrapping), list(wrapping)
    while stack:
        more = {name for name in called[stack.pop()] if name in functions} - reached
        reached |= more
        stack += more
    takes = {name for name, node in functions.items() if any(MODEL.search(p.arg) for p in parameters(node))}
    return frozenset(takes - reached) if wrapping else frozenset()


def _may_be_no_member(frame: Frame, group: Value | None, node: ast.expr | None) -> bool:
    """Is the call under a test that this rank has such a group at all, and under one of its place that only the run
    decides (``rank == src``)? Then the group may consist of the ranks that reach the call."""
    if group is None or node is None:
        return False
    tests = [atom for test in frame.path for atom in test.atoms()]
    asks = ("truth", Symbol((("compare", "Is", (group.key, constant(None).key)), tuple(set(group.components)))))
    placed = any(atom.open and atom.by_rank for atom in tests)
    return placed and any(asks in atom.truths for atom in tests)


def _is_kept_by_some(frame: Frame, group: Value | None, node: ast.expr | None) -> bool:
    """Was it, or the list that holds it, kept under a test of the rank, or made for an address of this host, and not by
    `new_group`? Then its other members are processes of another kind (inference servers)."""
    if isinstance(node, ast.Subscript) and _is_kept_by_some(frame, evaluate(frame, node.value), None):
        return True
    varies = group.varies if group is not None else None
    if group is None or varies is None or isinstance(group.reference, ref.GroupRef):
        return False
    kept = varies.by_rank_or_place and (group.kind == "set" or Known(None) in group.components)
    return kept or varies.cause == "host"


def together(frame: Frame, name: str, arguments: Arguments, node: ast.Call) -> None:
    """The call of what the configuration calls a collective: for all ranks, or those of a group it is given."""
    op, place = last(name), _place_of_group(frame, arguments)
    takes = (*("",) * place, _GROUP) if isinstance(place, int) else ()
    group = _GROUP if isinstance(place, int) else place or ""
    communicate(frame, Collective(name=name, op=op, takes=takes, group=group, evidence=_CONFIGURED), arguments, node)
    if is_agreement(op):
        for argument in arguments.nodes.values():
            agree(frame, argument)


def group_among(frame: Frame, arguments: Arguments) -> Group:
    """The group that is given to a function whose parameters are not known, the world where none is called one."""
    place = _place_of_group(frame, arguments)
    if place is None:
        return Group()
    value = arguments.positional[place] if isinstance(place, int) else arguments.keywords[place]
    return group_of(frame, value, arguments.nodes[place])


def _place_of_group(frame: Frame, arguments: Arguments) -> int | str | None:
    """Which argument says that it is a process group, by its value, its keyword or its own name."""
    for place, argument in arguments.nodes.items():
        value = arguments.positional[place] if isinstance(place, int) else arguments.keywords[place]
        named_so = isinstance(place, str) and names_group(place)
        if named_so or isinstance(value.reference, ref.GroupRef) or names_group(frame.text(argument)):
            return place
    return None


def _turn_arguments(frame: Frame, entry: Collective, arguments: Arguments) -> None:
    for name, type_ in entry.turns.items():
        turn(frame, arguments.get(name, entry.takes)[1], type_)


def turn(frame: Frame, argument: ast.expr | None, type_: str) -> None:
    """After the call the argument is an object of this class."""
    path = dotted(argument) if argument is not None else ""
    if path:
        frame.env[path] = unknown(("turned", path), ref.Instance(type_))
        frame.turned[path] = type_


def _is_wrapped_later(frame: Frame, node: ast.Call) -> bool:
    """Is the model still no replica: the function wraps one further down, none before, and in no loop around both?"""
    scope = _scope(frame.function or frame.facts.tree)
    if not _come_later(scope.wraps, node):
        return False
    return not any(loop.lineno < node.lineno < (loop.end_lineno or 0) for loop in scope.loops)


def _is_called_before_wraps(frame: Frame) -> bool:
    """Is the function, or each object of the class, used by functions alone that wrap the model further down, once they
    are done with it: to find the batch size that fits, or a learning rate?"""
    node, owner = frame.function, frame.owner
    name = owner.node.name if owner is not None else getattr(node, "name", "")
    if node is None or not name or _scope(node).wraps or (owner is not None and not _is_plain(owner)):
        return False
    project = frame.linker.project

    def is_before() -> bool:
        paths = project.contents.holding(f"{name}(")
        found = [facts for path in paths[:_FILES] if (facts := project.modules.facts_of(path)) is not None]
        places = [use for facts in found if not facts.source.is_test for use in uses(facts, name)]
        before = all(_is_before_wraps(use, is_class=owner is not None) for use in places)
        return before and bool(places) and len(paths) <= _FILES

    called: bool = project.remember(("before wraps", frame.facts.name, name), is_before)
    return called


def _is_plain(owner: ClassRef) -> bool:
    """Does the class wrap nothing itself, and is it derived from none?"""
    methods = (method for method in owner.node.body if isinstance(method, FunctionNode))
    return not owner.node.bases and not any(_scope(method).wraps for method in methods)


def _is_before_wraps(use: Use, *, is_class: bool) -> bool:
    """Is it a call in a function that wraps a model further down alone, where it has no use any more for the object
    that was made?"""
    if use.call is None or use.around is None:
        return False
    scope = _scope(use.around)
    if not _come_later(scope.wraps, use.call):
        return False
    first = scope.wraps[0].lineno
    if any(loop.lineno < use.call.lineno and first <= (loop.end_lineno or 0) for loop in scope.loops):
        return False
    if not is_class:
        return True
    nodes = list(children(use.around))
    stores = (n for n in nodes if isinstance(n, ast.Assign) and n.value is use.call)
    kept = {dotted(target) for statement in stores for target in statement.targets}
    if any(isinstance(n, ast.Attribute) and n.value is use.call for n in nodes):
        return True
    return len(kept) == 1 and not any(
        isinstance(n, (ast.Name, ast.Attribute)) and n.lineno >= first and dotted(n) in kept for n in nodes
    )


def _is_sharded_later(frame: Frame, node: ast.Call) -> bool:
    """Is the object of the call still whole: the function shards it further down, and nowhere before?"""
    model = dotted(node.args[0]) if node.args else ""
    if not model or frame.function is None:
        return False
    calls = _scope(frame.function).shards
    return _come_later([call for call in calls if any(dotted(argument) == model for argument in call.args)], node)


class _Scope(NamedTuple):
    """Where a function, or a file outside of its functions, wraps models, shards them, and loops; calls by line."""

    wraps: list[ast.Call]
    shards: list[ast.Call]
    loops: list[ast.For | ast.While]


@kept_by_node(256)
def _scope(scope: ast.AST) -> _Scope:
    nodes = list(children(scope))
    in_order = sorted((n for n in nodes if isinstance(n, ast.Call)), key=lambda call: call.lineno)
    calls = [(dotted(call.func), call) for call in in_order]
    return _Scope(
        [call for name, call in calls if _WRAPS.search(name)],
        [call for name, call in calls if _SHARDS.search(name)],
        [n for n in nodes if isinstance(n, (ast.For, ast.While))],
    )


def _come_later(calls: list[ast.Call], node: ast.Call) -> bool:
    """Whether there are any calls, which are in the order of their lines, and all of them below this one."""
    return bool(calls) and calls[0].lineno > node.lineno


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
    gathered = group.is_world and "gather" in entry.op
    for value, at in pairs:
        varies = None
        if is_selection(value):
            own = value.varies is not None and (value.varies.aspect == "share" or value.varies.cause == "length")
            varies = value.varies if own else own_size(frame, at or node)
        elif gathered and (is_padded(value) or is_of_each_token(frame, value, at)):
            varies = own_longest(frame, at or node)
        elif is_sized(value) and needs_one_shape(entry.op):
            varies = value.varies
        if varies is not None:
            return dataclasses.replace(varies, call_depth=handed(value))
    return None


def _is_at_end(frame: Frame, entry: Collective, arguments: Arguments) -> bool:
    """Does the call communicate at the end of the epoch alone? By its flag, else by the method that it is in."""
    flag = arguments.get(entry.at_once, entry.takes)[0] if entry.at_once else None
    if flag is not None and flag.constant != Known(None):
        return flag.constant == Known(False)
    return bool(entry.at_end_in) and getattr(frame.function, "name", "") in entry.at_end_in


def _own_number(entry: Collective, arguments: Arguments) -> Variation | None:
    """Why the number by which the call decides is another one on each rank: ``plateau.step(loss.item())``."""
    number = arguments.get(entry.decides, entry.takes)[0] if entry.decides else None
    return number.varies if number is not None and number.open else None


def _own_key(entry: Collective, arguments: Arguments) -> Variation | None:
    """Why the name under which the ranks combine a value is another one on each: ``self.log(f"loss_{kind}", x)``."""
    name = arguments.get(entry.key, entry.takes)[0] if entry.key else None
    return name.varies if name is not None and name.open else None


def _members(entry: Collective, arguments: Arguments) -> tuple[Variation | None, tuple[Hashable, ...]]:
    """Why each rank makes a group of other members, where it names those of its own group alone; else the members, as
    far as they are known."""
    ranks = arguments.get(entry.ranks, entry.takes)[0] if entry.ranks else None
    parts = (ranks, *(ranks.items or ())) if ranks is not None else ()
    varies = next((part.varies for part in parts if part.varies is not None), None)
    if varies is not None:
        return (varies if varies.by_rank_or_place else None), ()
    return None, members_as_written(ranks) if ranks is not None else ()


def happens(entry: Collective | Source, arguments: Arguments) -> bool:
    for name, expected in entry.only_if.items() if isinstance(entry, Collective) else ():
        value = arguments.get(name, entry.takes)[0]
        if value is None or value.constant is None or value.constant.value != expected:
            return False
    for name, expected in entry.unless.items():
        value = arguments.get(name, entry.takes)[0]
        if value is not None and value.constant is not None and value.constant.value == expected:
            return False
    return True


def agree(frame: Frame, argument: ast.expr | None) -> None:
    """After the call the argument holds one value on all ranks."""
    if isinstance(argument, (ast.List, ast.Tuple)):
        for element in argument.elts:
            agree(frame, element)
        return
    while (
        isinstance(argument, ast.Call) and isinstance(argument.func, ast.Attribute) and argument.func.attr == "detach"
    ):
        argument = argument.func.value  # which has the same storage
    path = dotted(argument).removesuffix(".data") if argument is not None else ""
    if isinstance(argument, ast.Subscript):
        _agree_on_entry(frame, argument)
    if path:
        frame.env.forget_parts(path)
        reference = reference_of(frame.env.get(path))
        frame.env[path] = unknown(("agreed", path), reference, agreed=True)
        frame.agreed.add(path)
    elif isinstance(argument, ast.Subscript) and not any(test.varying() for test in frame.path):
        frame.agreed.add(frame.text(argument))  # see what a loop over the keys makes of it


def _receive(frame: Frame, entry: Collective, arguments: Arguments) -> None:
    """After the call these arguments hold what other ranks have sent, and no longer what they were made with."""
    for name in entry.receives:
        argument = arguments.get(name, entry.takes)[1]
        path = dotted(argument) if argument is not None else ""
        before = frame.env.get(path) if path else None
        if before is not None and (before.varies is None or before.by_rank):
            frame.env.forget_parts(path)
            frame.env[path] = unknown(("received", path), before.reference if before.items is None else None)


def _agree_on_entry(frame: Frame, argument: ast.Subscript) -> None:
    """``all_reduce(logs["loss"])``: an entry of a dictionary that is known."""
    path, key = dotted(argument.value), argument.slice
    base = frame.env.get(path) if path else None
    if base is None or base.entries is None or not isinstance(key, ast.Constant) or key.value not in base.entries:
        return
    entries = {**base.entries, key.value: unknown(("agreed", path, key.value), agreed=True)}
    own = next((entry.varies for entry in entries.values() if entry.varies is not None and entry.open), None)
    frame.env[path] = dictionary(("agreed", frame.key(argument), base.key), entries, own)


def _result(frame: Frame, entry: Collective, arguments: Arguments, node: ast.Call, key: Hashable) -> Value:
    if entry.returns == "group":
        ranks = arguments.get(entry.ranks, entry.takes)[0] if entry.ranks else None
        of_all = bool(entry.ranks) and not arguments.starred and (ranks is None or is_every_rank(ranks))
        axis = WORLD_AXIS if of_all else ""
        own = frame.owner is not None and not of_all
        group = with_members(Group(str(frame.key(node)), axis, own=own), ranks)
        return dataclasses.replace(unknown(frame.key(node), ref.GroupRef(group)), missing=NEVER)
    if len(entry.result) == 1 and entry.result[0]:
        model = _made(frame, entry.result[0], arguments.positional[:1])
        flag = arguments.get(entry.buffers, entry.takes)[0] if entry.buffers else None
        return unknown(frame.key(node), dataclasses.replace(model, broadcasts=is_on(flag)))
    if entry.result:
        items = tuple(
            unknown((key, index), ref.Instance(name) if name else None) for index, name in enumerate(entry.result)
        )
        return dataclasses.replace(unknown(key), items=items)
    made = known().type_of(entry.name)
    if made:
        return unknown(frame.key(node), ref.Instance(made))
    if entry.kind == "forward":
        return output_of_model(frame, arguments, node, key)
    if entry.models and arguments.positional and not arguments.starred:
        each = tuple(unknown((PREPARED, key, place)) for place in range(len(arguments.positional)))
        return each[0] if len(each) == 1 else holding(unknown(key), each)
    return unknown(key, agreed=entry.returns == "uniform")


def _made(frame: Frame, wrapper: str, given: Sequence[Value]) -> ref.Instance:
    """The object of a wrapper, with what is known of the model inside."""
    reference = given[0].reference if given else None
    each = [value.reference for value in reference.values] if isinstance(reference, ref.OneOf) else [reference]
    classes = [one.of for one in each if isinstance(one, ref.Instance) and not one.guessed]
    known_classes = [of for of in classes if isinstance(of, ref.ClassRef)]
    evidence = frame.summaries.evidence
    if len(known_classes) < len(each):
        return ref.Instance(wrapper, buffered=evidence.shows(frame.facts, frame.owner, "buffers"))
    if len(known_classes) > 1:
        return ref.Instance(wrapper, buffered=all(map(evidence.has_buffers, known_classes)))
    return ref.Instance(wrapper, inside=known_classes[0])


def output_of_model(frame: Frame, arguments: Arguments, node: ast.Call, key: Hashable) -> Value:
    """What a wrapped model gives: it follows from this rank's own batch, unless all ranks have agreed on that."""
    if (own := keys_of_output(frame, arguments, node)) is not None:
        return own
    value = passed_on(frame, node, arguments.values, key)
    source = known().source("call", "next")
    given = [argument for argument in arguments.values if argument.constant is None]
    if value.varies is not None or value.agreed or not given or source is None:
        return value
    origin = Label(frame.span(node), "the output of the model here depends on this rank's own batch")
    return divergent(key, Variation.of_source(source, origin))


def group_of(frame: Frame, value: Value | None, node: ast.expr | None) -> Group:
    if value is None or (value.constant is not None and value.constant.value is None):
        return Group()
    if isinstance(value.reference, ref.GroupRef):
        return value.reference.group
    text = frame.text(node) if node is not None else "group"
    if text.endswith("WORLD") or text.endswith("get_default_group()"):
        return Group()
    return of_callee(text) if frame.depth else named(text)
