"""What a function does with other ranks, as a tree: the source's structure without what does not matter here."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence

from ddp_lint.divergence.event_graph import APART, Called, Event
from ddp_lint.divergence.values import Condition, Test
from ddp_lint.findings import Confidence, Span


@dataclasses.dataclass(eq=False, slots=True)
class EventStep:
    event: Event


@dataclasses.dataclass(eq=False, slots=True)
class Branch:
    test: Test
    yes: list[Effect]
    no: list[Effect]
    span: Span


@dataclasses.dataclass(eq=False, slots=True)
class Rounds:
    """A loop; `rounds` says whether ranks go round equally often (None: they do). `endless`: until the body leaves.
    `times` is how often it repeats, where that is written there; 0 where it is not.

    `callback`: what an unknown callee may do with a function that it was given. It counts only where a branch on which
    the ranks diverge leads to it: given on all ranks, it runs alike on all of them.
    """

    body: list[Effect]
    orelse: list[Effect]
    rounds: Condition | None
    span: Span
    endless: bool = False
    #: Left after a number of steps, which the rounds of loops within count.
    by_steps: bool = False
    times: int = 0
    callback: bool = False
    #: It goes on as long as the other ranks give it something to do: endless, and left after a collective in it, or
    #: what an unknown callee does with a function on some ranks alone (whose effects stand before it).
    serves: bool = False
    #: Left by what a collective in it has given: a rank with nothing left to do makes the calls of the others in it,
    #: until all are done.
    answers: bool = False


@dataclasses.dataclass(eq=False, slots=True)
class Leave:
    """'return', 'raise', 'break', 'continue' or 'exit' (the process); `raised` is the exception's class, if written."""

    what: str
    raised: str = ""


@dataclasses.dataclass(eq=False, slots=True)
class Attempt:
    """`handlers` pair the condition that this rank's body raises with what the handler does; `caught` names, for each
    of them, the exceptions that it is for."""

    body: list[Effect]
    handlers: list[tuple[Condition, list[Effect]]]
    final: list[Effect]
    span: Span
    caught: list[frozenset[str]] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(eq=False, slots=True)
class Inline:
    """What the function `callee` does, at a call. `yields` is what happens where it yields (the body of a `with`)."""

    effects: list[Effect]
    call: Span
    callee: str
    text: str
    yields: list[Effect] | None = None
    #: Body of a `with`: leaving it runs the rest of the callee.
    manager: bool = False
    #: The callee is defined in the caller: divergence in it is shown with the caller, whose names it sees.
    nested: bool = False
    #: Of a generator: through how many calls it was passed on before it ran. It was made that much further up.
    handed: int = 0
    #: Of a generator: how many of them lie within each other in it, with itself.
    levels: int = 0
    #: The call is where gradients are off.
    quiet: bool = False
    #: The caller and how messages show the call in it, once asked: each function further up asks again (`build`).
    shown: tuple[str, Called] | None = dataclasses.field(default=None, init=False, repr=False)


@dataclasses.dataclass(eq=False, slots=True)
class Yielded:
    """The place of a `yield`."""


Effect = EventStep | Branch | Rounds | Leave | Attempt | Inline | Yielded


def matters(effects: list[Effect]) -> bool:
    """Is there anything in the tree that other ranks can wait for, or a hand-over?"""
    for effect in effects:
        if isinstance(effect, (EventStep, Yielded)):
            return True
        if isinstance(effect, Branch) and (matters(effect.yes) or matters(effect.no)):
            return True
        if isinstance(effect, Rounds) and (matters(effect.body) or matters(effect.orelse)):
            return True
        if isinstance(effect, Attempt) and (
            matters(effect.body) or matters(effect.final) or any(matters(handler) for _, handler in effect.handlers)
        ):
            return True
        if isinstance(effect, Inline) and (matters(effect.effects) or matters(effect.yields or [])):
            return True
    return False


def communicates(effects: list[Effect]) -> bool:
    """Is there an event anywhere in the tree?"""
    return any(isinstance(effect, EventStep) for part in _lists(effects) for effect in part)


def hands_over(effects: list[Effect]) -> bool:
    """Does a generator go on with its consumer anywhere in the tree?"""
    return any(isinstance(effect, Yielded) for part in _lists(effects) for effect in part)


def loops_in(effects: list[Effect]) -> Iterator[Rounds]:
    """The loops anywhere in the tree, in no order."""
    return (effect for part in _lists(effects) for effect in part if isinstance(effect, Rounds))


def _lists(effects: list[Effect]) -> Iterator[list[Effect]]:
    """The lists that the tree is made of, each once: a recursive generator holds itself many times over, so that the
    tree is far larger than what it is made of."""
    stack, seen = [effects], {id(effects)}
    while stack:
        part = stack.pop()
        yield part
        for effect in part:
            for below in _below(effect):
                if below and id(below) not in seen:
                    seen.add(id(below))
                    stack.append(below)


def levels_of_generators(effects: list[Effect]) -> int:
    """How many generators lie within each other in the tree. Those in a generator are known from where it was made."""
    most, stack, seen = 0, [effects], {id(effects)}
    while stack:
        for effect in stack.pop():
            parts = _below(effect)
            if isinstance(effect, Inline) and effect.levels:
                most, parts = max(most, effect.levels), [effect.yields or []]
            for below in parts:
                if below and id(below) not in seen:
                    seen.add(id(below))
                    stack.append(below)
    return most


