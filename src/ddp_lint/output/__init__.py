"""The formats that findings are printed in: one file each, with a pure function `render(run) -> str`."""

from __future__ import annotations

import dataclasses
import importlib
import pathlib
from collections.abc import Mapping

from ddp_lint.findings import Finding
from ddp_lint.source.file import SourceFile, Unreadable

#: Where a rule's page is published.
DOCS = "https://github.com/ddp-lint/ddp-lint/blob/main/docs/rules/{code}.md"


class Sources:
    """The text of the files that findings point into, read when it is shown. `given` holds what is not on disk."""

    def __init__(self, given: Mapping[str, str] | None = None) -> None:
        self._lines = {path: text.split("\n") for path, text in (given or {}).items()}

    def lines(self, path: str) -> list[str]:
        """The lines of a file by its path as findings show it; none when it cannot be read any more."""
        if path not in self._lines:
            try:
                self._lines[path] = SourceFile.read(pathlib.Path(path), path).lines
            except Unreadable:
                self._lines[path] = []
        return self._lines[path]


@dataclasses.dataclass(frozen=True)
class Run:
    """What is to be printed: sorted findings, (path, reason) of what could not be checked, and the files' text."""

    findings: list[Finding]
    errors: list[tuple[str, str]] = dataclasses.field(default_factory=list)
    sources: Sources = dataclasses.field(default_factory=Sources)
    color: bool = False


#: Call paths of a finding that are named, before the rest is counted.
_NAMED = 3


def call_paths(finding: Finding) -> str:
    """The other places that rest on the cause of a finding, as one line; '' where there are none."""
    places = [f"{label.span.path}:{label.span.line}" for label in finding.paths]
    more = f" and {len(places) - _NAMED} more" if len(places) > _NAMED else ""
    return f"the same cause: {', '.join(places[:_NAMED])}{more}" if places else ""


def render(run: Run, output_format: str) -> str:
    """The run in one of `config.FORMATS`; '' or text that ends with a newline."""
    module = importlib.import_module(f"ddp_lint.output.{output_format}")
    text: str = module.render(run)
    return text
