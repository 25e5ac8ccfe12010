"""The first differences between the event graphs of two ranks."""

from __future__ import annotations

import bisect
import collections
import dataclasses
import functools
import itertools
import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping

from ddp_lint.divergence import worlds
from ddp_lint.divergence.event_graph import (
    Choice,
    End,
    Event,
    EventGraph,
    EventNode,
    Loop,
    Node,
    Projection,
    reached_from,
    ways,
)
from ddp_lint.divergence.groups import Group, holds_all_of, leaves_alone
from ddp_lint.divergence.values import Bound, Condition, Variation, alone_in, comparison, equality, implied
from ddp_lint.findings import Confidence, Span

#: In a test, whose text may have been shortened: the job shards parameters.
SHARDED_MODE = re.compile(r"deepsp|fsdp|zero_?3|zero_stage|shard", re.IGNORECASE)


#: Choices of a rank that are searched for the one that both made differently; each difference searches again.
_FAR_BACK = 300


# Neither is changed once it is made, by the hundred thousand: a frozen dataclass takes three times as long to make.


@dataclasses.dataclass(eq=False, slots=True)
class Step:
    """A choice that a rank made on its way, linked to the one before."""

    condition: Condition
    chosen: bool
    span: Span
    before: Step | None
    #: Number of events that both ranks had in common when the choice was made.
    matched: int
    #: Whether this choice, or one before it, is open.
    opens: bool = False

    def backwards(self) -> Iterator[Step]:
        step: Step | None = self
        while step is not None:
            yield step
            step = step.before


@dataclasses.dataclass(eq=False, slots=True)
class Side:
    """One rank on its walk: where it is, in which world, what it chose itself, how it came there."""

    node: Node
    world: int
    own: Mapping[Hashable, bool]
    trail: Step | None = None

    def at(self, node: Node) -> Side:
        return Side(node, self.world, self.own, self.trail)


def _holds_more(made: _Made, seen: Iterable[_Made]) -> bool:
    """Has one of the two sides made a choice that it made on none of the ways that are followed already?"""
    return any(not own <= frozenset().union(*(ways[side] for ways in seen)) for side, own in enumerate(made))


def _have_one_number(condition: Condition, here: list[int]) -> bool:
    """Have all ranks that come to the choice the same number, from which it follows: those with the local rank 0, in
    ``if local_rank == 0: stopper.step(); if stopper.stop: break``?"""
    if not condition.by_rank or condition.varies is None or condition.varies.scope != "node":
        return False
    return all(worlds.WORLDS[world].local_rank == 0 for world in here)


@dataclasses.dataclass(frozen=True, eq=False)
class Difference:
    """Side `first` reaches `event`; `second` reaches `other` instead, or no event at all.

    `how`: 'missing', 'swapped', 'crossed' (calls of one name that move the same tensors in another order), 'rounds' (a
    loop that one side leaves earlier) or 'argument' (root or reduce op).
    """

    event: Event
    other: Event | None
    first: Side
    second: Side
    fork: Step
    how: str
    loop: Loop | None = None
    #: Where the two are that have no like event; `first` and `second` may be shown further up.
    where: tuple[Side, Side] | None = None
    #: One of the compared ranks alone has the choice: the others are known to make no such call.
    alone: bool = False


#: Where two ranks first met in calls of the same name at different places.
Drift = tuple[Side, Side]
#: What each of two sides has chosen.
_Made = tuple[frozenset[tuple[Hashable, bool]], ...]
#: Two places that are compared, with the number of events that matched before them.
_Pair = tuple[Side, Side, int, Drift | None]


class TooLong(Exception):
    """More steps than the bound."""


