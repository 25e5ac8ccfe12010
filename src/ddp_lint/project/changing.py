"""Files that change while a project is in use, as in an editor: what depends on them is computed again."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Iterator, Mapping

from ddp_lint.project.answers import OF_METHODS
from ddp_lint.project.project import Project
from ddp_lint.project.texts import OF_TEXT
from ddp_lint.source.file import SourceFile


def change(project: Project, path: pathlib.Path, file: SourceFile | None) -> None:
    """From now on `file` is the content of `path`, regardless of the disk; None: the file on disk, as it is now. What
    depends on the content is computed again at its next use, but for what rests on something that the text still says.
    Needs `changing`."""
    key = os.path.normpath(path)
    before = project.contents.words_in(key)
    project.contents.open(key, file)
    project.modules.forget(key)
    answers = project.forget_answers_about(project.paths.relative(key))
    said = _still_said(project, key, answers)
    gone = [question for question in answers if question not in said]
    project.forget([*gone, *project.communication.changed(key), *_about_words(project, before, key)])


def edit(project: Project, path: pathlib.Path, file: SourceFile) -> bool:
    """`change`, where the edit lies within functions and moves no line: what depends on other parts of the file is
    kept, with the nodes of its syntax tree. False for any other edit: nothing is done."""
    key = os.path.normpath(path)
    inside = project.paths.relative(key)
    changed = project.modules.edit(key, file)
    if changed is None:
        return False
    before = project.contents.words_in(key)
    project.contents.open(key, file)
    gone = {f"file:{inside}", *(node.__dict__["question"] for node in changed)}
    answers = project.forget_answers_about(inside)
    said = _still_said(project, key, answers)
    for question in answers:
        kind = question.partition(":")[0]
        if (kind in OF_TEXT and question not in said) or (kind in OF_METHODS and changed):
            gone.add(question)
    project.forget([*gone, *project.communication.changed(key), *_about_words(project, before, key)])
    return True


def _still_said(project: Project, path: str, answers: Mapping[str, str | None]) -> set[str]:
    """Those of some questions about a file, with the answers until now, that its text answers in the same way."""
    file = project.contents.read(path)
    found = set[str]()
    for question, answer in answers.items():
        kind, _, rest = question.partition(":")
        if (
            kind in OF_TEXT
            and answer is not None
            and project.texts.answer(kind, rest.partition(":")[0], file) == answer
        ):
            project.known_answers[question] = answer
            found.add(question)
    return found


def _about_words(project: Project, before: set[str], path: str) -> Iterator[str]:
    """The questions about words that a changed file holds now or held before."""
    return (f"holding:{word}" for word in before ^ project.contents.words_in(path))
