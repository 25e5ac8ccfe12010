"""Cached summaries by their key; the summary of a method serves all classes that answer its questions identically."""

from __future__ import annotations

import ast
import collections
import dataclasses
from collections.abc import Callable, Hashable, Mapping
from typing import Any, NamedTuple

from ddp_lint.divergence import references as ref
from ddp_lint.divergence.definitions import least_statements
from ddp_lint.divergence.effects import Effect
from ddp_lint.divergence.frame import Store
from ddp_lint.divergence.inheritance import Answers, Question, is_same, mentions
from ddp_lint.divergence.references import ClassRef, FunctionRef
from ddp_lint.divergence.resolve import Linker
from ddp_lint.divergence.values import ArgumentKey, Value
from ddp_lint.project import Answered

#: Calls within calls: far more than programs nest, since what is cut off depends on where the evaluation came from.
_DEPTH = 40
#: Classes that a method was evaluated for, the latest, that are tried for another one.
_ALIKE = 6


@dataclasses.dataclass(frozen=True, eq=False)
class Summary:
    """What a call does (a tree that returns at its end) and what it gives back."""

    effects: list[Effect]
    returned: Value
    env: dict[str, Value] = dataclasses.field(default_factory=dict)
    #: Parameters that the function makes the same on all ranks.
    agreed: frozenset[str] = frozenset()
    #: Parameters that it makes objects of another class.
    turned: Mapping[str, str] = dataclasses.field(default_factory=dict)
    #: Attributes of its object that a method leaves with a value of each rank's own, or that all ranks agreed on in it.
    left: Mapping[str, Value] = dataclasses.field(default_factory=dict)
    #: Variables of modules as they are at a `yield`.
    switched: dict[tuple[str, str], Value] = dataclasses.field(default_factory=dict)
    #: What a generator yields, position by position, where that is a number that all ranks share, or a pair with one.
    yields: tuple[Value | None, ...] = ()
    #: Of a generator: how many of them lie within each other, with itself.
    levels: int = 0
    #: By which name (`Frame.single`) its callers are alone from here on.
    single: str = ""
    #: The questions about classes that it depends on.
    answers: Answers = dataclasses.field(default_factory=dict)
    #: Parameters that decide what the call does or gives back: another argument makes another summary.
    deciding: tuple[str, ...] = ()

    def mentions(self, of: ClassRef, receiver: str) -> bool:
        """Does anything that the call leaves behind depend on the object's being of this very class?"""
        held = [value for path, value in self.env.items() if path.startswith(receiver + ".")]
        return any(mentions(value, of) for value in (self.returned, *self.left.values(), *held))


class _Parts(NamedTuple):
    node: ast.AST
    #: Class of the object of a method.
    of: Hashable
    arguments: tuple[tuple[str, ArgumentKey], ...]
    rebound: Hashable
    #: What a nested function sees of the functions around it (`closures.seen`).
    closure: Hashable
    #: What is evaluated, if it is not the effects of the call: the names that the function leaves, or one attribute.
    left: str
    #: Through how many calls the constants among the arguments have come.
    came: int = 0
    #: What the arguments that decide what the call does are, where callers know no more of them than that.
    deciding: Hashable = ()


class Key(_Parts):
    """What a summary is a function of. Its hash is that of all that its arguments are made of: worked out once."""

    def __hash__(self) -> int:
        known: int | None = self.__dict__.get("hash")
        if known is None:
            known = self.__dict__["hash"] = super().__hash__()
        return known

    @property
    def regardless_of_class(self) -> Key | None:
        """The same for a method of any class; None where it is no method of an object."""
        if not isinstance(self.of, ClassRef) or self.closure or not self.arguments:
            return None
        (name, receiver), *others = self.arguments
        if receiver.reference != ref.Instance(self.of):
            return None
        return self._replace(of=None, arguments=((name, receiver._replace(reference=None)), *others))


