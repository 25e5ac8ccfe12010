"""From a difference of event graphs to what a reader is shown: kind, places, and what each rank does."""

from __future__ import annotations

import collections
import dataclasses
import functools
from collections.abc import Iterator
from typing import TypeGuard

from ddp_lint.divergence import file_race, worlds
from ddp_lint.divergence.backends import is_asked
from ddp_lint.divergence.compare import SHARDED_MODE, Comparison, Difference, Side, Step, under, varies_of
from ddp_lint.divergence.event_graph import (
    CONFIDENCES,
    Choice,
    End,
    Event,
    EventGraph,
    EventNode,
    Node,
    as_written,
    reached_from,
)
from ddp_lint.divergence.groups import OF_MACHINES, shown
from ddp_lint.divergence.mismatches import Kind, Mismatch
from ddp_lint.divergence.values import Component, Condition, Known, Value, Variation, asks_for_shards
from ddp_lint.findings import Confidence, Label, RankTrace, Span
from ddp_lint.knowledge.communication import LEARNING_RATE


def mismatch_of(difference: Difference, comparison: Comparison, region: Span) -> Mismatch:
    event = difference.event
    varies = file_race.race_of(difference, varies_of(difference), _chosen(difference.first, difference.fork))
    ranks = _ranks(difference, varies)
    branch = difference.fork.span
    labels = [Label(branch, _branch_text(difference, varies))]
    if varies.origin is not None and varies.origin.span.line != branch.line:
        labels.append(varies.origin)
    labels.extend(event.chain)
    if difference.other is not None and event.op != LEARNING_RATE:  # which is set besides, not instead
        labels.append(Label(difference.other.span, f"{ranks[1]} {_does(difference.other)} here instead"))
    return Mismatch(
        kind=_kind(difference, varies),
        span=event.span,
        op=event.op,
        call=event.call,
        confidence=_confidence(event, varies, difference, region),
        doubt=next(_doubts(event, varies, difference, region), ""),
        branch=branch,
        condition=difference.fork.condition.text,
        cause=varies.cause,
        description=varies.description,
        group=shown(event.group),
        when=event.when,
        evident=event.evident,
        reason=_reason(difference),
        ranks=ranks,
        labels=tuple(labels),
        way=event.chain,
        instead=difference.other.call if difference.other is not None else "",
        caught=difference.fork.condition.caught,
        called_in_handler=difference.fork.condition.caught and _chosen(difference.first, difference.fork) is True,
        by_node=difference.fork.condition.by_node,
        alone=difference.alone,
        rounds=_goes_round(difference),
        witness=(
            _trace(ranks[0], difference.first, difference, comparison, event, region),
            _trace(ranks[1], difference.second, difference, comparison, difference.other, region),
        ),
    )


def _kind(difference: Difference, varies: Variation) -> Kind:
    event = difference.event
    if difference.how == "argument":
        return Kind.GROUP if event.kind == "group" else Kind.ARGUMENT
    if varies.cause == "length":
        return Kind.LOOP
    if event.kind in ("step", "backward"):
        return Kind.STEP
    if event.kind in ("forward", "part"):
        return Kind.FORWARD
    if event.kind == "group":
        return Kind.GROUP
    if varies.cause == "order" or difference.how in ("swapped", "crossed"):
        return Kind.ORDER
    if difference.how == "rounds":
        return Kind.LOOP
    if not varies.by_rank_or_place:
        return Kind.CONDITION
    return Kind.IMPLICIT if event.implicit else Kind.BRANCH


def _reason(difference: Difference) -> str:
    if difference.how == "argument":
        if difference.event.kind == "group":
            return "members"
        other = difference.other
        same_root = other is None or difference.event.root is None or other.root is None
        return "reduce op" if same_root else "root"
    if difference.how == "crossed":
        return "tensors"
    if difference.event.loose and difference.fork.span == difference.event.span:
        return "loose"
    return difference.event.kind if difference.event.kind in ("step", "backward") else ""


