"""The formats that findings are printed in: one file each, with a pure function `render(run) -> str`."""

from __future__ import annotations

import dataclasses
import importlib
import pathlib
import re
from collections.abc import Mapping

from ddp_lint.findings import Finding, Label, Span
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


#: Call paths of a finding that are named, before the rest is counted.
_NAMED = 3


def call_paths(finding: Finding) -> str:
    """The other places that depend on the cause of a finding, as one line; '' where there are none."""
    places = [f"{label.span.path}:{label.span.line}" for label in finding.paths]
    more = f" and {len(places) - _NAMED} more" if len(places) > _NAMED else ""
    return f"the same cause: {', '.join(places[:_NAMED])}{more}" if places else ""


def in_file(span: Span) -> Span:
    """The span for readers that know the lines of files alone: of a cell of a notebook, the file's first line."""
    return Span(span.path, 1, 1, 1, 1) if span.cell else span


def with_cell(span: Span, text: str) -> str:
    """A message that says the cell and the line, where `in_file` does not."""
    return f"cell {span.cell}, line {span.line}: {text}" if span.cell else text


def in_lines(finding: Finding, first: str) -> str:
    """All texts of a finding, a line each, below a first line."""
    return "\n".join(filter(None, [first, *finding.notes, call_paths(finding), finding.help]))


def render(run: Run, output_format: str) -> str:
    """The run in one of `config.FORMATS`; '' or text that ends with a newline."""
    module = importlib.import_module(f"ddp_lint.output.{output_format}")
    if output_format in ("full", "concise", "github"):
        errors = [(path, visible(reason)) for path, reason in run.errors]
        run = dataclasses.replace(run, findings=[visible_finding(finding) for finding in run.findings], errors=errors)
    text: str = module.render(run)
    if output_format in ("json", "sarif", "gitlab"):
        return in_json(text)
    return in_markup(text) if output_format == "junit" else text


# ---- text of strangers: names of files and of classes, source

#: What a terminal takes for orders, or shows in another order than it is written: C1 controls, marks of direction.
_UNSEEN = re.compile("[\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]")
_CONTROLS = {code: 0x2400 + code for code in range(32) if code != 10}
#: What a service that runs jobs takes for an order to itself in the output of a step: `::` at the start of a line
#: (GitHub; a carriage return starts one too), and a bracket behind `##` anywhere in it (older ones of GitHub, `##vso`
#: of Azure Pipelines, `##teamcity`).
_COMMAND = re.compile(r"(?:^|(?<=\r))([^\S\r\n]*)::", re.MULTILINE)
_HASHES = re.compile(r"(##(?:vso|teamcity)?)\[", re.IGNORECASE)
#: For the bracket of such an order.
_BRACKET = "\N{LIGHT LEFT TORTOISE SHELL BRACKET ORNAMENT}"


def visible(text: str) -> str:
    """Text that a terminal shows as it is: control characters as pictures, marks of direction as replacement
    characters; and that is no workflow command to the service that runs the job."""
    if text.isascii() and text.isprintable() and "::" not in text and "##" not in text:
        return text  # as nearly all are
    return without_commands(_UNSEEN.sub("\N{REPLACEMENT CHARACTER}", text.translate(_CONTROLS)))


def without_commands(text: str) -> str:
    """Text without workflow commands, and else as it is."""
    return _COMMAND.sub(r"\1./::", without_brackets(text))


def without_brackets(text: str) -> str:
    """Text, of the same width, without the commands that need not be at the start of a line."""
    return _HASHES.sub(rf"\1{_BRACKET}", text)


def in_json(text: str) -> str:
    """JSON whose strings hold what `visible` would change as escapes: for programs it is the same."""
    text = _HASHES.sub(r"\1\\u005b", text)
    return _UNSEEN.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def in_markup(text: str) -> str:
    """XML or HTML, likewise; control characters, which it cannot hold, as pictures."""
    text = text.translate({code: picture for code, picture in _CONTROLS.items() if code != 9})
    text = _COMMAND.sub(r"\1&#58;:", _HASHES.sub(r"\1&#91;", text))
    return _UNSEEN.sub(lambda match: f"&#x{ord(match[0]):x};", text)


def one_line(text: str) -> str:
    """A name of a file, visible and on one line."""
    return visible(text.replace("\n", "\N{SYMBOL FOR LINE FEED}"))


def visible_finding(finding: Finding) -> Finding:
    """The finding with all its texts visible; its places and edits are what they are."""
    return dataclasses.replace(
        finding,
        message=visible(finding.message),
        notes=tuple(map(visible, finding.notes)),
        help=visible(finding.help),
        labels=tuple(map(_visible_label, finding.labels)),
        witness=tuple(dataclasses.replace(t, steps=tuple(map(_visible_label, t.steps))) for t in finding.witness),
        fix=finding.fix and dataclasses.replace(finding.fix, message=visible(finding.fix.message)),
    )


def _visible_label(label: Label) -> Label:
    return dataclasses.replace(label, message=visible(label.message))