class Memory:
    """All summaries of one project, and which of them are being made."""

    def __init__(self, linker: Linker, variables: Store) -> None:
        self._linker = linker
        self._variables = variables
        self._memo: dict[Key, Answered[Summary]] = {}
        #: By method and arguments: the classes of the object that it was evaluated for, each with the key of that.
        self._inherited: dict[Key, list[tuple[ClassRef, Key]]] = {}
        self._running: set[Key] = set()
        #: The calls of each function that are being evaluated.
        self._entered: collections.Counter[ast.AST] = collections.Counter()
        self.depth = 0

    def __contains__(self, key: Key) -> bool:
        return key in self._memo

    def can_give(self, key: Key) -> bool:
        """Is it known, or neither running nor too deep in calls?"""
        return key in self._memo or (key not in self._running and self.depth < _DEPTH)

    def depth_in(self, node: ast.AST) -> int:
        """How many calls of a function are being evaluated."""
        return self._entered[node]

    def forget(self) -> None:
        """Before a new root: nothing is running."""
        self.depth = 0
        self._running.clear()
        self._entered.clear()

    def forget_dropped(self) -> None:
        """No summary is taken over from one that is not kept any more."""
        self._inherited = {
            place: left
            for place, known in self._inherited.items()
            if (left := [(of, key) for of, key in known if key in self._memo and not self._memo[key].stale])
        }

    def keep(self, key: Key, function: FunctionRef, make: Callable[[], Summary]) -> Summary:
        """`make()`, once a key; meanwhile the key is running. Raises RecursionError, TooLarge."""
        summary = self._linker.project.remember(key, lambda: self._run_once(key, function, make), self._memo)
        self._linker.questions.note_all(summary.answers)
        return summary

    def _run_once(self, key: Key, function: FunctionRef, make: Callable[[], Summary]) -> Summary:
        self._running.add(key)
        self._entered[key.node] += 1
        self.depth += 1
        charges = self._linker.project.charges
        before = charges.turn_to(function.facts.source.path)
        self._linker.project.effort.about(key.node, least_statements(key.node))
        try:
            return self._taken_over(key, function, make) or self._made(key, function, make)
        finally:
            charges.turn_to(before)
            self.depth -= 1
            self._entered[key.node] -= 1
            self._running.discard(key)

    def _made(self, key: Key, function: FunctionRef, make: Callable[[], Summary]) -> Summary:
        made, answers = self._linker.questions.apart(make)
        summary = dataclasses.replace(made, answers=answers)
        place = key.regardless_of_class
        if place and isinstance(function.of, ClassRef) and not summary.mentions(function.of, key.arguments[0][0]):
            self._inherited.setdefault(place, []).append((function.of, key))
        return summary

    def _taken_over(self, key: Key, function: FunctionRef, make: Callable[[], Summary]) -> Summary | None:
        """What the method does for another class that answers alike."""
        of = function.of
        place = key.regardless_of_class
        for other, kept in self._inherited.get(place, ())[-_ALIKE:] if place else ():
            assert isinstance(of, ClassRef)
            if kept not in self._memo:  # dropped, because a file has changed
                continue
            summary = self._memo[kept].value
            asked = {question: answer for question, answer in summary.answers.items() if question.of == other}
            if all(is_same(self._answer(question, of), answer) for question, answer in asked.items()):
                self._linker.project.remember(kept, make, self._memo)  # it depends on the same files
                answers = {q._replace(of=of) if q.of == other else q: a for q, a in summary.answers.items()}
                return dataclasses.replace(summary, answers=answers)
        return None

    def _answer(self, question: Question, of: ClassRef) -> Any:
        """What the question is answered for this class."""
        if question.what == "method":
            found = self._linker.method(of, question.name, question.after)
            return found and found.node
        if question.what == "bases":
            return self._linker.outside(of)
        if question.what == "members":
            return of
        if question.what == "listed":
            return self._linker.listed(of)
        ask = self._variables.attribute_of if question.what == "attribute" else self._variables.class_variable
        return ask(of, question.name)