class Comparison:
    """All first differences of one stream, each distinct place once."""

    #: Pairs of nodes that one function's comparison may visit.
    BOUND = 60_000
    #: Ways to one pair of nodes that differ in what they have chosen, which are all followed; of the others, those with
    #: a choice that none of these has made.
    WAYS = 8

    def __init__(self, graph: EventGraph, projection: Projection, flags: frozenset[str] = frozenset()) -> None:
        self._graph = graph
        self._projection = projection
        #: Flags that are False only where there is one process.
        self._flags = flags
        self._steps = 0
        #: Pairs of places that were reached, each with the choices that led there and are tested again.
        self._seen: dict[Hashable, set[_Made]] = {}
        #: The shared choices below each node, one bit of a number for each choice: thousands are put together quickly.
        self._asked_below: list[int] = []
        self._bits: dict[Hashable, int] = {}
        #: Events and loops that met one of another place, each with the world of the other side.
        self._met: set[tuple[int, int]] = set()
        self._doomed = self._ends_in_error()
        self._fatal = [self._ends_in_error(world) for world in worlds.EVERYWHERE] if any(self._doomed) else []
        self._equalities: dict[Hashable, tuple[Hashable, Hashable] | None] = {}
        self._bounds: dict[Hashable, Bound | None] = {}
        stream = projection.stream
        #: Replicas of a model take their steps together in the whole world.
        self._group = stream if isinstance(stream, Group) else Group()
        self._alone = set(self._ways_alone())
        self._assumptions: dict[int, dict[int, dict[Hashable, bool]]] = {}

    def always_fails(self, start: Node) -> bool:
        """Does a rank that each job has fail before any event, whatever happens? Then the launcher ends the job."""
        return any(doomed[start.number] for doomed in self._fatal)

    def of_worlds(self, start: Node, first: int, second: int) -> Iterator[Difference]:
        """Where the event graphs of two worlds diverge, if they do."""
        if not all(self._group.may_hold(worlds.WORLDS[world]) for world in (first, second)):
            return
        yield from self._of_like_questions(Side(start, first, {}), Side(start, second, {}))

    def _of_like_questions(self, first: Side, second: Side) -> Iterator[Difference]:
        differences = list(self._walk(first, second))
        yield from (difference for difference in differences if not self._is_of_unlike_questions(difference))

    def _is_of_unlike_questions(self, difference: Difference) -> bool:
        """Does each arm of the rank test have a test of its own, and the events match where both have the same outcome?

        ``if mask is not None: broadcast(mask)`` on the one, ``if args.mask: broadcast(mask)`` on the other: two ways to
        test the same. A loop that serves the other arm needs no test there: what it is sent decides.
        """
        if self._serves(difference):
            return True
        if difference.where is None:
            return False
        one, two = difference.where
        met = isinstance(one.node, (EventNode, Loop)) and (one.node.number, two.world) in self._met
        return met and all(_own_question(side, other, difference.fork) for side, other in ((one, two), (two, one)))

    def _serves(self, difference: Difference) -> bool:
        """Is one of the calls in an arm with a loop that calls of the same name in the other arm keep going, in a loop
        or one after the other? What they send decides what the loop does next."""
        arm = difference.fork.span
        calls = [call for call in (difference.event, difference.other) if call is not None]
        if not self._graph.serving or not any(under(call, arm) or _follows(call, arm) for call in calls):
            return False
        events = [n.event for n in self._graph.nodes if isinstance(n, EventNode)]
        called = [event for event in events if under(event, arm)]
        serving = [
            span for span in self._graph.serving if span.starts_in(arm) or any(under(event, span) for event in called)
        ]
        loops = [n.span for n in self._graph.nodes if isinstance(n, Loop)]
        return any(_keeps_going(span, loops, events, arm, calls) for span in serving)

    def of_open_choices(self, start: Node) -> Iterator[Difference]:
        """Where two ranks diverge as each chooses for itself: data, clocks, files, ranks that only the run knows."""
        own = [
            n for n in self._graph.nodes if isinstance(n, Choice) and n.condition.open and self._may_part(n.condition)
        ]
        if not own:
            return
        assumed, coming = self._assumed(start), [self._reached(start, world) for world in range(worlds.COUNT)]
        apart = self._in_places()
        # A place is shown with the choice that reaches it first: one in doubt must not stand before a surer one.
        for node in sorted(own, key=_in_doubt):
            here = [world for world, reached in enumerate(coming) if node.number in reached]
            here = [world for world in here if self._group.may_hold(worlds.WORLDS[world])]
            if not here:  # left over from a loop that turned out to hold no events
                continue
            common = assumed.get(node.number)
            if common is None:  # behind choices that exclude each other
                continue
            if _have_one_number(node.condition, here):
                continue
            key = self._projection.truth(node.condition, 0)
            if any(common.get(choice) is chosen for choice, chosen in self._alone) or node.number in apart:
                continue
            if not self._is_first(start, node, key):
                continue
            first, second = here[0], here[1 % len(here)]
            level = self._is_level(start, node, first, second)
            pairs = ((first, second), (second, first)) if level else ((first, first), (second, second))
            for world, other in pairs:
                yes = Step(node.condition, True, node.span, None, 0)
                no = Step(node.condition, False, node.span, None, 0)
                found = self._of_like_questions(
                    Side(node.yes, world, {**common, key: True}, yes),
                    Side(node.no, other, {**common, key: False}, no),
                )
                if len(here) == 1:
                    found = (each for each in found if not self._is_told(each, world, coming))
                yield from (dataclasses.replace(each, alone=len(here) == 1) for each in found)

    def _is_told(self, difference: Difference, world: int, coming: list[set[int]]) -> bool:
        """Do the others come to a like call by a test that all of them answer alike? The rank that alone decides here
        by what it holds has told them: ``if len(data): broadcast(data)`` on the one, ``if size: broadcast(buffer)`` on
        the others."""
        symbol, others = difference.event.symbol, set().union(*coming) - coming[world]
        asked = (
            node
            for node in self._graph.nodes
            if isinstance(node, Choice) and node.number in others and node.condition.varies is None
        )
        return any(
            sum(isinstance(arm, EventNode) and arm.event.symbol == symbol for arm in (node.yes, node.no)) == 1
            for node in asked
        )

    def _in_places(self) -> set[int]:
        """Nodes in one arm of a test of the rank's place along an axis, where both arms communicate over a group of
        whose axis is unknown: it may be the same axis, so that only one member gets there."""
        found: set[int] = set()
        for node in self._graph.nodes if not self._group.axis else ():
            varies = node.condition.varies if isinstance(node, Choice) else None
            if varies is None or varies.cause != "rank" or self._projection.diverges(varies):
                continue
            assert isinstance(node, Choice)
            yes, no = reached_from(node.yes), reached_from(node.no)
            only = [arm for arm in (yes - no, no - yes) if any(self._is_event(number) for number in arm)]
            found |= set().union(*only) if len(only) > 1 else set()
        return found

    def _is_event(self, number: int) -> bool:
        node = self._graph.nodes[number]
        return isinstance(node, EventNode) and self._projection.holds(node.event)

    def _is_level(self, start: Node, choice: Choice, one: int, two: int) -> bool:
        """Have ranks of the two worlds done the same by the time that they reach the choice?

        They have not where their whole graphs are equal and what is left of them is not: the one compensates it later.
        """
        first, second = self._projection.numbers[one], self._projection.numbers[two]
        return first[choice.number] == second[choice.number] or first[start.number] != second[start.number]

    def _ways_alone(self) -> Iterator[tuple[Hashable, bool]]:
        """Shared choices, with the outcome that leaves a rank without peers: ``if not is_distributed:``."""
        for node in self._graph.nodes:
            if isinstance(node, Choice) and node.condition.varies is None:
                for chosen in (False, True):
                    if self._leaves_alone(node.condition, chosen):
                        yield self._projection.truth(node.condition, 0), chosen

    def _leaves_alone(self, condition: Condition, chosen: bool) -> bool:
        """Does this outcome imply that the group has a single member, which waits for no other rank?"""
        counted = alone_in(condition.truths[0])
        if counted is None:
            return leaves_alone(condition.text, chosen, self._group, self._flags)
        return chosen and holds_all_of(counted, self._group)

    @functools.cached_property
    def _choices_by_truth(self) -> dict[Hashable, set[int]]:
        """The numbers of the choices that a rank makes as one, each of which may ask."""
        found = collections.defaultdict[Hashable, set[int]](set)
        for node in self._graph.nodes:
            if isinstance(node, Choice):
                found[self._projection.truth(node.condition, 0)].add(node.number)
        return found

    def _is_first(self, start: Node, choice: Choice, key: Hashable) -> bool:
        """Does a way lead to the choice before the rank has made it elsewhere (``if mine:`` .. ``if not mine:``)?"""
        same = self._choices_by_truth.get(key, set()) - {choice.number}
        if not same:
            return True
        stack, seen = [start], {start.number}
        while stack:
            node = stack.pop()
            if node is choice:
                return True
            onward = ways(node) if node.number not in same else ()
            stack += [way for way in onward if way.number not in seen]
            seen.update(way.number for way in onward)
        return False

    def _reached(self, start: Node, world: int) -> set[int]:
        """Numbers of the nodes that a rank of this world can reach."""
        return reached_from(start, functools.partial(self._projection.truth, world=world))

    def _assumed(self, start: Node) -> dict[int, dict[Hashable, bool]]:
        """The shared choices that every way to a node has made and that can still decide something; nothing for a node
        that none leads to."""
        if start.number in self._assumptions:
            return self._assumptions[start.number]
        decisive = self._decisive()
        found = self._assumptions[start.number] = {start.number: {}}
        for node in reversed(self._graph.nodes):
            mine = found.get(node.number)
            if mine is None:
                continue
            for child, more in self._ways(node):
                if any(mine.get(key, chosen) is not chosen for key, chosen in more.items()):
                    continue  # chosen the other way further up
                there = mine if decisive.isdisjoint(more) else {**mine, **more}
                known = found.get(child.number)
                if known is not None:
                    there = {key: value for key, value in known.items() if there.get(key) is value}
                found[child.number] = there
        return found

    def _decisive(self) -> frozenset[Hashable]:
        """Choices that decide more than where they are made: those made at several places, those that decide others,
        and those that leave a rank alone. To keep all at each node takes time and memory with the square."""
        made: collections.Counter[Hashable] = collections.Counter()
        for node in self._graph.nodes:
            if isinstance(node, Choice):
                made.update({self._projection.truth(node.condition, world) for world in range(worlds.COUNT)})
        alone = {choice for choice, _ in self._alone}
        return frozenset(
            choice
            for choice, times in made.items()
            if times > 1 or choice in alone or self._equality(choice) is not None or self._bound(choice) is not None
        )

    def _ways(self, node: Node) -> list[tuple[Node, dict[Hashable, bool]]]:
        """The nodes that one leads to, each with the shared choice that is made on the way."""
        if isinstance(node, Choice) and node.condition.varies is None:
            key = self._projection.truth(node.condition, 0)
            return [(node.yes, {key: True}), (node.no, {key: False})]
        return [(way, {}) for way in ways(node)]

    def of_rounds(self, start: Node) -> Iterator[Difference]:
        """Loops with events that ranks go round a different number of times."""
        loops = [node for node in self._graph.nodes if isinstance(node, Loop)]
        possible = self._assumed(start) if loops else {}
        started_again = {inner.number for loop in loops for inner in self._started_again(loop)}
        for node in loops:
            if node.rounds is None or not self._projection.is_live(node):
                continue
            if node.number not in possible:  # behind choices that exclude each other
                continue
            if node.number in started_again:
                continue
            if node.rounds.varies is None or not self._may_part(node.rounds):
                continue
            if not self._has_more_rounds(node):  # each rank leaves it with its first events
                continue
            event = self._first_event(Side(node.body, 0, {}))
            if event is not None and not self._is_answered(node, event):
                fork = Step(node.rounds, True, node.span, None, 0)
                side = Side(node.body, 0, {}, fork)
                yield Difference(event, None, side, Side(node.after, 1, {}, fork), fork, "rounds", node)

    def _is_answered(self, loop: Loop, event: Event) -> bool:
        """Do the ranks that have left the loop go on with the like call in one that ends for all of them at once:
        ``for batch in loader: .. all_reduce(busy)``, and ``while busy: .. all_reduce(busy)`` behind it?"""
        stack, seen = [loop.after], set[int]()
        while stack:
            node = stack.pop()
            if node.number in seen or (isinstance(node, EventNode) and self._projection.holds(node.event)):
                continue
            seen.add(node.number)
            if isinstance(node, Loop) and self._projection.is_live(node):
                first = self._first_event(Side(node.body, 0, {})) if node.answers else None
                if first is not None and first.symbol == event.symbol:
                    return True
            else:
                stack += ways(node)
        return False

    def of_crossings(self) -> Iterator[Difference]:
        """Arms of a rank test that move the same two tensors with calls of one name, the other way round."""
        lines = collections.defaultdict[str, list[int]](list)
        for node in self._graph.nodes:
            if isinstance(node, EventNode):
                lines[node.event.span.place].append(node.event.span.line)
        for each in lines.values():
            each.sort()
        for node in self._graph.nodes:
            if not isinstance(node, Choice) or node.condition.open or not self._may_part(node.condition):
                continue
            there, span = lines.get(node.span.place, []), node.span
            if bisect.bisect_right(there, span.end_line) - bisect.bisect_left(there, span.line) < 2:
                continue  # what comes later, both arms lead to
            for first, second in ((0, 1), (1, 0)):
                if self._projection.truth(node.condition, first) and not self._projection.truth(node.condition, second):
                    fork = Step(node.condition, True, node.span, None, 0)
                    other = Step(node.condition, False, node.span, None, 0)
                    yield from self._crossing(Side(node.yes, first, {}, fork), Side(node.no, second, {}, other))

    def _crossing(self, one: Side, two: Side) -> Iterator[Difference]:
        mine, other = self.upcoming(one, 2), self.upcoming(two, 2)
        if len(mine) < 2 or any(event.symbol != mine[0].symbol or event.chain for event in (*mine, *other)):
            return
        buffers = [event.buffer for event in mine]
        if all(buffers) and buffers[0] != buffers[1] and buffers == [event.buffer for event in other[::-1]]:
            assert one.trail is not None
            yield Difference(mine[0], other[0], one, two, one.trail, "crossed")

    # ---- the walk

    def _walk(self, first: Side, second: Side) -> Iterator[Difference]:
        stack: list[_Pair] = [(first, second, 0, None)]
        while stack:
            self._steps += 1
            if self._steps > self.BOUND:
                raise TooLong
            one, two, matched, drift = stack.pop()
            if self._equal(one, two):
                self._meet(one, two)
                continue
            one, two = self._advance(one, matched), self._advance(two, matched)
            key = (one.node.number, one.world, two.node.number, two.world)
            if not self._is_new(key, one, two):
                continue
            if self._equal(one, two):
                self._meet(one, two)
                continue
            yield from self._compared((one, two, matched, None if one.node is two.node else drift), stack)

    def _compared(self, pair: _Pair, stack: list[_Pair]) -> Iterator[Difference]:
        """The difference between two places, if there is one; what is to be compared next goes onto the stack."""
        one, two, matched, drift = pair
        if isinstance(one.node, Choice) or isinstance(two.node, Choice):
            stack.extend((*sides, drift) for sides in self._split(one, two, matched))
        elif isinstance(one.node, End) and isinstance(two.node, End):
            difference = self._ends(one, two)
            if difference is not None:
                yield difference
        elif (
            "error" in (getattr(one.node, "what", ""), getattr(two.node, "what", ""))
            or self._tries_again(one, matched)
            or self._tries_again(two, matched)
        ):
            return
        elif isinstance(one.node, EventNode) and isinstance(two.node, EventNode) and self._alike(one.node, two.node):
            self._meet(one, two)
            difference = self._arguments(one, two)
            if difference is not None:
                yield difference
            if one.node is not two.node and drift is None:
                drift = (one, two)
            stack.append((one.at(one.node.after), two.at(two.node.after), matched + 1, drift))
        elif isinstance(one.node, Loop) and isinstance(two.node, Loop):
            if one.node is not two.node:
                self._met |= {(one.node.number, two.world), (two.node.number, one.world)}
                drift = drift or (one, two)
            stack.append((one.at(one.node.after), two.at(two.node.after), matched + 1, drift))
            stack.append((one.at(one.node.body), two.at(two.node.body), matched, drift))
        else:
            yield from self._diverged(pair, stack)

    def _diverged(self, pair: _Pair, stack: list[_Pair]) -> Iterator[Difference]:
        """The difference between two events that are not alike; the sides meet again behind it."""
        one, two, matched, drift = pair
        difference = self._part(one, two)
        if difference is not None and (loop := self._passed_before(difference)) is not None:
            stack.append((one.at(loop.after), two.at(loop.after), matched, drift))
            stack.append((one.at(loop.body), two.at(loop.body), matched, None))
        elif difference is not None:
            difference = dataclasses.replace(difference, where=(difference.first, difference.second))
            yield self._at_drift(difference, drift) if drift is not None else difference
            stack.extend((*sides, matched + 1, None) for sides in self._past(difference))
        elif loops := [side.node for side in (one, two) if isinstance(side.node, Loop)]:
            # One side passed by the loop, whose events are all behind a test within: there the two diverge.
            stack.append((one.at(loops[0].body), two.at(loops[0].body), matched, None))

    def _passed_before(self, difference: Difference) -> Loop | None:
        """The loop that has the event, if the other side passed it by and made the choice at fault behind it: the two
        diverge in the loop, at the test that its events are under."""
        loop, fork = difference.first.node, difference.fork.span
        if not isinstance(loop, Loop) or fork.path != loop.span.path or fork.line <= loop.span.end_line:
            return None
        return loop if self._is_passed_by(difference.second.at(loop), loop) else None

    def _is_new(self, key: Hashable, one: Side, two: Side) -> bool:
        """Was the pair of places not reached before, with the same of the choices that matter from there on?"""
        below, bits = self._below_of(one.node) | self._below_of(two.node), self._bits
        made = tuple(
            frozenset(item for item in side.own.items() if below & bits.get(item[0], 0)) for side in (one, two)
        )
        seen = self._seen.setdefault(key, set())
        if made in seen or (len(seen) >= self.WAYS and not _holds_more(made, seen)):
            return False
        seen.add(made)
        return True

    def _questions_below(self) -> list[int]:
        """For each node the shared choices further down; of those in another round nothing is known."""
        found: list[int] = []
        for node in self._graph.nodes:
            union = 0
            for child in ways(node):
                union |= found[child.number]
            if isinstance(node, Choice) and (node.condition.open or node.condition.varies is None):
                key = self._projection.truth(node.condition, 0)
                union |= self._bits.setdefault(key, 1 << len(self._bits))
            found.append(union)
        return found

    def _meet(self, one: Side, two: Side) -> None:
        """Events at different places that the two reach together, as far as no choice lies between."""
        if one.node is two.node:
            return
        one, two = self._advance(one, 0), self._advance(two, 0)
        while one.node is not two.node and isinstance(one.node, EventNode) and isinstance(two.node, EventNode):
            if not self._alike(one.node, two.node):
                return
            self._met |= {(one.node.number, two.world), (two.node.number, one.world)}
            one, two = self._advance(one.at(one.node.after), 0), self._advance(two.at(two.node.after), 0)

    def _tries_again(self, side: Side, matched: int) -> bool:
        """Does it repeat the loop and reach the same events later, for any number of repetitions?

        That is so where events always leave the loop (``continue`` until a file is found, then a barrier and `break`),
        and after a round without events in a loop that only a round with events leaves (a prompt that is repeated),
        be they those of another group: what its members agree on ends the loop for all of them. It is so, too, where
        the events are those of a loop within, which starts again until there were as many as there have to be.
        """
        loop = self._projection.loop_of(side.node) if isinstance(side.node, End) else None
        if loop is not None and side.node is loop.leave and self._is_started_again(side, loop):
            return True
        if loop is None or side.node is not loop.again or self._is_for_good(side, loop):
            return False
        if self._started_again(loop):
            return True
        if not loop.endless and self._may_pass_by_all(side, loop):
            return False
        if not self._has_more_rounds(loop):
            return True
        if not loop.endless or not self._was_empty(side, loop, matched):
            return False
        return not self._comes_to(loop, self._is_out_of(loop), of_any_group=True)

    def _is_for_good(self, side: Side, loop: Loop) -> bool:
        """Did the rank pass by the events because of its number, as it will in each round? Of a loop within that has
        no events for such a rank it makes no choice at all."""
        last = self._last_in(loop, side)
        if last is not None and last.by_rank and not last.open:
            return True
        return self._first_event(Side(loop.body, side.world, {})) is None

    def _may_pass_by_all(self, side: Side, loop: Loop) -> bool:
        """Did the rank pass by the events because of its own batches, of which perhaps none leads to them, or of its
        own clock, by which the loop may be over before the time is up?"""
        last = self._last_in(loop, side)
        return last is not None and last.varies is not None and last.varies.cause in ("data", "clock")

    @staticmethod
    def _last_in(loop: Loop, side: Side) -> Condition | None:
        """The condition of the rank's last choice, if that was made in the loop."""
        step = side.trail
        return step.condition if step is not None and step.span.starts_in(loop.span) else None

    def _has_more_rounds(self, loop: Loop) -> bool:
        """Does a round with events lead to another one?"""
        return self._comes_to(loop, lambda node: node is loop.again, after_events=True)

    def _was_empty(self, side: Side, loop: Loop, matched: int) -> bool:
        """Did the round of this side have no events, neither since its last choice nor before?"""
        step = next(side.trail.backwards(), None) if side.trail else None
        if step is None or step.matched != matched or not step.span.starts_in(loop.span):
            return False
        chosen = step.condition
        return not self._comes_to(
            loop, lambda node: isinstance(node, Choice) and node.condition is chosen, after_events=True
        )

    def _is_started_again(self, side: Side, loop: Loop) -> bool:
        """Has the rank left a loop at the end of its own batches, which a loop around starts again until there were as
        many steps as there have to be: ``except StopIteration: break`` within ``while step < steps``?"""
        last = self._last_in(loop, side)
        if last is None or last.varies is None or last.varies.cause != "length":
            return False
        return any(isinstance(node, Loop) and loop in self._started_again(node) for node in self._graph.nodes)

    def _started_again(self, loop: Loop) -> list[Loop]:
        """The loops within one that is left after a number of steps, which a rank may start as often as it likes; none
        where a round has events besides theirs, or two of them have events: a rank that starts the other one first
        does not meet the events of the ranks that are in this one still."""
        stack, seen, found = [loop.body] if loop.by_steps else [], set[int](), list[Loop]()
        while stack:
            node = stack.pop()
            if node.number in seen:
                continue
            seen.add(node.number)
            if isinstance(node, EventNode) and self._projection.holds(node.event):
                return []
            if isinstance(node, Loop):
                found.append(node)
                stack.append(node.after)
            else:
                stack += ways(node)
        if len(found) > 1 and sum(map(self._has_events, found)) > 1:
            return []
        return found

    def _has_events(self, loop: Loop) -> bool:
        return self._comes_to(loop, lambda node: node is loop.again, after_events=True)

    def _is_out_of(self, loop: Loop) -> Callable[[Node], bool]:
        """Is a node one to which the loop is left? What follows a loop is made before its body."""
        return lambda node: node is loop.leave or (node.number < loop.again.number and not self._doomed[node.number])

    def _comes_to(
        self, loop: Loop, goal: Callable[[Node], bool], *, after_events: bool = False, of_any_group: bool = False
    ) -> bool:
        """Does a way lead from the start of a round to the goal: one without events, or one `after_events`?"""
        stack, seen = [(loop.body, False)], set()
        while stack:
            node, emitted = stack.pop()
            if (node.number, emitted) in seen:
                continue
            seen.add((node.number, emitted))
            if goal(node) and emitted is after_events:
                return True
            emitted = emitted or (isinstance(node, EventNode) and (of_any_group or self._projection.holds(node.event)))
            inner = self._projection.loop_of(node) if isinstance(node, End) else None
            if inner is not None and inner is not loop:
                stack.append((inner.after, emitted))
            stack.extend((child, emitted) for child in ways(node))
        return False

    @staticmethod
    def _past(difference: Difference) -> Iterator[tuple[Side, Side]]:
        """Where both go on once the call that only one of them makes in its branch is set aside."""
        event, node = difference.event, difference.first.node
        if difference.how == "missing" and under(event, difference.fork.span):
            assert isinstance(node, (EventNode, Loop))
            if difference.other is None or not under(difference.other, difference.fork.span):
                yield difference.first.at(node.after), difference.second

    def _at_drift(self, difference: Difference, drift: Drift) -> Difference:
        """A lone call that pairs with the peer's next one of the same name: the lone call is the cause, not the end."""
        for one, two in (drift, drift[::-1]):
            event, other = self._event_at(one), self._event_at(two)
            fork = self._fork(one, two)
            if event is not None and fork is not None and self._behind(one, two):
                return dataclasses.replace(
                    difference, event=event, other=other, first=one, second=two, fork=fork, how="missing"
                )
        region = difference.fork.span
        for one, two in (drift, drift[::-1]):
            event = self._event_at(one)
            if event is not None and under(event, region) and not under(difference.event, region):
                return dataclasses.replace(
                    difference, event=event, other=self._event_at(two), first=one, second=two, how="missing"
                )
        return difference

    def _equal(self, one: Side, two: Side) -> bool:
        numbers = self._projection.numbers
        if numbers[one.world][one.node.number] != numbers[two.world][two.node.number]:
            return False
        return one.own is two.own or not self._is_asked_again(one, two)

    def _is_asked_again(self, one: Side, two: Side) -> bool:
        """Is a choice that the two have made differently to be made again: ``if mine: loss = model(x)``, and ``if loss
        is not None: loss.backward()`` behind it?"""
        apart = {key for key, chosen in one.own.items() if two.own.get(key, chosen) is not chosen}
        below = self._below_of(one.node) | self._below_of(two.node) if apart else 0
        return any(below & self._bits.get(key, 0) for key in apart)

    def _below_of(self, node: Node) -> int:
        if not self._asked_below:
            self._asked_below = self._questions_below()
        return self._asked_below[node.number]

    @staticmethod
    def _alike(one: EventNode, two: EventNode) -> bool:
        return one.event.symbol == two.event.symbol

    def _may_part(self, condition: Condition) -> bool:
        return self._projection.separates(condition)

    def _advance(self, side: Side, matched: int) -> Side:
        """Past events of other streams, choices that the world or the rank has made, and loops without events."""
        while True:
            node = side.node
            if isinstance(node, EventNode) and not self._projection.holds(node.event):
                side = side.at(node.after)
            elif isinstance(node, Loop) and not self._projection.is_live(node):
                side = side.at(node.body)
            elif isinstance(node, Loop) and self._is_passed_by(side, node):
                side = side.at(node.after)  # all its events are behind a choice that came out the other way
            elif isinstance(node, End) and (loop := self._projection.loop_of(node)) is not None:
                if self._projection.is_live(loop):
                    return side
                side = side.at(loop.after)
            elif isinstance(node, Choice):
                truth = self._projection.truth(node.condition, side.world)
                if not isinstance(truth, bool):
                    known = side.own[truth] if truth in side.own else self._excluded(truth, side)
                    if known is None:
                        return side
                    truth = known
                elif not self._shows_outcome(node.condition):
                    side = side.at(node.yes if truth else node.no)
                    continue
                side = self._choose(side, truth, matched)
            else:
                return side

    def _is_passed_by(self, side: Side, loop: Loop) -> bool:
        """Has the loop no events for a rank of this world, or none for one that has chosen like this?"""
        numbers = self._projection.numbers[side.world]
        if numbers[loop.number] == numbers[loop.after.number]:
            return True
        return bool(side.own) and self._first_event(side.at(loop.body)) is None

    def _excluded(self, choice: Hashable, side: Side) -> bool | None:
        """False for ``mode == "b"`` on a side that has chosen ``mode == "a"``; None where its choices do not decide."""
        mine = self._equality(choice)
        if mine is not None:
            others = (self._equality(other) for other, chosen in side.own.items() if chosen)
            if any(other is not None and other[0] == mine[0] and other != mine for other in others):
                return False
        bound = self._bound(choice)
        if bound is None:
            return None
        known = [(other, chosen) for key, chosen in side.own.items() if (other := self._bound(key)) is not None]
        return implied(bound, [(other, chosen) for other, chosen in known if other.of == bound.of])

    def is_of_no_value_listed(self, difference: Difference) -> bool:
        """Do the ranks come there with a setting that is none of those which the code compares it with, one by one?

        ``if mode == "train": .. elif mode == "test": ..`` without an `else` is written for the values that there are;
        what is in an `else` is written for others.
        """
        answers = collections.defaultdict[Hashable, list[bool]](list)
        for choice, chosen in difference.first.own.items():
            if (asked := self._equality(choice)) is not None:
                answers[asked[0]].append(chosen)
        unlisted = {of for of, chosen in answers.items() if len(chosen) > 1 and not any(chosen)}
        return bool(unlisted) and not any(
            asked[0] in unlisted and under(difference.event, node.span)
            for node in self._graph.nodes
            if isinstance(node, Choice) and (asked := self._equality(node.condition.truths[0])) is not None
        )

    def _bound(self, choice: Hashable) -> Bound | None:
        if choice not in self._bounds:
            self._bounds[choice] = comparison(choice)
        return self._bounds[choice]

    def _equality(self, choice: Hashable) -> tuple[Hashable, Hashable] | None:
        if choice not in self._equalities:
            self._equalities[choice] = equality(choice)
        return self._equalities[choice]

    @staticmethod
    def _shows_outcome(condition: Condition) -> bool:
        return condition.varies is not None

    @staticmethod
    def _choose(side: Side, chosen: bool, matched: int) -> Side:
        node = side.node
        assert isinstance(node, Choice)
        opens = node.condition.open or (side.trail is not None and side.trail.opens)
        trail = Step(node.condition, chosen, node.span, side.trail, matched, opens)
        return Side(node.yes if chosen else node.no, side.world, side.own, trail)

    def _ends_in_error(self, world: int | None = None) -> list[bool]:
        """For each node: does every way from it, of a rank of this world or of any, end in an error, before any event
        of the group? Then the job ends, and no rank waits; a rank that waits for the others before never reaches its
        error."""
        doomed: list[bool] = []
        for node in self._graph.nodes:
            if isinstance(node, End):
                doomed.append(node.what == "error")
            elif isinstance(node, Choice):
                truth = self._projection.truth(node.condition, world) if world is not None else None
                doomed.append(all(doomed[way.number] for way in ways(node, truth)))
            else:
                waits = isinstance(node, EventNode) and self._projection.holds(node.event)
                # Of a loop it is only known for a rank of this world that it may wait in it.
                waits = waits or (isinstance(node, Loop) and world is not None and self._projection.is_live(node))
                doomed.append(not waits and doomed[node.after.number])
        return doomed

    def _split(self, one: Side, two: Side, matched: int) -> Iterator[tuple[Side, Side, int]]:
        """Both outcomes of a choice that no world decides; a shared choice is taken alike by both."""
        node = one.node if isinstance(one.node, Choice) else two.node
        assert isinstance(node, Choice)
        world = one.world if node is one.node else two.world
        key = self._projection.truth(node.condition, world)
        # The last is walked first: a job that shards parameters, since others may not communicate at all, and a value
        # that is tested for, since there may be no other one.
        listed = self._equality(key) is not None or SHARDED_MODE.search(node.condition.text) is not None
        for chosen in (False, True) if listed else (True, False):
            if self._leaves_alone(node.condition, chosen):
                continue
            sides = [
                Side(side.node, side.world, {**side.own, key: chosen}, side.trail)
                if not node.condition.open or side.node is node or self._same_choice(side, node)
                else side
                for side in (one, two)
            ]
            yield sides[0], sides[1], matched

    @staticmethod
    def _same_choice(side: Side, node: Choice) -> bool:
        return isinstance(side.node, Choice) and side.node.condition == node.condition

    # ---- what a difference is

    def _ends(self, one: Side, two: Side) -> Difference | None:
        """One side runs another iteration while the other leaves the loop: events of the loop are missed."""
        whats = (one.node.what, two.node.what) if isinstance(one.node, End) and isinstance(two.node, End) else ("", "")
        if "error" in whats or whats[0] == whats[1]:
            return None
        loop = next(
            (
                loop
                for side in (one, two)
                if isinstance(side.node, End) and (loop := self._projection.loop_of(side.node))
            ),
            None,
        )
        if loop is None:
            return None
        event = self._first_event(one.at(loop.body))
        goes_on, leaves = (one, two) if whats[0] == "again" else (two, one)
        fork = self._fork(goes_on, leaves)
        if event is None or fork is None:
            return None
        return Difference(event, None, goes_on, leaves, fork, "rounds", loop)

    def _part(self, one: Side, two: Side) -> Difference | None:
        if self._doomed[one.node.number] or self._doomed[two.node.number]:
            return None
        here, there = self._event_at(one), self._event_at(two)
        if here is not None and there is not None:
            if self._behind(one, two):
                there_first = False
            elif self._behind(two, one):
                there_first = True
            else:
                return self._unlike(one, two, here, there)
            if there_first:
                one, two, here, there = two, one, there, here
        elif here is None:
            one, two, here, there = two, one, there, here
        fork = self._fork(one, two)
        if here is None or fork is None:
            return None
        # A call in this branch is missed, regardless of what the other rank does.
        rounds = isinstance(two.node, End) and two.node.what == "break" and not under(here, fork.span)
        return Difference(here, there, one, two, fork, "rounds" if rounds else "missing")

    def _unlike(self, one: Side, two: Side, here: Event, there: Event) -> Difference | None:
        fork = self._fork(one, two) or self._fork(two, one)
        if fork is None:
            return None
        swapped = self._events_after(one) == [there.symbol, here.symbol][::-1] and self._events_after(two) == [
            there.symbol,
            here.symbol,
        ]
        if not swapped and there.span.starts_in(fork.span) and not here.span.starts_in(fork.span):
            one, two, here, there = two, one, there, here
        return Difference(here, there, one, two, fork, "swapped" if swapped else "missing")

    def _events_after(self, side: Side) -> list[Hashable]:
        return [event.symbol for event in self.upcoming(side, 2)]

    def next_round(self, side: Side) -> Loop | None:
        """The loop whose next round the side reaches before any event."""
        node = self._advance(side, 0).node
        loop = self._projection.loop_of(node) if isinstance(node, End) else None
        return loop if loop is not None and node is loop.again else None

    def upcoming(self, side: Side, count: int) -> list[Event]:
        """The next events of a side; unknown choices are taken as if true."""
        found: list[Event] = []
        for _ in range(200):
            side = self._advance(side, 0)
            node = side.node
            if isinstance(node, EventNode):
                found.append(node.event)
                side = side.at(node.after)
            elif isinstance(node, Choice):
                side = side.at(node.yes)
            elif isinstance(node, Loop):
                side = side.at(node.body)
            elif (loop := self._projection.loop_of(node)) is not None:
                side = side.at(loop.after)
            else:
                return found
            if len(found) >= count:
                return found
        return found

    def _behind(self, one: Side, two: Side) -> bool:
        """Would both go on alike if `one` skipped its event?"""
        assert isinstance(one.node, (EventNode, Loop))
        return self._equal(self._advance(one.at(one.node.after), 0), two)

    def _event_at(self, side: Side) -> Event | None:
        if isinstance(side.node, EventNode):
            return side.node.event
        if isinstance(side.node, Loop):
            return self._first_event(side.at(side.node.body))
        return None

    def _first_event(self, side: Side) -> Event | None:
        """The first event in source order that a rank with these choices may reach, one that surely communicates if
        there is any: a model may be wrapped in one of several ways."""
        stack, seen = [side.node], set()
        doubtful: Event | None = None
        while stack:
            node = stack.pop()
            if node.number in seen:
                continue
            seen.add(node.number)
            if isinstance(node, EventNode):
                if self._projection.holds(node.event):
                    if node.event.confidence is not Confidence.LOW:
                        return node.event
                    doubtful = doubtful or node.event
                stack.append(node.after)
            elif isinstance(node, Choice):
                truth = self._projection.truth(node.condition, side.world)
                chosen = truth if isinstance(truth, bool) else side.own.get(truth)
                stack += [node.no, node.yes] if chosen is None else [node.yes if chosen else node.no]
            elif isinstance(node, Loop):
                stack += [node.after, node.body]
        return doubtful

    @staticmethod
    def _fork(one: Side, two: Side) -> Step | None:
        """The choice that set the two apart: the last that both made, each its own way, else the last that only one
        made. Ranks that have made an open one each its own way are apart by that: had they made it alike, the test of
        the rank behind it would be at fault by itself."""
        others: dict[int, Step] = {}
        by_rank: Step | None = None
        # The choice is near the end, trails are long.
        rest = itertools.islice(two.trail.backwards(), _FAR_BACK) if two.trail else iter(())
        for step in itertools.islice(one.trail.backwards(), _FAR_BACK) if one.trail else ():
            if by_rank is not None and not step.opens:
                break
            while id(step.condition) not in others and (before := next(rest, None)) is not None:
                others.setdefault(id(before.condition), before)
            other = others.get(id(step.condition))
            if other is not None and other.chosen != step.chosen and step.condition.varies is not None:
                if step.condition.open:
                    return step
                by_rank = by_rank or step
        if by_rank is not None:
            return by_rank
        for side, opposite in ((one, two), (two, one)):
            steps = itertools.islice(opposite.trail.backwards(), _FAR_BACK) if opposite.trail else ()
            alike = {(id(step.condition), step.chosen) for step in steps}
            for step in side.trail.backwards() if side.trail else ():
                if step.condition.varies is not None and (id(step.condition), step.chosen) not in alike:
                    return step
        return None

    def _arguments(self, one: Side, two: Side) -> Difference | None:
        """Events that match in name but not in root, reduce operation or the members of the group that they make."""
        assert isinstance(one.node, EventNode) and isinstance(two.node, EventNode)
        first, second = one.node.event, two.node.event
        if first is second:
            return None
        for mine, other in zip(first.agreed, second.agreed, strict=True):
            if len({mine, other} - {None}) > 1:
                fork = self._fork(one, two)
                return Difference(first, second, one, two, fork, "argument") if fork is not None else None
        return None


