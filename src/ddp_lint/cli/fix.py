"""--fix and --diff: the fixes of a run, applied to files or to standard input."""

from __future__ import annotations

import dataclasses
import itertools
import pathlib
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from ddp_lint.cli.console import failing_alone
from ddp_lint.config import Settings
from ddp_lint.engine.runner import check_texts
from ddp_lint.files import shown
from ddp_lint.findings import Finding
from ddp_lint.fixes import Fixed, Text, applicable, fixpoint_of_all, unified_diff
from ddp_lint.source.notebook import SUFFIX, Notebook


@dataclasses.dataclass
class FixedFiles:
    """How many findings were (or would be) fixed, the patch that does it, and the files where it failed."""

    fixed: int = 0
    patch: str = ""
    failures: list[tuple[str, str]] = dataclasses.field(default_factory=list)
    #: The text after fixes, of standard input.
    text: str = ""


class _File(NamedTuple):
    """A file that is to be fixed; `notebook` where it is one."""

    source: Text
    notebook: Notebook | None

    @classmethod
    def of(cls, source: Text) -> _File:
        """Raises ValueError for what has the name of a notebook and is none."""
        return cls(source, Notebook.of(source.content) if source.path.suffix == SUFFIX else None)

    @property
    def program(self) -> str:
        """The text that is fixed."""
        return self.notebook.module if self.notebook is not None else self.source.content

    def with_program(self, program: str) -> str:
        """The content of the file with it. Raises ValueError where the cells of a notebook are lost."""
        return self.notebook.with_module(program) if self.notebook is not None else program


def fix_files(
    findings: Iterable[Finding], files: Mapping[pathlib.Path, Settings], *, unsafe: bool, dry: bool
) -> FixedFiles:
    """Fix the files that have findings with a fix. With `dry` nothing is written.

    All files are checked together, round by round: what one needs of the others is worked out once a round.
    """
    wanted = {f.span.path for f in findings if applicable(f.fix, unsafe=unsafe)}
    outcome = FixedFiles()
    concerned = [(path, settings) for path, settings in files.items() if shown(path) in wanted]
    for _, group in itertools.groupby(concerned, key=lambda item: id(item[1])):
        part = list(group)
        settings = part[0][1]
        read: dict[pathlib.Path, _File] = {}
        for path, _ in part:
            with failing_alone(path, "cannot be fixed", outcome.failures):
                read[path] = _File.of(Text.read(path))
        for path, done in _fixed(read, settings, unsafe).items():
            with failing_alone(path, "cannot be fixed", outcome.failures):
                _finish(path, read[path], done, settings, outcome, dry=dry)
    return outcome


def _finish(
    path: pathlib.Path, file: _File, done: Fixed, settings: Settings, outcome: FixedFiles, *, dry: bool
) -> None:
    """Raises what `Text.write` and `_File.with_program` raise."""
    text = file.with_program(done.text)
    if not dry and done.applied:
        file.source.write(text, settings.root)
    outcome.fixed += len(done.applied)
    outcome.patch += unified_diff(shown(path), file.source.content, text)


def fix_text(source: Text, settings: Settings, *, unsafe: bool) -> FixedFiles:
    """Fix text that is not on disk, as if it were the content of its path."""
    file = _File.of(source)
    done = _fixed({source.path: file}, settings, unsafe)[source.path]
    text = file.with_program(done.text)
    return FixedFiles(len(done.applied), unified_diff(shown(source.path), source.content, text), text=text)


def _fixed(read: Mapping[pathlib.Path, _File], settings: Settings, unsafe: bool) -> dict[pathlib.Path, Fixed]:
    """The programs after all rounds."""
    programs = {path: file.program for path, file in read.items()}
    return fixpoint_of_all(programs, lambda texts, left: check_texts(texts, left, settings), unsafe=unsafe)