def _confidence(event: Event, varies: Variation, difference: Difference, region: Span) -> Confidence:
    if next(_doubts(event, varies, difference, region), ""):
        return Confidence.LOW
    sharded = varies.cause == "order" and event.op == "full_tensor"  # in an order of its own, wherever it may be done
    limits = [Confidence.MEDIUM if sharded else event.confidence, varies.confidence]
    if len(event.chain) > 4 or event.streams or _may_be_split(event, varies):
        limits.append(Confidence.MEDIUM)
    return min(limits, key=CONFIDENCES.index)


def _may_be_split(event: Event, varies: Variation) -> bool:
    """Is the membership in the group independent of the condition?"""
    return bool(event.group.key) and not event.group.axis and varies.scope != f"group:{event.group.key}"


def _doubts(event: Event, varies: Variation, difference: Difference, region: Span) -> Iterator[str]:
    """Why the ranks may well not diverge: the reasons for the lowest confidence, the closest one first."""
    yield from _doubts_of_call(event, varies, f"`{difference.fork.condition.text}`")
    yield from _doubts_of_test(event, varies, difference)
    if _comes_from_elsewhere(varies, difference, region):
        yield "the value comes from another function: the ranks may have agreed on it on its way"


def _doubts_of_call(event: Event, varies: Variation, test: str) -> Iterator[str]:
    if event.confidence is Confidence.LOW and not (varies.cause == "order" and event.op == "full_tensor"):
        when = f" {event.when}, of which there is no evidence" if event.when and not event.evident else ""
        yield (
            f"communicates only{when}" if when else "it is not certain that the call communicates with other ranks here"
        )
    if varies.confidence is Confidence.LOW:
        yield f"{test} may be the same on all ranks of the group"
    if event.group.hidden and varies.by_rank_or_place:
        yield f"the ranks of the group are not known, and {test} may depend on it"
    if event.kind == "leave":
        yield "if a rank ends, the others wait only in later calls"
    if event.kind == "group" and not varies.by_rank_or_place:
        yield f"{test} does not depend on the rank, and most groups are created by all ranks"
    if varies.cause == "order" and ("object" in event.op or event.op == "barrier" or event.streams):
        yield "it is the same call for every element"
    if event.op == LEARNING_RATE and varies.cause != "rank":
        yield "in a script of one process the learning rate may depend on the loss"


def _doubts_of_test(event: Event, varies: Variation, difference: Difference) -> Iterator[str]:
    if (
        event.kind in ("step", "backward")
        and _goes_round(difference)
        and varies.cause not in ("length", "rank", "clock", "signal")
        and varies.aspect not in ("share", "count", "size")
    ):
        yield "every training loop ends with its batches; where they are uneven the forward in it shows it"
    if varies.aspect in ("emptiness", "modality", "parameter") and "broadcast" in event.op:
        yield "all ranks receive what one rank sends, also an empty tensor"
    if varies.aspect in ("modality", "parameter") and event.group.key:
        yield "the ranks of a smaller group usually share their samples"
    yield from _doubts_of_data(varies, _kind(difference, varies))
    if varies.aspect == "gradients" and event.op == "full_tensor":
        yield "all ranks hold a part of a DTensor: either all have a gradient for it, or none"
    elif varies.aspect == "gradients" and not event.group.holds_experts:
        # When they were first read on public code (blocks 70 to 74), none of 4 was true.
        yield "ranks that run one model have gradients for the same parameters, or for a part of the same unit each"
    if (decided := _exit_of_all(difference)) is not None:
        yield f"`{decided.condition.text}` ends every process that comes to it, and is the same on all ranks"
    other_when = difference.other.when if difference.other is not None else ""
    if (event.when or other_when) and _without_sharding(difference):
        yield "the test is off where parameters are sharded, and only there does the call communicate"
    if _may_hold_nothing(difference, varies):
        yield "it communicates for what the object of a round holds, and one that a rank has more may hold nothing"
    if varies.cause == "file" and (varies.origin is None or varies.origin.span.line != difference.fork.span.line):
        yield "the ranks usually share a file system"


