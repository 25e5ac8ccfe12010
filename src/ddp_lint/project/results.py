"""Results that are kept, with the questions that each depends on.

A *question* is a text about the files of a project, which `Answers` answers. What is asked while a result is made is
recorded: the result holds as long as these questions have the same answers. Nothing here reads a file.
"""

from __future__ import annotations

import contextlib
import pathlib
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, MutableMapping
from typing import Any, Generic, TypeVar

from ddp_lint.project.effort import Charges, Effort, Work
from ddp_lint.project.parts import Asked, Basis, Recorder, file_of

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)


class Answered(Generic[T]):
    """A kept result, what it depends on, and what it took where that was counted."""

    __slots__ = ("basis", "value", "work")

    def __init__(self, value: T, basis: Basis, work: Work | None) -> None:
        self.value = value
        self.basis = basis
        self.work = work

    @property
    def stale(self) -> bool:
        """Whether something that it depends on has changed."""
        return self.basis.stale


class OfNames:
    """What holds names and no syntax tree: such a result is kept where others are let go of for their memory."""

    __slots__ = ()


#: What a result rests on that is kept nowhere.
_NOTHING = Basis(set())


class KeptResults:
    """The kept results of one project. With `changing`, its files may change: results that depend on what has changed
    are forgotten."""

    def __init__(self, *, changing: bool) -> None:
        #: What evaluations take.
        self.effort = Effort()
        self.charges = Charges()
        #: What nodes of syntax trees note in whose bodies are read (`parts`).
        self.recorder = Recorder()
        #: The answers to questions that are known.
        self.known_answers: dict[str, str] = {}
        self._records = True
        self._memo: dict[Hashable, Answered[Any]] = {}
        #: The memories that callers of `remember` gave, by their identity.
        self._memories: dict[int, MutableMapping[Any, Answered[Any]]] = {}
        #: Where files may change: the kept results that depend on a question or on another kept result.
        self._resting: dict[Asked, list[Basis]] | None = {} if changing else None
        self._dropped: list[Basis] = []

    @property
    def is_changing(self) -> bool:
        """Whether files may change while the project is in use."""
        return self._resting is not None

    @property
    def is_recording(self) -> bool:
        """Whether dependencies of results are needed."""
        return self._records

    def stop_recording(self) -> None:
        """From now on dependencies of results are not needed: no result is stored."""
        self._records = False

    def note(self, item: Asked) -> None:
        """What is being worked out depends on this."""
        if self.recorder.asked is not None:
            self.recorder.asked.add(item)

    def note_all(self, questions: Iterable[str]) -> None:
        """What is being worked out depends on these questions."""
        if self.recorder.asked is not None:
            self.recorder.asked.update(questions)

    def ask(self, question: str, answer: str) -> None:
        """What is being worked out depends on a question, which has this answer now."""
        self.known_answers[question] = answer
        self.note(question)

    @contextlib.contextmanager
    def recording(self, *, apart: bool = False) -> Iterator[set[Asked]]:
        """Collect the questions asked inside the block; give the set to `dependencies`.

        `apart`: what goes on around the block does not depend on it by itself, unless the block ends in an error.
        """
        inner: set[Asked] = set()
        if not self._records:
            yield inner
            return
        outer, self.recorder.asked = self.recorder.asked, inner
        failed = True
        try:
            yield inner
            failed = False
        finally:
            self.recorder.asked = outer
            if outer is not None and (failed or not apart):
                outer |= inner

    def remember(self, key: K, compute: Callable[[], T], kept: MutableMapping[K, Answered[T]] | None = None) -> T:
        """`compute()`, once per `key` in the life of the process; a later caller depends on the same files.

        `compute` must be a function of the project's files alone. Keys are tuples that start with the name of the
        caller, unless the caller gives a memory of its own, `kept`.
        """
        memo: MutableMapping[Any, Answered[T]] = self._memo if kept is None else kept
        found = memo.get(key)
        if found is None:
            outer = self.effort.begin()
            about_all = kept is None and self.charges.is_charging
            before = self.charges.turn_to(Charges.PROJECT) if about_all else None
            try:
                value, basis = self._computed(compute)
            finally:
                work = self.effort.end(outer)
                if about_all:
                    self.charges.turn_to(before)
            found = memo[key] = Answered(value, basis, work)
            if self._resting is not None:
                self._memories.setdefault(id(memo), memo)
        if found.work is not None:
            self.effort.use(found.work)
        self.note(found.basis)
        return found.value

    def remembers(self, key: Hashable) -> bool:
        """Whether `remember` has a result for a key."""
        return key in self._memo

    def _computed(self, compute: Callable[[], T]) -> tuple[T, Basis]:
        if not self._records:
            return compute(), _NOTHING
        with self.recording(apart=True) as asked:
            value = compute()
        return value, self.basis_of(asked)

    def basis_of(self, asked: set[Asked]) -> Basis:
        """What a result depends on that was made while this was asked."""
        basis = Basis(asked) if self._records else _NOTHING
        if self._resting is not None:
            for item in asked:
                self._resting.setdefault(item, []).append(basis)
        return basis

    # ---- files that change

    def forget_answers_about(self, inside: str) -> dict[str, str | None]:
        """The questions about a file, by its path below the root, that kept results depend on, with the answers until
        now, which are forgotten."""
        before = {question: answer for question, answer in self.known_answers.items() if file_of(question) == inside}
        self.forget_answers(before)
        asked = (item for item in self._resting or () if isinstance(item, str) and file_of(item) == inside)
        return {question: before.get(question) for question in asked}

    def forget_answers(self, questions: Iterable[str]) -> list[str]:
        """Questions that were answered are to be answered anew."""
        found = list(questions)
        for question in found:
            del self.known_answers[question]
        return found

    def forget(self, questions: list[str]) -> None:
        """Mark as stale what depends on the questions, and let go of it."""
        assert self._resting is not None
        stack: list[Asked] = [*questions, *self._dropped]
        for dropped in self._dropped:
            dropped.stale = True
        self._dropped.clear()
        while stack:
            for found in self._resting.pop(stack.pop(), ()):
                if not found.stale:
                    found.stale = True
                    stack.append(found)
        for memo in (self._memo, *self._memories.values()):
            for key in [key for key, found in memo.items() if found.stale]:
                del memo[key]
        self._resting = {
            item: left
            for item, resting in self._resting.items()
            if (isinstance(item, str) or not item.stale) and (left := [found for found in resting if not found.stale])
        }

    def kept(self) -> Iterator[tuple[Any, Answered[Any]]]:
        """All results that are kept in the memories that callers gave, with their keys."""
        for memo in self._memories.values():
            yield from memo.items()

    def drop(self, results: Iterable[Answered[Any]]) -> None:
        """With the next `change`, let go of these results and of all that depends on them."""
        self._dropped += (result.basis for result in results)

    def forget_memory(self, memory: MutableMapping[Any, Answered[Any]]) -> None:
        """A memory that a caller gave is not used any more. It is emptied: what it holds refers to it."""
        self._memories.pop(id(memory), None)
        memory.clear()

    def forget_memories(self) -> None:
        """The memories that callers have given until now are not used any more. What is kept here and holds more than
        names is let go of as well: calls and classes that were found hold the trees of their files."""
        self._memories.clear()
        self._memo = {key: found for key, found in self._memo.items() if _is_of_names(found.value)}


def _is_of_names(value: object) -> bool:
    """Whether a kept result is made of names and truth values alone."""
    if isinstance(value, Mapping):
        return all(map(_is_of_names, (*value.keys(), *value.values())))
    if isinstance(value, (tuple, list, set, frozenset)):
        return all(map(_is_of_names, value))
    return value is None or isinstance(value, (str, int, pathlib.PurePath, OfNames))
