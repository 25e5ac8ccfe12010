"""Reuse of the summary of a method for another class that inherits the method from the same place.

A method of a base class does the same for all subclasses that answer its questions about its object identically: which
method a name refers to, what an attribute holds. The questions are recorded while the method is evaluated for the first
class; for the next one only the questions are evaluated, which is much cheaper. In a library of models, whose base
classes have large constructors, this saves most of the work.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple, TypeVar

from ddp_lint.divergence.references import (
    ClassRef,
    Dynamic,
    Enumerated,
    FunctionRef,
    Generator,
    Instance,
    Partial,
    Super,
)
from ddp_lint.divergence.values import Value, argument_key

T = TypeVar("T")


class Question(NamedTuple):
    """A question about a class: its method of a name (the next one after a class, for `super()`), the value of an
    attribute or of a variable of the class, the bases outside of the project, all of its own methods, its names in the
    configuration."""

    of: ClassRef
    what: Literal["method", "attribute", "variable", "bases", "members", "listed"]
    name: str = ""
    after: ClassRef | None = None


#: Questions with their answers.
Answers = Mapping[Question, Any]


def is_same(first: Any, second: Any) -> bool:
    """Is it the same answer for the purpose of an evaluation?"""
    if isinstance(first, Value) and isinstance(second, Value):
        return first is second or argument_key(first) == argument_key(second)
    return bool(first == second)


class Questions:
    """Records the questions about classes."""

    def __init__(self) -> None:
        self._noted: dict[Question, Any] | None = None

    def note(self, question: Question, answer: Any) -> None:
        if self._noted is not None:
            self._noted[question] = answer

    def note_all(self, answers: Answers) -> None:
        if self._noted is not None:
            self._noted.update(answers)

    def apart(self, make: Callable[[], T]) -> tuple[T, Answers]:
        """`make()`, with the questions asked during the call; the surrounding evaluation does not depend on them."""
        outer, self._noted = self._noted, {}
        noted = self._noted
        try:
            return make(), noted
        finally:
            self._noted = outer


def mentions(value: Value | None, of: ClassRef) -> bool:
    """Is the value an object of the class, or does it hold one, a method of one, or the class itself?"""
    if value is None:
        return False
    held = (*(value.items or ()), *(value.entries or {}).values())
    return _is_of(value.reference, of) or any(mentions(part, of) for part in held)


def _is_of(reference: Any, of: ClassRef) -> bool:
    if isinstance(reference, ClassRef):
        return reference == of
    if isinstance(reference, (Instance, FunctionRef, Super, Dynamic)):
        return bool(reference.of == of)
    if isinstance(reference, Partial):
        parts = (reference.function, *reference.arguments, *(value for _, value in reference.keywords))
        return any(isinstance(part, Value) and mentions(part, of) for part in parts)
    if isinstance(reference, Enumerated):
        return _is_of(reference.of, of) or mentions(reference.element, of)
    return isinstance(reference, Generator)
