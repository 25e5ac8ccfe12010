"""From the tree of effects to the event graph, back to front, each continuation made once."""

from __future__ import annotations

import builtins
import dataclasses
from collections.abc import Callable

from ddp_lint.divergence.effects import (
    Attempt,
    Branch,
    Effect,
    EventStep,
    Inline,
    Leave,
    Rounds,
    communicates,
    hands_over,
    matters,
    may_exit,
)  # fmt: skip
from ddp_lint.divergence.event_graph import Called, Event, EventGraph, Loop, Node, TooLarge, streams_of
from ddp_lint.divergence.groups import of_object
from ddp_lint.divergence.values import Condition, Test
from ddp_lint.findings import Span
from ddp_lint.knowledge.communication import Condition as When


@dataclasses.dataclass(eq=False, slots=True)
class Exits:
    """Where each way out of the current block leads."""

    returns: Node
    #: Of an exception whose class is not known, or that nothing here is for.
    raises: Node
    breaks: Node
    continues: Node
    #: Of the process, without an error: the others go on.
    ends: Node
    #: What a `yield` runs: effects and the exits of the block that they belong to.
    yields: tuple[list[Effect], Exits, Site | None] | None = None
    manager: bool = False
    #: Handlers of the `try` around, by the exceptions they are for, and the exits around that `try`.
    catches: tuple[tuple[frozenset[str], Node], ...] = ()
    outside: Exits | None = None
    #: Collects what follows each `yield` instead of running the body.
    probe: list[Node] | None = None
    #: For each `yield`, by the order they are built: the way out for `return`, `break` and `continue` of the body.
    ways: list[tuple[Node, Node, Node]] | None = None


@dataclasses.dataclass(eq=False, slots=True)
class Site:
    """The calls between the function at hand and the effect, which the function `callee` has."""

    span: Span
    text: str
    chain: tuple[Called, ...]
    callee: str
    depth: int = 1
    #: The object that the innermost method is called on, '' for the one at hand.
    receiver: str = ""
    #: Gradients are off in one of the calls.
    quiet: bool = False

    def anchored(self, event: Event) -> Event:
        """The event as seen from the function at hand: at the outermost call, with the way to it."""
        chain = (*self.chain, *(event.chain or (called(self.callee, event.call, event.span),)))
        seen = event.seen_from(self.span, self.text, chain, of_object(event.group, self.receiver))
        return dataclasses.replace(seen, quiet=True) if self.quiet and not event.quiet else seen


def build(
    effects: list[Effect],
    graph: EventGraph,
    *,
    caught: bool = False,
    whole: bool = True,
    shown: Callable[[When], bool] = lambda when: False,
) -> Node:
    """The event graph of a function. Raises TooLarge.

    `caught`: its callers catch all exceptions, so a handler that raises is one that returns; on what is raised under a
    test, the ranks have mostly agreed. `whole`: what makes the ranks diverge in a callee by itself is reported there,
    else it is kept as it is. `shown`: what the files that lead to the function show of the job.
    """
    if not communicates(effects):
        return graph.end
    exits = Exits(graph.end, graph.error, graph.end, graph.end, graph.exit)
    return _Builder(graph, caught, whole, shown).sequence(effects, graph.end, exits, None)


