"""A callee as its callers need it: its effects, or one event where it is large or the ranks diverge in it."""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable

from ddp_lint.divergence import worlds
from ddp_lint.divergence.build import build
from ddp_lint.divergence.definitions import is_generator
from ddp_lint.divergence.effects import Branch, Effect, Emitted, Inline, Leave, choices, is_larger, matters
from ddp_lint.divergence.frame import Frame
from ddp_lint.divergence.groups import Group
from ddp_lint.divergence.references import FunctionRef
from ddp_lint.divergence.values import Condition, Test, negated
from ddp_lint.divergence.words import CONFIDENCES, Emit, Letter, Projection, Words, guards_of_all, streams_of

#: Effects of a callee that are spliced into its caller; a larger one stays one letter.
_SPLICED = 160


def compacted(frame: Frame, function: FunctionRef) -> list[Effect]:
    """The callee as its callers need it: nothing, its effects, or one letter for a large or unbalanced one."""
    effects = frame.effects
    if not matters(effects):
        if _may_exit(effects) or _may_raise_on_some(effects):
            return effects
        last = effects[-1] if effects else None
        if not isinstance(last, Leave) or last.what != "raise" or frame.returned:
            return []
        # an abstract method is another one at run time, which goes on
        return [Leave(last.what)] if last.raised != "NotImplementedError" else []
    if is_generator(function.node):
        return effects
    if is_larger(effects, _SPLICED):
        return _whole(effects, function.name)
    kept = function.closure is not None or not frame.summaries.whole
    return effects if kept else whole_if_parted(effects, function.name)


def _may_raise_on_some(effects: list[Effect]) -> bool:
    """Does it raise by an argument that differs between ranks: ``check(rank == 0)``?"""
    return any(
        isinstance(effect, Branch)
        and (varies := effect.test.varying()) is not None
        and varies.foreign > 0
        and any(isinstance(inner, Leave) and inner.what == "raise" for inner in (*effect.yes, *effect.no))
        for effect in effects
    )


def _may_exit(effects: list[Effect]) -> bool:
    """Does the process end, without an error, on some way through?"""
    return any(
        (isinstance(effect, Leave) and effect.what == "exit")
        or (isinstance(effect, Branch) and (_may_exit(effect.yes) or _may_exit(effect.no)))
        or (isinstance(effect, Inline) and _may_exit(effect.effects))
        for effect in effects
    )


def whole_if_parted(effects: list[Effect], name: str) -> list[Effect]:
    """What makes the ranks diverge by itself is reported where it is; around it, it is one event."""
    if not matters(effects) or not any(condition.may_part for condition in choices(effects)):
        return effects
    words = Words()
    start = build(effects, words)
    if any(atom.varies is not None and atom.varies.foreign for atom in _atoms(words)):
        return effects
    parted = any(_parts(words, start, stream) for stream in list(streams_of(words.nodes)))
    return _whole(effects, name) if parted else effects


def _whole(effects: list[Effect], name: str) -> list[Effect]:
    words = Words()
    start = build(effects, words)
    streams = frozenset(streams_of(words.nodes))
    letters = [node.letter for node in reversed(words.nodes) if isinstance(node, Emit)]
    if not letters:
        return []
    surest = max(letters, key=lambda letter: CONFIDENCES.index(letter.confidence))
    whole: Letter = dataclasses.replace(
        surest, op=name, kind="collective", group=Group(), streams=streams, root=None, reduce_op=None
    )
    kept: list[Effect] = [Emitted(whole)]
    for condition, outcome in guards_of_all(words, start):
        atom = Test("atom", atom=condition)
        kept = [Branch(atom if outcome else negated(atom), kept, [], whole.span)]
    return kept


def _atoms(words: Words) -> list[Condition]:
    from ddp_lint.divergence.words import Choice

    return [node.condition for node in words.nodes if isinstance(node, Choice)]


def _parts(words: Words, start: object, stream: Hashable) -> bool:
    projection = Projection(words, stream)
    group = stream if isinstance(stream, Group) else Group()
    taking_part = [number for number, world in enumerate(worlds.WORLDS) if group.may_hold(world)]
    numbers = {projection.numbers[world][start.number] for world in taking_part}  # type: ignore[attr-defined]
    return len(numbers) > 1