def _below(effect: Effect) -> Sequence[list[Effect]]:
    if isinstance(effect, Branch):
        return effect.yes, effect.no
    if isinstance(effect, Inline):
        return (effect.effects,) if effect.yields is None else (effect.effects, effect.yields)
    if isinstance(effect, Rounds):
        return effect.body, effect.orelse
    if isinstance(effect, Attempt):
        return effect.body, effect.final, *(handler for _, handler in effect.handlers)
    return ()


def flat(effects: list[Effect]) -> Iterator[Effect]:
    """The effects one after the other: those of branches too, of loops and callees the events alone."""
    for effect in effects:
        yield effect
        if isinstance(effect, Branch):
            yield from flat(effect.yes)
            yield from flat(effect.no)
        elif isinstance(effect, Attempt):
            yield from flat(effect.body)
        elif isinstance(effect, Rounds):
            yield from (inner for inner in flat(effect.body) if isinstance(inner, EventStep))
        elif isinstance(effect, Inline):
            yield from (inner for inner in flat(effect.effects) if isinstance(inner, EventStep))


def choices(effects: list[Effect]) -> Iterator[Condition]:
    """The conditions in the tree that choose between effects, in no order."""
    for part in _lists(effects):
        for effect in part:
            if isinstance(effect, Branch):
                yield from effect.test.atoms()
            elif isinstance(effect, Attempt):
                yield from (raised for raised, _ in effect.handlers)


def may_exit(effects: list[Effect]) -> bool:
    """Does the process end, without an error, on some way through?"""
    return any(
        (isinstance(effect, Leave) and effect.what == "exit")
        or (isinstance(effect, Branch) and (may_exit(effect.yes) or may_exit(effect.no)))
        or (isinstance(effect, Inline) and may_exit(effect.effects))
        for effect in effects
    )


def left_before(effects: list[Effect]) -> list[Effect]:
    """The same tree where a process that ends in it has no part in what comes: the job starts after it."""
    return [_without_exit(effect) for effect in effects]


def _without_exit(effect: Effect) -> Effect:
    if isinstance(effect, Leave) and effect.what == "exit":
        return Leave("raise")
    if isinstance(effect, Branch):
        return dataclasses.replace(effect, yes=left_before(effect.yes), no=left_before(effect.no))
    if isinstance(effect, Inline):
        return dataclasses.replace(effect, effects=left_before(effect.effects))
    return effect


def doubtful(effects: list[Effect], kinds: frozenset[str] = frozenset(), op: str = "") -> list[Effect]:
    """The same tree with events of low confidence, those of these kinds or of one operation, or all where neither is
    given: what may well happen otherwise."""

    def change(event: Event) -> Event:
        doubted = event.kind in kinds or event.op == op if kinds or op else True
        return dataclasses.replace(event, confidence=Confidence.LOW, unproven="") if doubted else event

    return _with_events(effects, change)


def doubtful_rounds(effects: list[Effect]) -> list[Effect]:
    """The same list with what its loops do in doubt: none may go round at all."""
    return [
        dataclasses.replace(effect, body=doubtful(effect.body)) if isinstance(effect, Rounds)
        else dataclasses.replace(effect, effects=doubtful_rounds(effect.effects)) if isinstance(effect, Inline)
        else effect
        for effect in effects
    ]  # fmt: skip


def of_shards(effects: list[Effect]) -> list[Effect]:
    """The same tree with events that come about only where something is sharded."""
    return _with_events(effects, lambda event: dataclasses.replace(event, sharded=True))


def of_held(effects: list[Effect]) -> list[Effect]:
    """The same tree with events that come about for each element of what an object holds, which begins empty."""
    return _with_events(effects, lambda event: dataclasses.replace(event, of_held=True))


def shadowed(effects: list[Effect]) -> list[Effect]:
    """The same tree inside of a `Join`: a rank that has no more inputs takes part in what the models of the others do
    until they have none either. For a collective that is written in the loop nobody does."""

    def answered(rounds: Rounds) -> Rounds:
        steps = (effect for part in _lists(rounds.body) for effect in part if isinstance(effect, EventStep))
        of_models = all(step.event.implicit or step.event.kind in APART for step in steps)
        return dataclasses.replace(rounds, rounds=None) if of_models else rounds

    return _with_events(effects, lambda event: event, answered)


def _with_events(
    effects: list[Effect], change: Callable[[Event], Event], loop: Callable[[Rounds], Rounds] = lambda rounds: rounds
) -> list[Effect]:
    """The same tree with events that `change` gives for those that are there, and loops that `loop` does."""

    def of(part: list[Effect]) -> list[Effect]:
        return [changed(effect) for effect in part]

    def changed(effect: Effect) -> Effect:
        if isinstance(effect, EventStep):
            return EventStep(change(effect.event))
        if isinstance(effect, Branch):
            return dataclasses.replace(effect, yes=of(effect.yes), no=of(effect.no))
        if isinstance(effect, Rounds):
            return loop(dataclasses.replace(effect, body=of(effect.body), orelse=of(effect.orelse)))
        if isinstance(effect, Attempt):
            handlers = [(condition, of(handler)) for condition, handler in effect.handlers]
            return dataclasses.replace(effect, body=of(effect.body), handlers=handlers, final=of(effect.final))
        if isinstance(effect, Inline):
            yields = None if effect.yields is None else of(effect.yields)
            return dataclasses.replace(effect, effects=of(effect.effects), yields=yields)
        return effect

    return of(effects)


def is_larger(effects: list[Effect], most: int) -> bool:
    """Are there more than `most` effects in the tree? Counts no further than that."""
    stack, total = [effects], 0
    while stack and total <= most:
        part = stack.pop()
        total += len(part)
        stack += [below for effect in part for below in _below(effect) if below]
    return total > most