class _Builder:
    #: Effects that one graph may be made of, a generator's again at each place that it is inlined at.
    BOUND = 100_000

    def __init__(self, graph: EventGraph, caught: bool, whole: bool, shown: Callable[[When], bool]) -> None:
        self._graph = graph
        self._caught = caught
        self._whole = whole
        self._shown = shown
        self._left = self.BOUND
        #: Branches on which the ranks diverge, around the effect at hand.
        self._apart = 0

    def sequence(self, effects: list[Effect], after: Node, exits: Exits, site: Site | None) -> Node:
        self._left -= len(effects)
        if self._left < 0:
            raise TooLarge
        for effect in reversed(effects):
            after = self._one(effect, after, exits, site)
        return after

    def _one(self, effect: Effect, after: Node, exits: Exits, site: Site | None) -> Node:
        if isinstance(effect, EventStep):
            event = effect.event.where(self._shown)
            return self._graph.emit(site.anchored(event) if site else event, after)
        if isinstance(effect, Leave):
            return _way_out(effect, exits)
        if isinstance(effect, Branch):
            apart = effect.test.varying() is not None
            self._apart += apart
            yes = self.sequence(effect.yes, after, exits, site)
            no = self.sequence(effect.no, after, exits, site)
            self._apart -= apart
            # Which calls a rank that has ended misses is known only to the callers of the callee.
            ends = apart and may_exit([*effect.yes, *effect.no])
            depth = self._depth(site, exits, [*effect.yes, *effect.no]) if not ends else 0
            return self.test(effect.test, yes, no, effect.span, depth)
        if isinstance(effect, Rounds):
            return after if effect.callback and not self._apart else self._rounds(effect, after, exits, site)
        if isinstance(effect, Attempt):
            return self._attempt(effect, after, exits, site)
        if isinstance(effect, Inline):
            return self._inline(effect, after, exits, site)
        return self._yielded(after, exits)

    def test(self, test: Test, yes: Node, no: Node, span: Span, depth: int) -> Node:
        """A formula as nested choices, evaluated from left to right."""
        if test.atom is not None:
            return self._graph.choice(self._settled(test.atom, depth), yes, no, span)
        if test.op == "not":
            return self.test(test.parts[0], no, yes, span, depth)
        node = yes if test.op == "and" else no
        for part in reversed(test.parts):
            if test.op == "and":
                node = self.test(part, node, no, span, depth)
            else:
                node = self.test(part, yes, node, span, depth)
        return node

    def _depth(self, site: Site | None, exits: Exits, effects: list[Effect]) -> int:
        """How far below the function at hand a choice is. One on which it depends whether a generator goes on with its
        consumer is the consumer's own: in the generator nothing of it is seen."""
        generator = exits.yields is not None and not exits.manager
        consumed = generator and (hands_over(effects) or _leaves(effects))
        return site.depth if site is not None and not consumed else 0

    def _rounds(self, effect: Rounds, after: Node, exits: Exits, site: Site | None) -> Node:
        if effect.serves:
            self._graph.serving.append(effect.span)
        finished = self.sequence(effect.orelse, after, exits, site)
        if 0 < effect.times <= _WRITTEN_OUT and _is_plain(effect.body):
            for _ in range(effect.times):
                finished = self.sequence(effect.body, finished, exits, site)
            return finished
        mark = len(self._graph.nodes)
        again, leave = self._graph.stop("again"), self._graph.stop("break")
        inner = dataclasses.replace(exits, breaks=leave, continues=again)
        body = self.sequence(effect.body, again, inner, site)
        streams = frozenset(streams_of(self._graph.nodes[mark:]))
        if not streams:  # nothing to count: one round represents all of them
            inner = dataclasses.replace(exits, breaks=after, continues=finished)
            return self.sequence(effect.body, finished, inner, site)
        rounds = effect.rounds and self._settled(effect.rounds, self._depth(site, exits, effect.body))
        number = self._graph.next_number()
        kinds = {"endless": effect.endless, "by_steps": effect.by_steps, "answers": effect.answers}
        return self._graph.add(Loop(number, body, again, leave, rounds, finished, effect.span, streams, **kinds))

    def _attempt(self, effect: Attempt, after: Node, exits: Exits, site: Site | None) -> Node:
        """`finally` runs on every way out; a handler is an alternative to the whole body."""
        if effect.final:
            ways: dict[Node, Node] = {}

            def finally_then(node: Node) -> Node:
                if node not in ways:
                    ways[node] = self.sequence(effect.final, node, exits, site)
                return ways[node]

            after = finally_then(after)
            exits = dataclasses.replace(
                exits, returns=finally_then(exits.returns), breaks=finally_then(exits.breaks),
                continues=finally_then(exits.continues), ends=finally_then(exits.ends),
                raises=finally_then(exits.raises),
            )  # fmt: skip
        is_caught = self._caught and exits.raises is self._graph.error
        handling = dataclasses.replace(exits, raises=self._graph.end) if is_caught else exits
        handlers = [(raised, self.sequence(body, after, handling, site)) for raised, body in effect.handlers]
        inner = exits
        if handlers:
            catches = tuple(zip(effect.caught, (handler for _, handler in handlers), strict=False))
            # An exception whose class is not known is no interrupt: those pass by what catches interrupts alone.
            first = next((handler for names, handler in catches if not names <= _INTERRUPTS), exits.raises)
            inner = dataclasses.replace(exits, raises=first, catches=catches, outside=exits)
        node = self.sequence(effect.body, after, inner, site)
        for raised, handler in reversed(handlers):
            node = self._graph.choice(self._settled(raised, site.depth if site else 0), handler, node, effect.span)
        return node

    def _inline(self, effect: Inline, after: Node, exits: Exits, site: Site | None) -> Node:
        chain = (*site.chain, _shown(effect, site.callee)) if site else ()
        receiver = effect.text.rpartition(".")[0]
        if receiver in ("self", "super()"):
            receiver = site.receiver if site else ""
        depth = (site.depth if site else 0) + (not effect.nested) - effect.handed
        quiet = effect.quiet or (site is not None and site.quiet)
        below = Site(site.span, site.text, chain, effect.callee, depth, receiver, quiet) if site else Site(
            effect.call, effect.text, (), effect.callee, depth, receiver, quiet
        )  # fmt: skip
        # A `break` in what consumes a generator leaves the loop over it, not one around that.
        yields = None
        if effect.yields is not None:
            yields = (effect.yields, exits if effect.manager else dataclasses.replace(exits, breaks=after), site)
        ways = self._ways(effect, exits, below) if effect.manager and _leaves(effect.yields or []) else None
        inner = Exits(
            returns=after, raises=exits.raises, breaks=after, continues=after, ends=exits.ends, yields=yields,
            manager=effect.manager, catches=exits.catches, outside=exits.outside, ways=ways,
        )  # fmt: skip
        return self.sequence(effect.effects, after, inner, below)

    def _ways(self, effect: Inline, exits: Exits, below: Site) -> list[tuple[Node, Node, Node]]:
        """Leaving the body of a `with` runs the manager's rest: what that rest is, for each way out."""
        found: list[list[Node]] = []
        for target in (exits.returns, exits.breaks, exits.continues):
            probe: list[Node] = []
            inner = dataclasses.replace(
                exits,
                returns=target,
                breaks=target,
                continues=target,
                yields=None,
                manager=False,
                probe=probe,
                ways=None,
            )
            self.sequence(effect.effects, target, inner, below)
            found.append(probe)
        return list(zip(*found, strict=True))

    def _settled(self, condition: Condition, depth: int) -> Condition:
        """An open choice that arose in a callee is reported there: to its callers it is one choice like any other."""
        varies = condition.varies
        if varies is None or not condition.open or varies.call_depth >= depth:
            return condition
        if not self._whole and varies.by_rank_or_place:
            return condition
        return Condition((("settled", condition.text, condition.truths[0]),) * len(condition.truths), condition.text)

    def _yielded(self, after: Node, exits: Exits) -> Node:
        if exits.probe is not None:
            exits.probe.append(after)
            return after
        if exits.yields is None:
            return after
        body, outer, site = exits.yields
        if not matters(body) and not _leaves(body):
            return after
        if exits.ways:
            returns, breaks, continues = exits.ways.pop(0)
            outer = dataclasses.replace(outer, returns=returns, breaks=breaks, continues=continues)
        elif not exits.manager:  # a generator's consumer: its `continue` resumes the generator
            outer = dataclasses.replace(outer, continues=after)
        return self.sequence(body, after, outer, site)