def _doubts_of_data(varies: Variation, kind: Kind) -> Iterator[str]:
    """Doubts by what of a rank's own data decides over a collective. When they were first read on public code (blocks
    73 to 92), of 5 findings by a parameter with the name of a field none was true, and of 3 by a number of a batch
    that a loop counts to none, and of 2 by whether a dictionary is empty none."""
    if kind not in (Kind.CONDITION, Kind.LOOP):
        return
    if varies.aspect == "parameter":
        yield "whether a parameter is given is mostly a matter of the call, which is the same on all ranks"
    elif varies.aspect == "size" and kind is Kind.LOOP:
        yield "nothing shows that samples are of unlike lengths"
    elif varies.aspect == "contents":
        yield "the keys of a dictionary are mostly the same on all ranks"
    elif varies.aspect == "batches" and varies.call_depth >= _FAR:
        yield "the value has come a long way from the batch: it may be one that all batches share"


#: Calls through which a value has come a long way from a rank's batch.
_FAR = 2


def _comes_from_elsewhere(varies: Variation, difference: Difference, region: Span) -> bool:
    """Does data of another function decide? When they were first read on public code (blocks 57 to 70), of 14 findings
    by batches that another function returns or keeps in an attribute 13 were false: the ranks had agreed on the value
    on its way, or it was a count that the data did not decide. A share that a caller passes may be filled up on its
    way; one that another function cuts out for each rank is not."""
    local = varies.origin is None or varies.origin.span.starts_in(region)
    if local or varies.cause != "data" or _kind(difference, varies) not in (Kind.CONDITION, Kind.LOOP):
        return False
    return (varies.aspect == "share") is (varies.call_depth > 0)


def _goes_round(difference: Difference) -> bool:
    """Do the ranks diverge by going round the loop a different number of times, and not by an exit from it?"""
    return difference.loop is not None and difference.fork.condition is difference.loop.rounds


def _may_hold_nothing(difference: Difference, varies: Variation) -> bool:
    """Does a round call its object, ``callback.finish()``, and communicates that for each element of a collection alone
    with which the object begins empty? Ranks that have another object more may have one that fills nothing."""
    event, loop = difference.event, difference.fork.span
    if not event.of_held or not _goes_round(difference) or not varies.by_rank_or_place:
        return False
    calls = ((event.span, event.call), *((step.span, step.callee) for step in event.chain))
    called = next((call for span, call in calls[:-1] if span.starts_in(loop)), "")  # the last is the collective
    return "." in called and called.partition(".")[0] not in ("self", "super()", "cls")


def _exit_of_all(difference: Difference) -> Step | None:
    """The test, the same on all ranks, by which the rank that others wait for has ended its process before it comes to
    its own call: ``if args.model not in known: sys.exit()``."""
    _, second = difference.where or (difference.first, difference.second)
    last, fork = second.trail, difference.fork.span
    ended = isinstance(second.node, End) and second.node.what == "exit" and under(difference.event, fork)
    if not ended or last is None or last.condition.varies is not None or last.span.starts_in(fork):
        return None
    return last


def needs_shards(difference: Difference) -> bool:
    """Have both ranks come here because something is sharded: ``if isinstance(model, FSDP):``?"""
    return difference.event.sharded or any(
        step.chosen and asks_for_shards(step.condition)
        for side in (difference.first, difference.second)
        for step in (side.trail.backwards() if side.trail else ())
    )


def _without_sharding(difference: Difference) -> bool:
    """Has either rank come here because the job is none of those that shard parameters?"""
    return any(
        not step.chosen and SHARDED_MODE.search(step.condition.text) and not is_asked(step.condition)
        for side in (difference.first, difference.second)
        for step in (side.trail.backwards() if side.trail else ())
    )


def _ranks(difference: Difference, varies: Variation) -> tuple[str, str]:
    if varies.by_rank_or_place and not difference.fork.condition.open:
        return worlds.WORLDS[difference.first.world].name, worlds.WORLDS[difference.second.world].name
    if varies.cause == "membership":
        return "a member", "another rank"
    if varies.cause == "rank":
        return "one rank", "another rank"
    return "one rank", "another rank"


