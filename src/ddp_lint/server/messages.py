"""Findings in the words of the language server protocol."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence

from lsprotocol import types
from pygls.workspace import PositionCodec

from ddp_lint.findings import Applicability, Confidence, Edit, Finding, Label, Span
from ddp_lint.ignoring import ignoring
from ddp_lint.output import DOCS
from ddp_lint.rules.page import Page
from ddp_lint.rules.registry import documented, rules_for_text

_SEVERITY = {
    Confidence.HIGH: types.DiagnosticSeverity.Error,
    Confidence.MEDIUM: types.DiagnosticSeverity.Warning,
    Confidence.LOW: types.DiagnosticSeverity.Information,
}
_CODE = re.compile(r"\bDDP\d{3}\b")
FIX_ALL = f"{types.CodeActionKind.SourceFixAll.value}.ddp-lint"


class Translator:
    """Puts spans into the positions of a client. `lines_of` gives the lines of a file, or of a cell of a notebook, by
    its path as findings show it; `uri_of` what the client calls it."""

    def __init__(
        self, codec: PositionCodec, lines_of: Callable[[str, int], Sequence[str]], uri_of: Callable[[str, int], str]
    ) -> None:
        self._codec = codec
        self._lines_of = lines_of
        self.uri_of = uri_of

    def range(self, span: Span) -> types.Range:
        start = types.Position(span.line - 1, span.column - 1)
        end = types.Position(span.end_line - 1, span.end_column - 1)
        lines = self._lines_of(span.path, span.cell)
        return self._codec.range_to_client_units([f"{line}\n" for line in lines], types.Range(start, end))

    def location(self, span: Span) -> types.Location:
        return types.Location(self.uri_of(span.path, span.cell), self.range(span))

    # ---- diagnostics

    def diagnostic(self, finding: Finding) -> types.Diagnostic:
        """A finding; its labels and what each rank does are related information."""
        return types.Diagnostic(
            range=self.range(finding.span),
            message="\n".join(filter(None, [finding.message, *finding.notes, finding.help])),
            severity=_SEVERITY[finding.confidence],
            code=finding.code,
            code_description=types.CodeDescription(DOCS.format(code=finding.code)),
            source="ddp-lint",
            related_information=[
                types.DiagnosticRelatedInformation(self.location(label.span), label.message)
                for label in _related(finding)
            ],
        )

    # ---- code actions

    def actions(self, finding: Finding) -> Iterator[types.CodeAction]:
        """What fixes a finding, or suppresses it."""
        diagnostics = [self.diagnostic(finding)]
        fix = finding.fix
        if fix is not None and fix.applicability is not Applicability.DISPLAY:
            safe = fix.applicability is Applicability.SAFE
            yield types.CodeAction(
                title=f"{finding.code}: {fix.message}" + ("" if safe else " (may change behaviour)"),
                kind=types.CodeActionKind.QuickFix,
                diagnostics=diagnostics,
                is_preferred=safe,
                edit=self.edit(fix.edits),
            )
        lines = self._lines_of(finding.span.path, finding.span.cell)
        python = not rules_for_text(finding.span.path.rpartition("/")[2], lines[0] if lines else "")
        edit = ignoring(finding, lines, python=python)
        if edit is not None:
            yield types.CodeAction(
                title=f"{finding.code}: ignore here",
                kind=types.CodeActionKind.QuickFix,
                diagnostics=diagnostics,
                edit=self.edit([edit]),
            )

    def fix_all(self, findings: Iterable[Finding]) -> types.CodeAction | None:
        """All safe fixes that do not overlap."""
        edits: list[Edit] = []
        for finding in findings:
            fix = finding.fix
            if fix is not None and fix.applicability is Applicability.SAFE and not _overlap(edits, fix.edits):
                edits += [edit for edit in fix.edits if edit not in edits]
        if not edits:
            return None
        return types.CodeAction("ddp-lint: apply all safe fixes", kind=FIX_ALL, edit=self.edit(edits))

    def edit(self, edits: Iterable[Edit]) -> types.WorkspaceEdit:
        changes: dict[str, list[types.TextEdit]] = {}
        for edit in edits:
            uri = self.uri_of(edit.span.path, edit.span.cell)
            changes.setdefault(uri, []).append(types.TextEdit(self.range(edit.span), edit.text))
        return types.WorkspaceEdit(changes=changes)


def _related(finding: Finding) -> Iterator[Label]:
    yield from finding.labels
    for trace in finding.witness:
        for step in trace.steps:
            yield Label(step.span, f"{trace.rank}: {step.message}")


def _overlap(edits: Sequence[Edit], others: Iterable[Edit]) -> bool:
    return any(
        a.span.place == b.span.place
        and a != b
        and (a.span.line, a.span.column) <= (b.span.end_line, b.span.end_column)
        and (b.span.line, b.span.column) <= (a.span.end_line, a.span.end_column)
        for a in edits
        for b in others
    )


# ---- hover


def hover(findings: Iterable[Finding], line: str, character: int) -> str:
    """The pages of the findings under the cursor, else of a code in the line there (in a comment that ignores it);
    `character` counts from 0."""
    codes = {finding.code: None for finding in findings}
    if not codes:
        codes = {m[0]: None for m in _CODE.finditer(line) if m.start() <= character <= m.end()}
    rules = documented()
    return "\n\n---\n\n".join(Page.of(rules[code]).markdown().rstrip() for code in codes if code in rules)


def contains(outer: types.Range, inner: types.Range) -> bool:
    """Whether two ranges have a place in common."""

    def place(position: types.Position) -> tuple[int, int]:
        return position.line, position.character

    return place(outer.start) <= place(inner.end) and place(inner.start) <= place(outer.end)