#: What is no `Exception`: a user or a signal stops the process, or it ends itself.
_INTERRUPTS = frozenset({"KeyboardInterrupt", "SystemExit", "GeneratorExit"})
#: Rounds of a loop that are written out one after the other, so that it equals the calls written out.
_WRITTEN_OUT = 4


def _is_plain(effects: list[Effect]) -> bool:
    """Are there only events in it, without any choice, so that all rounds are alike?"""
    return all(
        isinstance(effect, EventStep)
        or (isinstance(effect, Inline) and effect.yields is None and _is_plain(effect.effects))
        for effect in effects
    )


def _shown(effect: Inline, caller: str) -> Called:
    """The call as a step of the way to a collective, made once."""
    if effect.shown is None or effect.shown[0] != caller:
        effect.shown = caller, called(caller, effect.text, effect.call)
    return effect.shown[1]


def called(caller: str, callee: str, span: Span) -> Called:
    return Called(span, f"{caller}() calls {callee}() here", callee)


def _way_out(effect: Leave, exits: Exits) -> Node:
    if effect.what == "raise":
        return _handler(exits, effect.raised)
    ways = {"return": exits.returns, "break": exits.breaks, "continue": exits.continues, "exit": exits.ends}
    return ways[effect.what]


def _handler(exits: Exits, raised: str) -> Node:
    """Where ``raise X`` leads: to the first handler around that is for it, if Python itself defines X."""
    class_ = getattr(builtins, raised, None)
    if not isinstance(class_, type):
        return exits.raises
    around: Exits | None = exits
    while around is not None and around.catches:
        for names, handler in around.catches:
            if any(_is_for(name, class_) for name in names):
                return handler
        around = around.outside
    return around.raises if around is not None else exits.raises


def _is_for(name: str, raised: type) -> bool:
    """Is a handler there for what is raised? One for all exceptions is not there for an assertion: where a function
    asserts which rank it runs on, its callers see to that."""
    handled = getattr(builtins, name, None)
    if raised is AssertionError:
        return handled is AssertionError
    return isinstance(handled, type) and issubclass(raised, handled)


def _leaves(effects: list[Effect]) -> bool:
    return any(
        isinstance(effect, Leave)
        or (isinstance(effect, Branch) and (_leaves(effect.yes) or _leaves(effect.no)))
        or (isinstance(effect, Rounds) and _leaves(effect.body))
        or (isinstance(effect, Attempt) and (_leaves(effect.body) or any(_leaves(h) for _, h in effect.handlers)))
        for effect in effects
    )
