"""Role programs: one rank runs one program, the others another, and both talk to each other in loops."""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Mapping
from typing import Final

from ddp_lint.divergence import worlds
from ddp_lint.divergence.event_graph import Choice, EventGraph, EventNode, Loop, ways
from ddp_lint.findings import Span


@dataclasses.dataclass(frozen=True)
class _Reached:
    """What a rank comes to from a node: loops in which it communicates, each with what it calls there, and all that it
    calls."""

    loops: Mapping[Span, frozenset[Hashable]]
    calls: frozenset[Hashable]


#: In place of a call that is kept whole: it may hold any other.
_ANY: Final = None
_NOTHING = _Reached({}, frozenset())


def roles(graph: EventGraph) -> frozenset[int]:
    """Identities of the rank conditions that give out roles: each outcome leads to communicating loops that the other
    does not have. How many rounds of the one match how many of the other no comparison of graphs can show, unless the
    other has no such call at all."""
    tests = [node for node in graph.nodes if isinstance(node, Choice) and _is_of_rank(node)]
    if not tests or len({node.span for node in graph.nodes if isinstance(node, Loop) and node.streams}) < 2:
        return frozenset()
    reached = [_reached(graph, world) for world in range(worlds.COUNT)]
    found: set[int] = set()
    for node in tests:
        truths = node.condition.truths
        yes = [of[node.yes.number] for of, truth in zip(reached, truths, strict=True) if truth is not False]
        no = [of[node.no.number] for of, truth in zip(reached, truths, strict=True) if truth is not True]
        if any(_talk(one, other) for one in yes for other in no):
            found.add(id(node.condition))
    return frozenset(found)


def _is_of_rank(choice: Choice) -> bool:
    varies = choice.condition.varies
    return varies is not None and varies.by_rank_or_place


def _talk(one: _Reached, two: _Reached) -> bool:
    """May the loops that only the one has and those that only the other has match call by call?"""
    for mine, other in ((one, two), (two, one)):
        own = mine.loops.keys() - other.loops.keys()
        if not own:
            return False
        calls = frozenset().union(*(mine.loops[loop] for loop in own))
        if _ANY not in other.calls and not calls - {_ANY} <= other.calls:
            return False
    return True


def _reached(graph: EventGraph, world: int) -> list[_Reached]:
    """What a rank of this world comes to from each node; a node comes after those that it leads to."""
    found: list[_Reached] = []
    for node in graph.nodes:
        outcome = node.condition.outcome(world) if isinstance(node, Choice) else None
        come = [found[way.number] for way in ways(node, outcome)]
        here = come[0] if come else _NOTHING
        for other in come[1:]:
            if other is not here:
                here = _Reached({**here.loops, **other.loops}, here.calls | other.calls)
        if isinstance(node, EventNode):
            symbol = node.event.symbol if not node.event.streams else _ANY
            if symbol not in here.calls:
                here = dataclasses.replace(here, calls=here.calls | {symbol})
        elif isinstance(node, Loop) and (inside := found[node.body.number].calls):
            here = dataclasses.replace(here, loops={**here.loops, node.span: inside})
        found.append(here)
    return found
