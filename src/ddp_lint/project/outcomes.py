"""Outcomes of the functions of a file, kept from run to run: after an edit of one function those of the others hold.

An outcome holds as long as what it depends on of its own file has the same answers, and so does all that the result for
the file depends on elsewhere. It points at no place: lines may have moved.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping

from ddp_lint.project.answers import Answers
from ddp_lint.project.parts import Asked, Basis, file_of
from ddp_lint.project.results import KeptResults


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What is known of a function: a yes or no, and the questions about its own file that this depends on."""

    value: bool
    questions: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Earlier:
    """The outcomes of an earlier run that hold, by name, and the questions about other files that they depend on."""

    outcomes: Mapping[str, Outcome]
    elsewhere: tuple[str, ...] = ()


NO_OUTCOMES = Earlier({})


class Outcomes:
    """Those of one file, by its path below the root. `note` gets the questions that what is used depends on."""

    def __init__(self, note: Callable[[Iterable[str]], None], inside: str, earlier: Earlier) -> None:
        self._note = note
        self._inside = inside
        self._earlier = earlier
        self._own: dict[Basis, frozenset[str]] = {}
        #: Those that hold now.
        self.made: dict[str, Outcome] = {}

    def known(self, name: str) -> bool | None:
        """The outcome of an earlier run, None where there is none that holds."""
        found = self._earlier.outcomes.get(name)
        if found is None:
            return None
        self.made[name] = found
        self._note(found.questions)
        self._note(self._earlier.elsewhere)
        return found.value

    def forget(self) -> None:
        """Know nothing of earlier runs."""
        self._earlier = NO_OUTCOMES
        self.made.clear()

    def keep(self, name: str, value: bool, asked: Iterable[Asked]) -> None:
        """Keep an outcome, unless it depends on the whole text of the file."""
        questions = self._about_own_file(asked)
        if f"file:{self._inside}" not in questions:
            self.made[name] = Outcome(value, tuple(sorted(questions)))

    def _about_own_file(self, asked: Iterable[Asked]) -> frozenset[str]:
        """The questions about the file among those that were asked, directly or by what was used."""
        bases = [item for item in asked if not isinstance(item, str)]
        stack = list(bases)
        while stack:  # each after what it depends on
            basis = stack.pop()
            if basis in self._own:
                continue
            inner = [item for item in basis.asked if not isinstance(item, str)]
            waiting = [item for item in inner if item not in self._own]
            if waiting:
                stack += (basis, *waiting)
            else:
                self._own[basis] = self._of_file(basis.asked).union(*(self._own[item] for item in inner))
        return self._of_file(asked).union(*(self._own[basis] for basis in bases))

    def _of_file(self, asked: Iterable[Asked]) -> frozenset[str]:
        return frozenset(item for item in asked if isinstance(item, str) and file_of(item) == self._inside)


class KeptOutcomes:
    """Those of the files of a project that were analysed."""

    def __init__(self, results: KeptResults, answers: Answers) -> None:
        self._results = results
        self._answers = answers
        self._of: dict[str, Outcomes] = {}
        self._earlier: Callable[[str], Earlier] = lambda inside: NO_OUTCOMES

    def find_earlier_by(self, find: Callable[[str], Earlier]) -> None:
        """How to learn what an earlier run knows of the functions of a file, by its path below the root."""
        self._earlier = find

    def of(self, inside: str) -> Outcomes:
        """What is known of the functions of a file, by its path below the root."""
        found = self._of.get(inside)
        if found is None:
            found = self._of[inside] = Outcomes(self._results.note_all, inside, self._earlier(inside))
        return found

    def take(self, inside: str) -> Iterator[tuple[str, bool, tuple[tuple[str, str], ...]]]:
        """The outcomes in a file with the questions about it that they depend on and their answers; it is done with."""
        found = self._of.pop(inside, None)
        for name, outcome in found.made.items() if found is not None else ():
            answers = ((question, self._answers.with_file(question, inside)) for question in outcome.questions)
            yield name, outcome.value, tuple(answers)
