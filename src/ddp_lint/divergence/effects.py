"""What a function does with other ranks, as a tree: the source's structure without what does not matter here."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from ddp_lint.divergence.values import Condition, Test
from ddp_lint.divergence.words import Letter
from ddp_lint.findings import Confidence, Span


@dataclasses.dataclass(eq=False, slots=True)
class Emitted:
    letter: Letter


@dataclasses.dataclass(eq=False, slots=True)
class Branch:
    test: Test
    yes: list[Effect]
    no: list[Effect]
    span: Span


@dataclasses.dataclass(eq=False, slots=True)
class Rounds:
    """A loop; `rounds` tells whether ranks go round equally often (None: they do). `endless`: until the body leaves."""

    body: list[Effect]
    orelse: list[Effect]
    rounds: Condition | None
    span: Span
    endless: bool = False


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
    #: The callee is defined in the caller: what parts the ranks in it is told with the caller, whose names it sees.
    nested: bool = False
    #: Of a generator: through how many calls it was handed on before it ran. It was made that much further up.
    handed: int = 0


@dataclasses.dataclass(eq=False, slots=True)
class Yielded:
    """The place where a generator hands over."""


Effect = Emitted | Branch | Rounds | Leave | Attempt | Inline | Yielded


def matters(effects: list[Effect]) -> bool:
    """Is there anything in the tree that other ranks can wait for, or a hand-over?"""
    for effect in effects:
        if isinstance(effect, (Emitted, Yielded)):
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


def flat(effects: list[Effect]) -> Iterator[Effect]:
    """The effects one after the other: those of branches too, of loops and callees the letters alone."""
    for effect in effects:
        yield effect
        if isinstance(effect, Branch):
            yield from flat(effect.yes)
            yield from flat(effect.no)
        elif isinstance(effect, Attempt):
            yield from flat(effect.body)
        elif isinstance(effect, Rounds):
            yield from (inner for inner in flat(effect.body) if isinstance(inner, Emitted))
        elif isinstance(effect, Inline):
            yield from (inner for inner in flat(effect.effects) if isinstance(inner, Emitted))


def choices(effects: list[Effect]) -> Iterator[Condition]:
    """The conditions in the tree that choose between effects."""
    for effect in effects:
        if isinstance(effect, Branch):
            yield from effect.test.atoms()
            yield from choices(effect.yes)
            yield from choices(effect.no)
        elif isinstance(effect, Rounds):
            yield from choices(effect.body)
            yield from choices(effect.orelse)
        elif isinstance(effect, Attempt):
            yield from choices(effect.body)
            yield from choices(effect.final)
            for raised, handler in effect.handlers:
                yield raised
                yield from choices(handler)
        elif isinstance(effect, Inline):
            yield from choices(effect.effects)
            yield from choices(effect.yields or [])


def doubtful(effects: list[Effect]) -> list[Effect]:
    """The same tree with letters of low confidence: what may well have happened before."""
    return [_doubted(effect) for effect in effects]


def _doubted(effect: Effect) -> Effect:
    if isinstance(effect, Emitted):
        return Emitted(dataclasses.replace(effect.letter, confidence=Confidence.LOW))
    if isinstance(effect, Branch):
        return dataclasses.replace(effect, yes=doubtful(effect.yes), no=doubtful(effect.no))
    if isinstance(effect, Rounds):
        return dataclasses.replace(effect, body=doubtful(effect.body), orelse=doubtful(effect.orelse))
    if isinstance(effect, Attempt):
        handlers = [(condition, doubtful(handler)) for condition, handler in effect.handlers]
        return dataclasses.replace(effect, body=doubtful(effect.body), handlers=handlers, final=doubtful(effect.final))
    if isinstance(effect, Inline):
        return dataclasses.replace(effect, effects=doubtful(effect.effects))
    return effect


def size(effects: list[Effect]) -> int:
    """Number of effects in the tree."""
    total = 0
    for effect in effects:
        total += 1
        if isinstance(effect, Branch):
            total += size(effect.yes) + size(effect.no)
        elif isinstance(effect, Rounds):
            total += size(effect.body) + size(effect.orelse)
        elif isinstance(effect, Attempt):
            total += size(effect.body) + size(effect.final) + sum(size(handler) for _, handler in effect.handlers)
        elif isinstance(effect, Inline):
            total += size(effect.effects) + size(effect.yields or [])
    return total