def _branch_text(difference: Difference, varies: Variation) -> str:
    text = difference.fork.condition.text
    if _goes_round(difference) and varies.cause == "order":
        return f"the order of this loop differs between ranks: `{text}` depends on {varies.description}"
    if _goes_round(difference):
        return f"ranks run this loop a different number of times: `{text}` depends on {varies.description}"
    if varies.by_rank_or_place and not difference.fork.condition.open:
        return f"the ranks diverge here: `{text}`"
    return f"the ranks diverge here: `{text}` depends on {varies.description}"


def _trace(
    rank: str, side: Side, difference: Difference, comparison: Comparison, event: Event | None, region: Span
) -> RankTrace:
    """The choice at the branch, then the next events."""
    steps: list[Label] = []
    fork = difference.fork
    chosen = _chosen(side, fork)
    if _goes_round(difference):
        steps.append(Label(fork.span, "runs one more iteration" if side is difference.first else "has left the loop"))
    elif chosen is not None:
        steps.append(Label(fork.span, f"`{fork.condition.text}` is {chosen}"))
    if event is None and (loop := comparison.next_round(side)) is not None:
        return RankTrace(rank, (*steps, Label(loop.span, "continues with the next iteration without it")))
    upcoming = comparison.upcoming(side, 2)
    if event is not None and (not upcoming or upcoming[0].span != event.span):
        upcoming = [event, *upcoming[:1]]
    for index, coming in enumerate(upcoming):
        first = event is not None and not index
        steps.append(Label(coming.span, f"{_does(coming, waits=first)}{_meaning(coming)}"))
    if not upcoming:
        end = dataclasses.replace(region, line=region.end_line, column=max(1, region.end_column - 1))
        steps.append(Label(end, "reaches the end without it"))
    return RankTrace(rank, tuple(steps))


def _does(event: Event, *, waits: bool = False) -> str:
    """What a rank does there: no rank waits for the step of another one's optimizer, and a learning rate is no call."""
    verb = "sets" if event.op == LEARNING_RATE else "waits in" if waits and event.kind != "step" else "calls"
    return f"{verb} {as_written(event.call, event.op)}"


def _meaning(event: Event) -> str:
    """The collective behind a call of another name, and its group."""
    parts = [event.op] if event.call.rpartition(".")[2] != event.op and event.op != LEARNING_RATE else []
    parts += [f"over {shown(event.group)}"] if shown(event.group) else []
    return f" ({' '.join(parts)})" if parts else ""


def _chosen(side: Side, fork: Step) -> bool | None:
    for step in side.trail.backwards() if side.trail else ():
        if step.condition is fork.condition:
            return step.chosen
    return None


def wrong_arguments(graph: EventGraph, start: Node) -> Iterator[Mismatch]:
    """Collectives whose root, reduce operation or shape is another one on every rank: ``broadcast(x, src=rank)``."""
    paired = {way for node in graph.nodes if isinstance(node, Choice) for way in _alternatives(node)}
    alone = functools.cache(lambda: _of_one_world(start))
    for node in graph.nodes:
        if not isinstance(node, EventNode) or node.event.streams or node in paired:
            continue
        if _is_own(node.event.uneven, node.event) and node.number not in alone():
            yield _uneven_payload(node.event, node.event.uneven)
        if _is_own(node.event.decided, node.event):
            yield _own_number(node.event, node.event.decided)
        if _is_own(node.event.keyed, node.event):
            yield _own_key(node.event, node.event.keyed)
        if not node.event.chain:
            if node.event.members is not None:
                yield _own_members(node.event, node.event.members)
            for value, reason in ((node.event.root, "root"), (node.event.reduce_op, "reduce op")):
                if value is not None and node.event.group.is_world:
                    yield from _wrong_argument(node.event, value, reason)


def _is_own(varies: Variation | None, event: Event) -> TypeGuard[Variation]:
    """Whether the function at hand has made what the event is given: it came through all calls that lead there."""
    return varies is not None and varies.call_depth == len(event.chain)


