"""Files that change while a project is in use, as in an editor: what depends on them is computed again."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Iterator

from ddp_lint.project.answers import OF_METHODS
from ddp_lint.project.project import Project
from ddp_lint.project.texts import OF_TEXT
from ddp_lint.source.file import SourceFile


def change(project: Project, path: pathlib.Path, file: SourceFile | None) -> None:
    """From now on `file` is the content of `path`, regardless of the disk; None: the file on disk, as it is now. What
    depends on the content is computed again at its next use. Needs `changing`."""
    key = os.path.normpath(path)
    before = project.contents.words_in(key)
    project.contents.open(key, file)
    project.modules.forget(key)
    of_file = project.forget_answers_about(project.paths.relative(key))
    project.forget([*of_file, *project.communication.changed(key), *_about_words(project, before, key)])


def edit(project: Project, path: pathlib.Path, file: SourceFile) -> bool:
    """`change`, where the edit lies within functions and moves no line: what depends on other parts of the file is
    kept, with the nodes of its syntax tree. False for any other edit: nothing is done."""
    key = os.path.normpath(path)
    facts, inside = project.modules.known_facts(key), project.paths.relative(key)
    old = facts.source if facts is not None else None
    changed = project.modules.edit(key, file)
    if changed is None:
        return False
    before = project.contents.words_in(key)
    project.contents.open(key, file)
    gone = {f"file:{inside}", *(node.__dict__["question"] for node in changed)}
    for question in project.forget_answers_about(inside):
        kind, _, rest = question.partition(":")
        what, answer = rest.partition(":")[0], project.texts.answer
        of_text = kind in OF_TEXT and answer(kind, what, old) != answer(kind, what, file)
        if of_text or (kind in OF_METHODS and changed):
            gone.add(question)
    project.forget([*gone, *project.communication.changed(key), *_about_words(project, before, key)])
    return True


def _about_words(project: Project, before: set[str], path: str) -> Iterator[str]:
    """The questions about words that a changed file holds now or held before."""
    return (f"holding:{word}" for word in before ^ project.contents.words_in(path))