def _in_doubt(node: Node) -> bool:
    varies = node.condition.varies if isinstance(node, Choice) else None
    return varies is not None and varies.confidence is Confidence.LOW


def _own_question(side: Side, other: Side, fork: Step) -> bool:
    """Has the side, since the fork, made a choice that the other did not: one that is the same on all ranks, or that of
    the only rank in its arm, which may have told the others?"""
    truths = fork.condition.truths
    alone = not fork.condition.open and truths.count(truths[side.world]) == 1
    asked = {id(step.condition) for step in other.trail.backwards()} if other.trail else set()
    for step in side.trail.backwards() if side.trail else ():
        if step.condition is fork.condition:
            return False
        if (step.condition.varies is None or (alone and step.condition.open)) and id(step.condition) not in asked:
            return True
    return False


def _keeps_going(serving: Span, loops: list[Span], events: list[Event], arm: Span, calls: list[Event]) -> bool:
    """Are there calls in the arms outside a loop, or behind an arm that returns, that are like calls in it, in another
    loop or more than one? And is what differs one of `calls` in the arms, or like one in the loop?"""
    inside = {event.symbol for event in events if under(event, serving)}
    if not any(under(call, arm) or call.symbol in inside for call in calls):
        return False
    alike = [e for e in events if e.symbol in inside and not under(e, serving)]
    others = [e for e in alike if under(e, arm)] or [e for e in alike if _follows(e, arm)]
    if any(under(event, loop) for event in others for loop in loops if loop != serving and loop.starts_in(arm)):
        return True
    places = {(event.symbol, event.span, *(label.span for label in event.chain)) for event in others}
    return len(places) > len({symbol for symbol, *_ in places})


def _follows(event: Event, region: Span) -> bool:
    """Is the call, or one on the way from it to the collective, below the region in its file?"""
    spans = (event.span, *(label.span for label in event.chain))
    return any(span.place == region.place and span.line > region.end_line for span in spans)


def under(event: Event, region: Span) -> bool:
    """Is the call, or one on the way from it to the collective, in the region?"""
    return any(span.starts_in(region) for span in (event.span, *(label.span for label in event.chain)))


def varies_of(difference: Difference) -> Variation:
    varies = difference.fork.condition.varies
    assert varies is not None
    return varies
