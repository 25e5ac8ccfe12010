"""Which of the compared ranks a group leaves out, from the list that it is made of."""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Hashable
from typing import Final

from ddp_lint.divergence import worlds
from ddp_lint.divergence.expressions import evaluate
from ddp_lint.divergence.frame import Frame
from ddp_lint.divergence.groups import Group, listed_ranks
from ddp_lint.divergence.values import (
    Known,
    Value,
    Variation,
    is_every_rank,
    is_last_number,
    made_of_range,
    per_rank,
    unknown,
)

#: How the key of a list begins that is known to leave some of the compared ranks out.
_RANKS: Final = "ranks"
_RANK = Variation("rank", "the rank")
#: Arguments of a `range` that has a step, and of one that has a start.
_WITH_STEP, _WITH_START = 3, 2


def with_members(group: Group, ranks: Value | None) -> Group:
    """The group with what its list shows: all of its members, those of the compared ranks that it leaves out, or
    nothing, because the list is computed from what only the run knows."""
    members = listed_ranks([ranks])
    if members or ranks is None or group.is_world:
        return dataclasses.replace(group, members=members)
    bounds = made_of_range(ranks)
    if len(bounds) == _WITH_START:  # the ranks of one node
        return dataclasses.replace(group, computed="neighbours")
    outside = _left_out(ranks, bounds)
    return dataclasses.replace(group, outside=outside or (), computed="any" if outside is None else "")


def members_as_written(ranks: Value) -> tuple[Hashable, ...]:
    """The numbers of a list of ranks, or the bounds of their range (no arms of a test write one list in two ways); ()
    where neither is known."""
    bounds = made_of_range(ranks)
    return listed_ranks([ranks]) or (bounds[1:] if len(bounds) == _WITH_START and _number(bounds[0]) == 0 else bounds)


def _left_out(ranks: Value, bounds: tuple[Hashable, ...]) -> tuple[int, ...] | None:
    """The compared ranks that are not in the list; None where the list does not show it."""
    key = getattr(ranks.components[0], "key", None)
    if ranks.kind == _RANKS and isinstance(key, tuple):
        left_out: tuple[int, ...] = key[1]
        return left_out
    if len(bounds) == 1 and isinstance(bounds[0], tuple) and is_last_number(bounds[0][0]):
        return (worlds.WORLDS[worlds.LAST].rank,)
    if len(bounds) != _WITH_STEP:
        return None
    start, _, step = map(_number, bounds)
    return _apart_from(start, step) if start is not None and step else None


def _number(key: object) -> int | None:
    """The number whose key it is, where it is the same on all ranks."""
    first = key[0] if isinstance(key, tuple) and len(set(key)) == 1 else None
    return first.value if isinstance(first, Known) and type(first.value) is int else None


def _apart_from(start: int, step: int) -> tuple[int, ...]:
    """The compared ranks that are not `start`, `start + step`, and so on."""
    ranks = [world.rank for world in worlds.WORLDS]
    return tuple(rank for rank in ranks if rank < start or (rank - start) % step)


def of_comprehension(frame: Frame, node: ast.AST, iterable: Value) -> Value | None:
    """``[r for r in range(world_size) if r % 8 == 0]`` and ``[8 * n for n in range(nodes)]``, as the list of ranks that
    it would be; None where it shows nothing of them."""
    if not isinstance(node, ast.ListComp) or len(node.generators) != 1:
        return None
    generator = node.generators[0]
    if not isinstance(generator.target, ast.Name):
        return None
    if generator.ifs and isinstance(node.elt, ast.Name) and node.elt.id == generator.target.id:
        left_out = _filtered_out(frame, generator) if is_every_rank(iterable) else None
    else:
        left_out = _between(frame, node.elt, generator.target.id) if not generator.ifs else None
    return unknown((_RANKS, left_out, frame.key(node))) if left_out is not None else None


def _filtered_out(frame: Frame, generator: ast.comprehension) -> tuple[int, ...] | None:
    """The compared ranks for which a condition of the comprehension is false; None where one is not known."""
    assert isinstance(generator.target, ast.Name)
    outer, frame.effects = frame.effects, []
    ranks = [world.rank for world in worlds.WORLDS]
    with frame.env.for_a_while():
        frame.env[generator.target.id] = per_rank(tuple(ranks), _RANK)
        held = [evaluate(frame, condition).components for condition in generator.ifs]
    frame.effects = outer
    if not all(isinstance(part, Known) for components in held for part in components):
        return None
    by_world = zip(ranks, zip(*held, strict=True), strict=True)
    return tuple(rank for rank, parts in by_world if not all(getattr(part, "value", True) for part in parts))


def _between(frame: Frame, element: ast.expr, name: str) -> tuple[int, ...] | None:
    """The compared ranks that are no ``number * step``; None where the element is anything else."""
    if not isinstance(element, ast.BinOp) or not isinstance(element.op, ast.Mult):
        return None
    factors = [element.left, element.right]
    others = [factor for factor in factors if not (isinstance(factor, ast.Name) and factor.id == name)]
    step = evaluate(frame, others[0]).constant if len(others) == 1 else None
    return _apart_from(0, step.value) if step is not None and type(step.value) is int and step.value > 0 else None
