"""The answers to the questions that results depend on, as the files of a project are now."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from ddp_lint.project.communication import Communication
from ddp_lint.project.contents import Contents
from ddp_lint.project.meanings import Meanings
from ddp_lint.project.modules import Modules
from ddp_lint.project.parts import (
    ALL,
    CALLS,
    OF_FILE,
    PART,
    STORES,
    SUMS,
    Asked,
    digest_derived,
    digest_of_calls,
    digest_of_stores,
    file_of,
)
from ddp_lint.project.paths import Paths
from ddp_lint.project.results import KeptResults
from ddp_lint.project.texts import OF_TEXT, Texts

#: What answers the questions about what all methods of a class do.
OF_METHODS = {STORES: digest_of_stores, CALLS: digest_of_calls, SUMS: digest_derived}


def digest_in(answer: str) -> str:
    """The digest of the whole file in the answer to a question about one or about a part of one."""
    return answer.partition(":")[0]


class Answers:
    """What the questions about one project are answered with: each kind by what the project is made of."""

    def __init__(
        self,
        results: KeptResults,
        paths: Paths,
        contents: Contents,
        texts: Texts,
        modules: Modules,
        meanings: Meanings,
        communication: Communication,
    ) -> None:
        self._results = results
        self._paths = paths
        self._contents = contents
        self._texts = texts
        self._modules = modules
        self._meanings = meanings
        self._communication = communication
        self._digests: Mapping[str, str] = {}
        #: What was worked out of files that have changed since results were kept, by questions about their parts.
        self.of_parts: dict[str, str] = {}

    def know(self, digests: Mapping[str, str], answers: Mapping[str, str]) -> None:
        """Use what is known of the files from an earlier run: the digests of those that have not changed, by their
        paths below the root, and what was worked out of their parts."""
        self._digests = digests
        self.of_parts.update(answers)
        self._results.known_answers.update(answers)

    def dependencies(self, asked: set[Asked], shown: Iterable[str] = (), *, places: bool = False) -> dict[str, str]:
        """The questions behind what was recorded, each with the digest of its answer. `shown`: files, by their paths
        below the root, that the result shows places in; `places`: it may show places in any."""
        whole = {f"file:{inside}" for inside in shown}
        stack, seen = [*asked, *whole], {*asked, *whole}
        while stack:
            item = stack.pop()
            if not isinstance(item, str):
                inner = item.asked - seen
                seen |= inner
                stack.extend(inner)
        questions = {item for item in seen if isinstance(item, str)}
        if places:
            questions |= {f"file:{inside}" for question in questions if (inside := file_of(question)) is not None}
        return self._together(questions)

    def _together(self, questions: Iterable[str]) -> dict[str, str]:
        """Questions with their answers; those about parts of one file together, none if there is one about all of
        it."""
        found: dict[str, str] = {}
        parts: dict[str, list[str]] = {}
        for question in questions:
            kind, _, rest = question.partition(":")
            if kind in OF_FILE:
                parts.setdefault(rest.partition(":")[2], []).append(question)
            else:
                found[question] = self.answer(question)
        for inside, several in parts.items():
            if f"file:{inside}" not in found:
                found |= {question: self.with_file(question, inside) for question in _joined(several, inside)}
        return found

    def with_file(self, question: str, inside: str) -> str:
        """The answer to a question about a part of a file, behind the digest of the file."""
        return f"{self._results.known_answers[f'file:{inside}']}:{self._of_part(question)}"

    def holds(self, question: str, answer: str) -> bool:
        """Whether a recorded question still has the answer. One about a part of a file has it where the file has not
        changed."""
        kind, _, rest = question.partition(":")
        if kind not in OF_FILE:
            return self.answer(question) == answer and not (
                kind == "holding" and self._contents.is_held_otherwise(rest)
            )
        digest, _, part = answer.partition(":")
        if self.answer(f"file:{file_of(question)}") == digest:
            return True
        found = self.of_parts[question] = self._of_part(question)
        return found == part

    def _of_part(self, question: str) -> str:
        """What a part of a file is now."""
        known = self._results.known_answers
        if question not in known:
            kind, what, inside = question.split(":", 2)
            path = self._paths.absolute(inside)
            if kind in OF_TEXT:
                known[question] = self._texts.answer(kind, what, self._contents.read(path))
            elif kind in OF_METHODS:
                with self._results.recording(apart=True):
                    facts = self._modules.facts_at(path)
                known[question] = OF_METHODS[kind](facts.tree, what) if facts else "?"
            else:
                parts = self._modules.parts(path)
                known[question] = parts.digest_of(what.split()) if parts else "?"
        return known[question]

    def answer(self, question: str) -> str:
        """The answer to a recorded question as the files are now."""
        known = self._results.known_answers
        if question not in known:
            kind, _, rest = question.partition(":")
            if kind == "file" and rest in self._digests:
                self._results.ask(question, self._digests[rest])
            elif kind == "file":
                self._results.note(question)
                self._contents.read(self._paths.absolute(rest))
            elif kind == "find":
                self._modules.place(rest)
            elif kind == "holding":
                self._contents.holding(rest)
            elif kind == "own":
                self._meanings.is_own(rest)
            elif kind == "named":
                self._contents.named(rest)
            elif kind == "uses":
                self._communication.uses_frameworks(rest)
            elif kind == "reach":
                self._results.ask(question, self._communication.answer(rest))
            elif kind == "locate":
                how, name, folder = rest.split(":", 2)
                script, *below = how.split(" ")
                self._modules.locate_from(name, self._paths.absolute(folder), script == "1", tuple(below))
        return known.get(question, "?")


def _joined(questions: Iterable[str], inside: str) -> Iterator[str]:
    """Questions about one file, those about its parts as one."""
    names = []
    for question in questions:
        if question.startswith(f"{PART}:"):
            names.append(question.split(":", 2)[1])
        else:
            yield question
    if names:
        beginnings = tuple(name.removesuffix(ALL) for name in names if name.endswith(ALL))
        apart = {n for n in names if n.endswith(ALL) or not n.startswith(beginnings)} if beginnings else set(names)
        yield f"{PART}:{' '.join(sorted(filter(None, apart)))}:{inside}"
