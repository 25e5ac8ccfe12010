"""Lists of the project's objects, some of which are there on some ranks alone: ``if rank == 0: hooks.append(Saver())``.
What a loop over the list does on each rank follows from these objects."""

from __future__ import annotations

import ast
from collections.abc import Hashable, Sequence

from ddp_lint.divergence import references as ref
from ddp_lint.divergence.effects import Attempt, Branch, Effect, EventStep, Rounds
from ddp_lint.divergence.frame import Frame
from ddp_lint.divergence.values import GROWN, Test, Value, divergent, negated, unknown

#: Objects of one list that are told apart.
_OBJECTS = 8


def with_objects(frame: Frame, node: ast.AST, before: Value, added: Sequence[Value]) -> Value | None:
    """The list once objects were added to it, on some ranks alone or after some that are; None for any other."""
    test = next((test for test in (*frame.path, *frame.staying) if _is_of_rank(test)), None)
    held = _held(before)
    objects = [(value, test or _always(value)) for value in added if _is_object(value)]
    if held is None or not objects or (test is None and not isinstance(before.reference, ref.ListOf)):
        return None
    return _listed(before, [*held, *objects], frame.key(node), test)


def registered(key: Hashable, objects: Sequence[tuple[Value, Test]]) -> Value | None:
    """A list as far as some ranks alone add these objects to it, each under its test; None where there is none."""
    held = [(value, test) for value, test in objects if _is_object(value)]
    return _listed(unknown(key), held, key, held[0][1]) if held else None


def parts_of(value: Value) -> list[tuple[Value, Test | None]]:
    """The objects of a list, each with the test of the rank that has it; none of anything else."""
    return [(part, test if _is_of_rank(test) else None) for part, test in _held(value) or ()]


def of_either(merged: Value, yes: Value, no: Value, test: Test) -> Value:
    """What is one of two lists by a test of the rank: an object that only one has is there on the ranks of its arm."""
    first, second = _held(yes), _held(no)
    if first is None or second is None or not _is_of_rank(test):
        return merged
    grown = any(isinstance(value.reference, ref.ListOf) for value in (yes, no))
    if not grown and (yes.items is None or no.items is None or len(yes.items) == len(no.items)):
        return merged
    both = {_of(value) for value, _ in first} & {_of(value) for value, _ in second} if not grown else set()
    arms = ((first, test), (second, negated(test)))
    own = [(value, held if grown else arm) for of, arm in arms for value, held in of if _of(value) not in both]
    shared = [way for way in first if _of(way[0]) in both]
    return _listed(merged, shared + own, merged.key, test) if own else merged


def is_counted(iterable: Value, body: list[Effect]) -> bool:
    """Do the rounds of a loop matter by themselves? Not those over such a list, where all that a round does with the
    other ranks is done by its object."""
    of = iterable.reference.of if isinstance(iterable.reference, ref.Enumerated) else iterable.reference
    return not isinstance(of, ref.ListOf) or _communicates_itself(body)


def _communicates_itself(body: list[Effect]) -> bool:
    return any(
        isinstance(effect, EventStep)
        or (isinstance(effect, Branch) and (_communicates_itself(effect.yes) or _communicates_itself(effect.no)))
        or (isinstance(effect, (Rounds, Attempt)) and _communicates_itself(effect.body))
        for effect in body
    )


def _listed(before: Value, held: list[tuple[Value, Test]], key: object, test: Test | None) -> Value:
    each: dict[object, tuple[Value, Test]] = {}
    for value, when in held:
        each.setdefault((_of(value), when), (value, when))
    of = ref.OneOf(*zip(*list(each.values())[:_OBJECTS], strict=True))
    varies = before.varies if test is None else test.varying()
    assert varies is not None
    return divergent((GROWN, key), varies).with_reference(ref.ListOf(of))


def _held(value: Value) -> list[tuple[Value, Test]] | None:
    """The objects of a list, each with the ranks that have it; None of anything else."""
    if isinstance(value.reference, ref.ListOf):
        return list(zip(value.reference.of.values, value.reference.of.tests, strict=True))
    if value.items is None:
        return None
    return [(item, _always(item)) for item in value.items if _is_object(item)]


def _always(value: Value) -> Test:
    """On each rank: that a round is the one of this object, all know alike."""
    return unknown(("held", value.key)).truth("it is this one")


def _is_object(value: Value) -> bool:
    of = value.reference
    return isinstance(of, ref.FunctionRef) or (isinstance(of, ref.Instance) and isinstance(of.of, ref.ClassRef))


def _of(value: Value) -> object:
    return value.reference.of if isinstance(value.reference, ref.Instance) else value.reference


def _is_of_rank(test: Test) -> bool:
    varies = test.varying()
    return varies is not None and varies.by_rank_or_place and not varies.local_only
