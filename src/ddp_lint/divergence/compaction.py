"""A callee as its callers need it: its effects, or one event where it is large or the ranks diverge in it."""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Iterator

from ddp_lint.divergence import worlds
from ddp_lint.divergence.build import build
from ddp_lint.divergence.definitions import is_generator
from ddp_lint.divergence.effects import (
    Branch,
    Effect,
    EventStep,
    Inline,
    Leave,
    choices,
    flat,
    is_larger,
    matters,
    may_exit,
)
from ddp_lint.divergence.event_graph import (
    CONFIDENCES,
    PART,
    Event,
    EventGraph,
    EventNode,
    Projection,
    guards_of_all,
    streams_of,
)
from ddp_lint.divergence.frame import Frame, reference_of
from ddp_lint.divergence.groups import Group
from ddp_lint.divergence.references import External, FunctionRef, Partial
from ddp_lint.divergence.values import Condition, Test, negated
from ddp_lint.findings import Confidence
from ddp_lint.source.syntax import parameters

#: Effects of a callee that are spliced into its caller; a larger one stays one event.
_SPLICED = 160
#: The same where the outcome of a difference inside the callee is needed, which a single event would hide.
_SPLICED_TO_SEE = 4_000
#: Kinds of events that follow the forward of a replica.
_OF_STEPS = frozenset({"backward", "step"})
#: What a parameter is that can be called.
_CALLED = (FunctionRef, Partial, External)


def compacted(frame: Frame, function: FunctionRef) -> list[Effect]:
    """The callee as its callers need it: nothing, its effects, or one event for a large or unbalanced one."""
    effects = frame.effects
    if not matters(effects):
        if may_exit(effects) or _may_raise_on_some(effects):
            return effects
        last = effects[-1] if effects else None
        if not isinstance(last, Leave) or last.what != "raise" or frame.returned:
            return []
        # an abstract method is another one at run time, which goes on
        return [Leave(last.what)] if last.raised != "NotImplementedError" else []
    if is_generator(function.node):
        return effects
    if is_larger(effects, _SPLICED if frame.summaries.whole else _SPLICED_TO_SEE):
        return _whole(effects, function.name)
    kept = function.closure is not None or not frame.summaries.whole or _runs_given(frame, function)
    return effects if kept else whole_if_diverging(effects, function.name)


def _runs_given(frame: Frame, function: FunctionRef) -> bool:
    """Does it call a function that it was given: ``def on_main(fn): if rank == 0: fn()``? Seen by itself, it calls
    nothing that is known: that the ranks diverge in it shows where it is called."""
    names = {p.arg for p in parameters(function.node) if isinstance(reference_of(frame.env.get(p.arg)), _CALLED)}
    return bool(names) and not names.isdisjoint(_called(frame.effects))


def _called(effects: list[Effect]) -> Iterator[str]:
    """The calls that communicate, as they are written, those within callees too. Each list of effects once: callees
    that are called in several places have the same ones."""
    stack, seen = [effects], {id(effects)}
    while stack:
        for effect in flat(stack.pop()):
            if isinstance(effect, EventStep):
                yield effect.event.call
            elif isinstance(effect, Inline):
                yield effect.text
                if id(effect.effects) not in seen:
                    seen.add(id(effect.effects))
                    stack.append(effect.effects)


def _may_raise_on_some(effects: list[Effect]) -> bool:
    """Does it raise by an argument that differs between ranks, ``check(rank == 0)``, or on some ranks by itself?"""
    return any(
        isinstance(effect, Branch)
        and (varies := effect.test.varying()) is not None
        and (varies.call_depth > 0 or varies.cause == "rank")
        and any(isinstance(inner, Leave) and inner.what == "raise" for inner in (*effect.yes, *effect.no))
        for effect in effects
    )


def whole_if_diverging(effects: list[Effect], name: str) -> list[Effect]:
    """What makes the ranks diverge by itself is reported where it is; around it, it is one event."""
    if not matters(effects) or not any(condition.may_diverge for condition in choices(effects)):
        return effects
    graph = EventGraph()
    start = build(effects, graph)
    if any(atom.varies is not None and atom.varies.call_depth for atom in _atoms(graph)):
        return effects
    fork = any(_parts(graph, start, stream) for stream in list(streams_of(graph.nodes)))
    return _whole(effects, name) if fork else effects


def _whole(effects: list[Effect], name: str) -> list[Effect]:
    graph = EventGraph()
    start = build(effects, graph)
    streams = tuple(stream for stream in streams_of(graph.nodes) if stream != PART)
    all_events = [node.event for node in reversed(graph.nodes) if isinstance(node, EventNode)]
    events = [event for event in all_events if event.streams or event.kind != PART]
    parts = [event for event in all_events if not event.streams and event.kind == PART]
    of_parts: list[Effect] = [EventStep(dataclasses.replace(part, op=name)) for part in parts[:1]]
    if not events:
        return of_parts
    surest = max(events, key=lambda event: CONFIDENCES.index(event.confidence))
    sure = [event for event in events if event.confidence is not Confidence.LOW]
    group = Group(hidden=bool(sure) and all(event.group.hidden for event in sure))
    whole: Event = dataclasses.replace(
        surest, op=name, kind="collective", group=group, streams=streams, root=None, reduce_op=None,
        replica=_replica_of(events),
        shares_statistics=all(each.shares_statistics for each in events), quiet=all(each.quiet for each in events),
    )  # fmt: skip
    kept: list[Effect] = [EventStep(whole)]
    for condition, outcome in guards_of_all(graph, start):
        atom = Test("atom", atom=condition)
        kept = [Branch(atom if outcome else negated(atom), kept, [], whole.span)]
    return [*of_parts, *kept]


def _replica_of(events: list[Event]) -> str:
    """The replica whose forwards all of the events are, or what follows these."""
    names = {event.replica for event in events if event.kind not in _OF_STEPS}
    return names.pop() if len(names) == 1 else ""


def _atoms(graph: EventGraph) -> list[Condition]:
    from ddp_lint.divergence.event_graph import Choice

    return [node.condition for node in graph.nodes if isinstance(node, Choice)]


def _parts(graph: EventGraph, start: object, stream: Hashable) -> bool:
    projection = Projection(graph, stream)
    group = stream if isinstance(stream, Group) else Group()
    taking_part = [number for number, world in enumerate(worlds.WORLDS) if group.may_hold(world)]
    numbers = {projection.numbers[world][start.number] for world in taking_part}  # type: ignore[attr-defined]
    return len(numbers) > 1
