"""Whether the forward that one rank makes of a replica meets the next forward of the others.

DDP sends its buffers before each forward, but after one without gradients it leaves that out once: of any number of
them in a row the first alone sends, and the next forward with gradients sends nothing. So a rank that evaluates by
itself sends once, and the others send where they go on with the training: the two are one broadcast, and all go on.
Where the others first come to something else, a barrier or a reduction, each side waits for the other. So it does
between the first and the second step of a training, where the second exchanges the sizes of its buckets.
"""

from __future__ import annotations

from ddp_lint.divergence.compare import Difference, Side
from ddp_lint.divergence.event_graph import (
    Choice,
    Event,
    EventGraph,
    EventNode,
    Loop,
    Node,
    Projection,
    reached_from,
    ways,
)
from ddp_lint.divergence.mismatches import Meeting

#: Kinds of events for which nobody waits.
_PASSED = frozenset({"step", "leave", "part"})


def meeting(difference: Difference, graph: EventGraph, projection: Projection) -> Meeting:
    """What the forward of one rank alone meets, where it runs without gradients; or whether it is one that all make,
    which does not match because some have made such a one before."""
    event = difference.event
    if event.shares_statistics and event.quiet:
        return Meeting.NOBODY
    if event.streams or not event.replica or difference.how not in ("missing", "swapped"):
        return Meeting.NONE
    if not event.quiet:
        return Meeting.FORWARD if _is_left_over(difference, graph, projection) else Meeting.NONE
    following = _next_events(difference.second, projection)
    models = {each.event.replica for each in graph.nodes if isinstance(each, EventNode) and _trains(each)}
    if len(models) > 1:  # each of them sends buffers of its own
        return Meeting.NONE
    trained = all(bool(each.replica) or each.kind == "backward" for each in following)
    if not trained or _follows_one_step(difference.first.node, graph, projection):
        return Meeting.NONE
    return Meeting.FORWARD if following else Meeting.END


def _next_events(side: Side, projection: Projection) -> list[Event]:
    """The events that a side may come to next, in any group, also in another round of a loop that it is in. A backward
    stands for the forward before it, of which nothing may be seen."""
    found: list[Event] = []
    # Of a choice that all ranks make alike it is known how it was made in this round alone.
    stack: list[tuple[Node, bool]] = [(side.node, True)]
    seen = {(side.node.number, True)}
    while stack:
        node, same_round = stack.pop()
        onward: tuple[Node, ...]
        if isinstance(node, EventNode):
            passed = node.event.kind in _PASSED
            found += [] if passed else [node.event]
            onward = (node.after,) if passed else ()
        elif isinstance(node, Choice):
            truth = projection.truth(node.condition, side.world)
            chosen = truth if isinstance(truth, bool) else side.own.get(truth) if same_round else None
            onward = (node.yes, node.no) if chosen is None else (node.yes if chosen else node.no,)
        elif isinstance(node, Loop):
            onward = (node.body, node.after)
        else:
            loop = projection.loop_of(node)
            same_round = False
            onward = () if loop is None else (loop.body, loop.after) if node is loop.again else (loop.after,)
        for way in onward:
            if (way.number, same_round) not in seen:
                seen.add((way.number, same_round))
                stack.append((way, same_round))
    return found


def _follows_one_step(node: Node, graph: EventGraph, projection: Projection) -> bool:
    """Does one training forward come before it, in each round of the innermost loop around or where there is none? In
    the first round it is the only one. With a loop of them before it there are more."""
    loops = [(each, reached_from(each.body)) for each in graph.nodes if isinstance(each, Loop) and each is not node]
    around = [body for _, body in loops if node.number in body]
    inside = min(around, key=len, default={each.number for each in graph.nodes})
    before = _leading_to(node, graph) & inside
    events = [each for each in graph.nodes if isinstance(each, EventNode) and projection.holds(each.event)]
    training = {each.number for each in events if _trains(each)}
    if any(each.number in before and not body.isdisjoint(training) for each, body in loops):
        return False
    steps = [each.event for each in events if each.number in training & before]
    return bool(steps) and not any(step.streams for step in steps)


def _leading_to(node: Node, graph: EventGraph) -> set[int]:
    """The numbers of the nodes from which a way leads to one, without itself."""
    found = {node.number}
    for each in graph.nodes:  # what follows comes before what it follows
        if not found.isdisjoint(way.number for way in ways(each)):
            found.add(each.number)
    return found - {node.number}


def _trains(node: EventNode) -> bool:
    return bool(node.event.replica) and not node.event.quiet


def _is_left_over(difference: Difference, graph: EventGraph, projection: Projection) -> bool:
    """Do the arms of the test at fault differ in forwards without gradients alone, and is the event in none of them?"""
    only: set[int] = set()
    for node in graph.nodes:
        if isinstance(node, Choice) and node.condition is difference.fork.condition:
            only |= reached_from(node.yes) ^ reached_from(node.no)
    events = [node for node in graph.nodes if isinstance(node, EventNode) and node.number in only]
    events = [node for node in events if projection.holds(node.event)]
    return bool(events) and all(node.event.replica and node.event.quiet for node in events)
