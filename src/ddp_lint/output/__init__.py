"""The formats that findings are printed in: one file each, with a pure function `render(run) -> str`."""

from __future__ import annotations

import dataclasses
import importlib
import pathlib
from collections.abc import Mapping

from ddp_lint.findings import Finding, Span
from ddp_lint.source.file import SourceFile, Unreadable

#: Where a rule's page is published.
DOCS = "https://github.com/ddp-lint/ddp-lint/blob/main/docs/rules/{code}.md"


class Sources:
    """The text of the files that findings point into, read when it is shown. `given` holds what is not on disk."""

    def __init__(self, given: Mapping[str, str] | None = None) -> None:
        self._files: dict[str, SourceFile | None] = {}
        for path, text in (given or {}).items():
            self._files[path] = SourceFile.of_text(path, text)

    def lines(self, path: str, cell: int = 0) -> list[str]:
        """The lines of a file by its path as findings show it, or of a cell of a notebook; none when it cannot be read
        any more."""
        if path not in self._files:
            try:
                self._files[path] = SourceFile.read(pathlib.Path(path), path)
            except Unreadable:
                self._files[path] = None
        file = self._files[path]
        if file is None:
            return []
        return file.cells.text(file.text, cell).split("\n") if file.cells and cell else file.lines


@dataclasses.dataclass(frozen=True)
class Run:
    """What is to be printed: sorted findings, (path, reason) of what could not be checked, and the files' text."""

    findings: list[Finding]
    errors: list[tuple[str, str]] = dataclasses.field(default_factory=list)
    sources: Sources = dataclasses.field(default_factory=Sources)
    color: bool = False


def in_file(span: Span) -> Span:
    """The span for readers that know the lines of files alone: of a cell of a notebook, the file's first line."""
    return Span(span.path, 1, 1, 1, 1) if span.cell else span


def with_cell(span: Span, text: str) -> str:
    """A message that says the cell and the line, where `in_file` does not."""
    return f"cell {span.cell}, line {span.line}: {text}" if span.cell else text


def render(run: Run, output_format: str) -> str:
    """The run in one of `config.FORMATS`; '' or text that ends with a newline."""
    module = importlib.import_module(f"ddp_lint.output.{output_format}")
    text: str = module.render(run)
    return text
