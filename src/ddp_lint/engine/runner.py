"""Files in, findings out."""

from __future__ import annotations

import pathlib
import time
from collections.abc import Sequence

import libcst as cst

from ddp_lint.config import Settings
from ddp_lint.engine.fingerprints import with_fingerprints
from ddp_lint.engine.report import FileResult, Report
from ddp_lint.engine.walk import walk
from ddp_lint.findings import Confidence, Finding, Span
from ddp_lint.project import Project
from ddp_lint.project.facts import parse
from ddp_lint.rules.base import Rule
from ddp_lint.rules.registry import all_rules
from ddp_lint.source import ImportTable, Module, SourceFile, Unreadable
from ddp_lint.source.tree import descendants

__all__ = ["Report", "check_file", "check_paths", "check_text"]


def check_paths(
    paths: Sequence[pathlib.Path],
    settings: Settings,
    *,
    jobs: int | None = None,
    cache_dir: pathlib.Path | None = None,
) -> Report:
    """Check files. `jobs`: processes, None for as many as pay off; `cache_dir`: where results are kept, None for
    nowhere. The report is the same whatever `jobs` and the cache say."""
    project = Project(settings.root)
    results = [_check_path(path, project, settings) for path in dict.fromkeys(paths)]
    return Report.of(results)


def check_text(text: str, path: pathlib.Path, settings: Settings) -> Report:
    """Check text that is not (yet) on disk as if it were the content of `path`: standard input, flake8."""
    project = Project(settings.root)
    shown = project.shown(path)
    file = SourceFile.of_text(shown, text)
    return Report.of([FileResult(shown, tuple(check_file(file, path, project, settings)))])


def _check_path(path: pathlib.Path, project: Project, settings: Settings) -> FileResult:
    shown = project.shown(path)
    started = time.perf_counter()
    try:
        file = SourceFile.read(path, shown)
    except Unreadable as e:
        return FileResult(shown, error=str(e))
    findings = tuple(check_file(file, path, project, settings))
    return FileResult(shown, findings, seconds=time.perf_counter() - started)


def check_file(file: SourceFile, path: pathlib.Path, project: Project, settings: Settings) -> list[Finding]:
    """The findings of one file, sorted, with fingerprints, without those that comments or settings suppress."""
    project.hold(path, file)
    ignored = settings.ignored_in(path) if hasattr(settings, "ignored_in") else frozenset()
    active = settings.enabled - ignored
    findings = [f for f in _raw_findings(file, path, project, active) if f.code not in ignored]
    if hasattr(settings, "noqa"):
        from ddp_lint.source import suppressions

        findings = suppressions.apply(file, findings, active, noqa=settings.noqa)
    return with_fingerprints(findings, file, project.inside(path))


def _raw_findings(file: SourceFile, path: pathlib.Path, project: Project, active: frozenset[str]) -> list[Finding]:
    kinds = [rule for code, rule in all_rules().items() if code in active]
    try:
        tree = cst.parse_module(file.text)
    except cst.ParserSyntaxError as e:
        return [_cannot_parse(file, e.message, e.raw_line, e.raw_column)]
    imports, name = _imports(tree, path, project), project.module_name(path)[0]
    module = Module(file, tree, imports, name=name, project=project, path=path)
    crashes: list[Finding] = []

    def crashed(rule: type[Rule], error: Exception) -> None:
        crashes.append(_rule_crashed(file, rule, error))

    return walk(module, kinds, crashed) + crashes


def _imports(tree: cst.Module, path: pathlib.Path, project: Project) -> ImportTable:
    """The import table by `ast`, or, for syntax newer than the running Python, by the import statements alone."""
    facts = project.facts_of(path)
    if facts is not None:
        return facts.imports
    statements = (n for n in descendants(tree) if isinstance(n, (cst.Import, cst.ImportFrom)))
    return project.imports(parse("\n".join(map(tree.code_for_node, statements))), path, tree.code)


def _cannot_parse(file: SourceFile, reason: str, line: int, column: int) -> Finding:
    span = Span(file.path, max(line, 1), max(column, 0) + 1, max(line, 1), max(column, 0) + 2)
    return Finding("DDP000", "cannot-parse", f"cannot parse the file: {reason}", span, Confidence.HIGH)


def _rule_crashed(file: SourceFile, rule: type[Rule], error: Exception) -> Finding:
    return Finding(
        "DDP001",
        "rule-crashed",
        f"rule {rule.code} ({rule.slug}) failed on this file: {type(error).__name__}: {error}".replace("\n", " "),
        Span(file.path, 1, 1, 1, 1),
        Confidence.HIGH,
        help="This is a defect of ddp-lint, please report it with this message; the other rules did run.",
    )
