"""Event graphs: what a function does with the other ranks, as a graph that shares its continuations.

A graph consists of nodes, each holding what follows it, so that an early exit is an edge and not a copy, and its size
is linear in the function. `EventGraph` makes nodes from back to front. What a rank does is a path through it; graphs of
two ranks are equal when their projections are (`Projection`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import Final, TypeVar

from ddp_lint.divergence import worlds
from ddp_lint.divergence.groups import Group, can_diverge, replicas_can_diverge
from ddp_lint.divergence.values import Condition, Value, Variation
from ddp_lint.findings import Confidence, Label, Span
from ddp_lint.knowledge.communication import LEARNING_RATE
from ddp_lint.knowledge.communication import Condition as When
from ddp_lint.knowledge.communication import Kind as Effect

#: The kind of the forward of a part of a sharded model.
PART: Final = "part"
#: Effects that are compared among themselves, apart from the collectives of a process group.
APART: frozenset[str] = frozenset({"forward", PART, "backward", "step", "leave"})
#: From the least sure to the surest.
CONFIDENCES = (Confidence.LOW, Confidence.MEDIUM, Confidence.HIGH)


def as_written(call: str, op: str) -> str:
    """A call as messages write it; a learning rate is set, not called."""
    return call if op == LEARNING_RATE else f"{call}()"


class TooLarge(Exception):
    """The function is beyond the bound; it stays without a verdict."""


@dataclasses.dataclass(frozen=True)
class Called(Label):
    """One step of the way from the function at hand to the collective; `callee` is the call as it is written."""

    callee: str = ""


@dataclasses.dataclass(frozen=True, eq=False)
class Event:
    """One effect that other ranks wait for.

    `span` is the call in the function at hand, `chain` where the effect is when a callee has it (outermost first).
    `streams` are those that a call holds events of when it is kept whole, in source order; else its own one. `buffer`
    is the name of the first tensor that it moves, '' where that is no name.
    """

    op: str
    kind: Effect
    group: Group
    span: Span
    call: str
    implicit: bool = False
    when: str = ""
    evident: bool = True
    confidence: Confidence = Confidence.HIGH
    root: Value | None = None
    reduce_op: Value | None = None
    #: Why what is sent has another shape on each rank, if it has.
    uneven: Variation | None = None
    #: Why it decides otherwise on each rank, if what it is given does.
    decided: Variation | None = None
    #: Why the name under which the ranks combine their values is another one on each rank, if it is.
    keyed: Variation | None = None
    #: Why the group that is made has other members on each rank, if it has.
    members: Variation | None = None
    #: The ranks that the group is made of, () where they are not known.
    made_of: tuple[Hashable, ...] = ()
    chain: tuple[Called, ...] = ()
    streams: tuple[Hashable, ...] = ()
    buffer: str = ""
    #: It comes about only where something is sharded, as a test around the call says.
    sharded: bool = False
    #: The name of a replica whose forward it is, which sends the buffers, if there are any; else empty. Of a call
    #: that is kept whole: of the one whose forwards it makes, where these are all that it makes, and what follows them.
    replica: str = ""
    #: It shares statistics over the ranks, as it does in training mode alone.
    shares_statistics: bool = False
    #: It is called where gradients are off.
    quiet: bool = False
    #: A backward that comes to parameters on some ranks only: what the others have as a loss was made on the spot.
    loose: bool = False
    #: It comes about for each element of a collection that its object begins with as an empty one.
    of_held: bool = False
    #: It takes place at the end of the epoch, for all of its calls together.
    at_end: bool = False
    #: It is doubted for no other reason than that its file shows nothing of this: one that leads here may show it.
    unproven: When = ""

    def where(self, shown: Callable[[When], bool]) -> Event:
        """The event as it is where a file that leads here shows whether it communicates."""
        if not self.unproven or not shown(self.unproven):
            return self
        surer = max(self.confidence, Confidence.MEDIUM, key=CONFIDENCES.index)
        return dataclasses.replace(self, evident=True, unproven="", confidence=surer)

    def seen_from(self, span: Span, call: str, chain: tuple[Called, ...], group: Group) -> Event:
        """The event as a caller sees it. Made once for each call on the way, of thousands in a file: to copy the fields
        costs a tenth of what `dataclasses.replace` does."""
        seen = object.__new__(type(self))
        seen.__dict__.update(self.__dict__, span=span, call=call, chain=chain, group=group)
        return seen

    @property
    def stream(self) -> Hashable:
        return self.kind if self.kind in APART else self.group

    @property
    def symbol(self) -> Hashable:
        """What must agree on all ranks."""
        return (self.op, self.stream)

    @property
    def detail(self) -> Hashable:
        """The symbol, with the root, reduce operation and members as far as they are known."""
        return (self.op, self.stream, *self.agreed)

    @property
    def agreed(self) -> tuple[Hashable, Hashable, Hashable]:
        """The arguments that must agree on all ranks, None for what is not known."""
        return constant_or_name(self.root), constant_or_name(self.reduce_op), self.made_of or None


def constant_or_name(value: Value | None) -> Hashable:
    """A constant or the name of one (``ReduceOp.SUM``); None for anything else."""
    if value is None:
        return None
    if value.constant is not None:
        return ("constant", value.constant)
    return getattr(value.reference, "name", None)


@dataclasses.dataclass(eq=False, slots=True)
class End:
    """Where a graph stops: 'end' of the function, 'error', 'exit' of the process, 'again' (the loop's next round),
    'break'."""

    number: int
    what: str


@dataclasses.dataclass(eq=False, slots=True)
class EventNode:
    number: int
    event: Event
    after: Node


@dataclasses.dataclass(eq=False, slots=True)
class Choice:
    number: int
    condition: Condition
    yes: Node
    no: Node
    span: Span


@dataclasses.dataclass(eq=False, slots=True)
class Loop:
    """Rounds of `body` (which stops at `again` or `leave`), then `after`. `rounds` is None for a uniform number."""

    number: int
    body: Node
    again: End
    leave: End
    rounds: Condition | None
    after: Node
    span: Span
    streams: frozenset[Hashable]
    #: Left by its body alone, never because what it iterates over is at its end.
    endless: bool = False
    #: Left after a number of steps, which the rounds of loops within count: they may end where they like.
    by_steps: bool = False
    #: Left by what a collective in it has given.
    answers: bool = False


Node = End | EventNode | Choice | Loop
N = TypeVar("N", End, EventNode, Choice, Loop)


def ways(node: Node, outcome: object = None) -> tuple[Node, ...]:
    """The nodes that one leads to; `outcome`: of the choice that it is, where that is known to be True or False."""
    if isinstance(node, Choice):
        return (node.yes if outcome else node.no,) if isinstance(outcome, bool) else (node.yes, node.no)
    if isinstance(node, Loop):
        return (node.body, node.after)
    return (node.after,) if isinstance(node, EventNode) else ()


def reached_from(start: Node, outcome: Callable[[Condition], object] = lambda _: None) -> set[int]:
    """The numbers of the nodes to which a way leads from one, with itself. `outcome`: what a choice comes to."""
    left, seen = [start], {start.number}
    while left:
        node = left.pop()
        found = ways(node, outcome(node.condition) if isinstance(node, Choice) else None)
        left += [way for way in found if way.number not in seen]
        seen.update(way.number for way in found)
    return seen


class EventGraph:
    """The nodes of one graph, in the order they were made: what follows comes before what it follows."""

    #: Nodes that one function may have.
    BOUND = 20_000

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        #: Where a rank does as often as the others want what they wait for (`Rounds.serves`).
        self.serving: list[Span] = []
        self.end = self.stop("end")
        self.error = self.stop("error")
        self.exit = self.stop("exit")

    def next_number(self) -> int:
        """The number of a node that is added. Raises TooLarge."""
        if len(self.nodes) >= self.BOUND:
            raise TooLarge
        return len(self.nodes)

    def stop(self, what: str) -> End:
        return self.add(End(self.next_number(), what))

    def emit(self, event: Event, after: Node) -> Node:
        return self.add(EventNode(self.next_number(), event, after))

    def choice(self, condition: Condition, yes: Node, no: Node, span: Span) -> Node:
        """Equal arms collapse."""
        if yes is no:
            return yes
        if not condition.open and isinstance(condition.truths[0], bool) and len(set(condition.truths)) == 1:
            return yes if condition.truths[0] else no
        return self.add(Choice(self.next_number(), condition, yes, no, span))

    def add(self, node: N) -> N:
        self.nodes.append(node)
        return node


def streams_of(nodes: list[Node]) -> Iterator[Hashable]:
    """The streams of the graph, each once, in source order of their first events."""
    seen: set[Hashable] = set()
    last: Hashable = None
    for node in reversed(nodes):
        if isinstance(node, EventNode):
            if node.event.stream is last and not node.event.streams:
                continue  # to look one up costs more than all else here
            last = node.event.stream if not node.event.streams else None
            for stream in node.event.streams or (node.event.stream,):
                if stream not in seen:
                    seen.add(stream)
                    yield stream


#: Shared conditions of one function that are tried as guards.
_GUARDS = 40


def guards_of_all(graph: EventGraph, start: Node) -> list[tuple[Condition, bool]]:
    """Shared conditions without whose outcome no event is reached, with that outcome: the way in to all of them."""
    shared = {
        node.condition.truths: node.condition
        for node in graph.nodes
        if isinstance(node, Choice) and node.condition.varies is None and not node.condition.open
    }
    guards = list(shared.values())[:_GUARDS]
    reached = _reached(graph, start, {condition.truths: 2 * place for place, condition in enumerate(guards)})
    outcomes = [(reached >> 2 * place) & 3 for place in range(len(guards))]
    return [(condition, ways == 2) for condition, ways in zip(guards, outcomes, strict=True) if ways in (1, 2)]


def _reached(graph: EventGraph, start: Node, places: Mapping[Hashable, int]) -> int:
    """Whether an event is reached: two bits for each condition, where it comes out False, where True. All conditions
    are followed in one pass: a node comes after those that it leads to."""
    everything = (1 << 2 * len(places)) - 1
    reached = [0] * len(graph.nodes)
    for node in graph.nodes:
        if isinstance(node, EventNode):
            reached[node.number] = everything
        elif isinstance(node, Choice):
            yes, no = reached[node.yes.number], reached[node.no.number]
            place = places.get(node.condition.truths)
            other = 0 if place is None else 1 << place
            reached[node.number] = (yes | no) & ~(3 * other) | no & other | yes & 2 * other
        elif isinstance(node, Loop):
            reached[node.number] = reached[node.body.number] | reached[node.after.number]
    return reached[start.number]


class Projection:
    """What each world does in one stream: a number for each node, equal when the events from there on are.

    Uniform and open choices stay symbolic, so equal numbers mean equal graphs for every common choice.
    """

    def __init__(self, graph: EventGraph, stream: Hashable) -> None:
        self.stream = stream
        self._table: dict[Hashable, int] = {}
        self._loops = {node.again: node for node in graph.nodes if isinstance(node, Loop)}
        self._loops |= {node.leave: node for node in graph.nodes if isinstance(node, Loop)}
        conditions = (node.condition for node in graph.nodes if isinstance(node, Choice))
        parts = any(not condition.open and len(set(condition.truths)) > 1 for condition in conditions)
        # Where no choice tells the worlds apart, one stands for all of them.
        first = self._project(graph, 0)
        self.numbers = [first, *(self._project(graph, world) if parts else first for world in range(1, worlds.COUNT))]

    def holds(self, event: Event) -> bool:
        if event.streams:
            return self.stream in event.streams
        return event.stream is self.stream or event.stream == self.stream  # mostly the one object for all ranks

    def truth(self, condition: Condition, world: int) -> bool | Hashable:
        """The choice in a world; a key where it is the same choice for all members of the stream's group."""
        if condition.open:
            return condition.truths[0]
        if condition.varies is not None and not self.separates(condition):
            return ("together", condition.truths)
        return condition.truths[world]

    def separates(self, condition: Condition) -> bool:
        """Can two of the ranks that take part in the stream choose differently?"""
        if condition.varies is None or (isinstance(self.stream, Group) and self.stream.may_be_chosen_by(condition)):
            return False
        return self.diverges(condition.varies)

    def diverges(self, varies: Variation) -> bool:
        """Can two of the ranks that take part in the stream differ in this?"""
        if isinstance(self.stream, Group):
            return can_diverge(varies, self.stream)
        return replicas_can_diverge(varies)

    def loop_of(self, end: End) -> Loop | None:
        return self._loops.get(end)

    def is_live(self, loop: Loop) -> bool:
        return self.stream in loop.streams

    def _project(self, graph: EventGraph, world: int) -> list[int]:
        numbers = [0] * len(graph.nodes)
        for node in graph.nodes:
            numbers[node.number] = self._number(self._form(node, numbers, world))
        return numbers

    def _number(self, form: Hashable) -> int:
        return form if isinstance(form, int) else self._table.setdefault(form, len(self._table))

    def _form(self, node: Node, numbers: list[int], world: int) -> Hashable:
        if isinstance(node, End):
            loop = self._loops.get(node)
            dead = loop is not None and not self.is_live(loop)
            return numbers[loop.after.number] if loop is not None and dead else ("stop", node.what)
        if isinstance(node, EventNode):
            after = numbers[node.after.number]
            return (node.event.detail, after) if self.holds(node.event) else after
        if isinstance(node, Choice):
            truth = self.truth(node.condition, world)
            yes, no = numbers[node.yes.number], numbers[node.no.number]
            error = self._number(("stop", "error"))
            if isinstance(truth, bool):
                return yes if truth else no
            if error in (yes, no):  # an error ends the job on every rank: what counts is the way without
                return no if yes == error else yes
            return yes if yes == no else ("choice", truth, yes, no)
        after, body = numbers[node.after.number], numbers[node.body.number]
        dead = body == (after if not self.is_live(node) else numbers[node.again.number])  # no events on this rank
        return after if dead or self._is_silent(node, world) else ("loop", body, after)

    def _is_silent(self, loop: Loop, world: int) -> bool:
        """Does no round have an event for a rank of this world, nor leave the function?"""
        stack, seen = [loop.body], {loop.body.number}
        while stack:
            node = stack.pop()
            if isinstance(node, End):
                inner = self._loops.get(node)
                if inner is None or inner.number > loop.number:
                    return False
                ways = [inner.after] if inner is not loop else []
            elif isinstance(node, EventNode):
                if self.holds(node.event):
                    return False
                ways = [node.after]
            elif isinstance(node, Choice):
                truth = self.truth(node.condition, world)
                ways = [node.yes if truth else node.no] if isinstance(truth, bool) else [node.yes, node.no]
            else:
                ways = [node.body, node.after]
            stack += [way for way in ways if way.number not in seen]
            seen.update(way.number for way in ways)
        return True