def _of_one_world(start: Node) -> frozenset[int]:
    """The nodes that one of the worlds alone comes to: what the others pass they do in calls of their own."""
    outcomes = (functools.partial(Condition.outcome, world=world) for world in range(worlds.COUNT))
    coming = collections.Counter(number for outcome in outcomes for number in reached_from(start, outcome))
    return frozenset(number for number, count in coming.items() if count == 1)


def _uneven_payload(event: Event, varies: Variation) -> Mismatch:
    return _unlike_arguments(Kind.ARGUMENT, event, varies, "payload", "a tensor of a different shape")


def _own_number(event: Event, varies: Variation) -> Mismatch:
    return _unlike_arguments(Kind.STEP, event, varies, "decides", "a different number")


def _own_key(event: Event, varies: Variation) -> Mismatch:
    return _unlike_arguments(Kind.ARGUMENT, event, varies, "key", "a different name")


def _own_members(event: Event, varies: Variation) -> Mismatch:
    return _unlike_arguments(Kind.GROUP, event, varies, "members", "only the members of its own group")


def _unlike_arguments(kind: Kind, event: Event, varies: Variation, reason: str, given: str) -> Mismatch:
    """All ranks make the call, each with an argument of its own."""
    step = Label(event.span, f"calls {event.call}() with {given}")
    return Mismatch(
        kind, event.span, event.op, event.call,
        min(event.confidence, varies.confidence, key=CONFIDENCES.index), cause=varies.cause,
        description=varies.description,
        group=shown(event.group), when=event.when, evident=event.evident, reason=reason,
        ranks=(worlds.WORLDS[0].name, worlds.WORLDS[1].name), labels=(varies.origin,) if varies.origin else (),
        witness=tuple(RankTrace(world.name, (step,)) for world in worlds.WORLDS[:2]),
    )  # fmt: skip


def _alternatives(node: Choice) -> Iterator[EventNode]:
    """The same collective at once in both arms: who holds the data sends, the others name that rank. Where the rank
    decides, also those behind it that both arms make in turn: the size, then the data in a buffer of that size."""
    left, seen = [(node.yes, node.no)], set[tuple[int, int]]()
    while left:
        yes, no = left.pop()
        if yes is no or (yes.number, no.number) in seen:
            continue
        seen.add((yes.number, no.number))
        if isinstance(yes, EventNode) and isinstance(no, EventNode) and yes.event.symbol == no.event.symbol:
            yield from (yes, no)
            left += [(yes.after, no.after)] if node.condition.by_rank else []
        elif node.condition.by_rank and isinstance(yes, Choice) and isinstance(no, Choice):
            left += [(yes.yes, no.yes), (yes.no, no.no)] if yes.condition.truths == no.condition.truths else []


def _wrong_argument(event: Event, value: Value, reason: str) -> Iterator[Mismatch]:
    varies, texts = value.varies, [_shown(component) for component in value.components[:2]]
    if varies is None or varies.cause != "rank" or varies.scope not in OF_MACHINES or value.open:
        return
    if reason == "reduce op" and ("unknown" in texts or texts[0] == texts[1]):
        return
    if reason == "root" and varies.confidence is not Confidence.HIGH:
        return  # only its name says that it is this process's rank, where a root was to be named
    labels = (varies.origin,) if varies.origin is not None else ()
    steps = [
        RankTrace(world.name, (Label(event.span, f"calls {event.call}() with {reason} {text}"),))
        for world, text in zip(worlds.WORLDS, texts, strict=False)
    ]
    yield Mismatch(
        Kind.ARGUMENT, event.span, event.op, event.call,
        min(event.confidence, varies.confidence, key=CONFIDENCES.index), cause="rank", description=varies.description,
        group=shown(event.group), when=event.when, evident=event.evident, reason=reason,
        ranks=(worlds.WORLDS[0].name, worlds.WORLDS[1].name), labels=labels, witness=tuple(steps),
    )  # fmt: skip


def _shown(component: Component) -> str:
    """A constant, or the last part of a name (`SUM` of `ReduceOp.SUM`)."""
    if isinstance(component, Known):
        return repr(component.value)
    match component.key:
        case ("name", str() as name):
            return name.rpartition(".")[2]
    return "unknown"
