"""Files in, findings out."""

from __future__ import annotations

import ast
import dataclasses
import pathlib
import warnings

import libcst as cst

from ddp_lint.config import Settings
from ddp_lint.engine.walk import walk
from ddp_lint.findings import Confidence, Finding, Span
from ddp_lint.project import Project
from ddp_lint.rules.base import Rule
from ddp_lint.rules.registry import all_rules
from ddp_lint.source import ImportTable, Module, SourceFile, Unreadable


@dataclasses.dataclass
class Report:
    """The outcome of a run: sorted findings, and what could not be read (path, reason)."""

    findings: list[Finding]
    errors: list[tuple[str, str]]


def check_paths(paths: list[pathlib.Path], settings: Settings) -> Report:
    project = Project(settings.root)
    report = Report([], [])
    for path in paths:
        try:
            file = SourceFile.read(path, project.shown(path))
        except Unreadable as e:
            report.errors.append((project.shown(path), str(e)))
            continue
        report.findings += check_file(file, path, project, settings)
    report.findings.sort(key=lambda f: f.sort_key)
    return report


def check_file(file: SourceFile, path: pathlib.Path, project: Project, settings: Settings) -> list[Finding]:
    kinds = [rule for code, rule in all_rules().items() if code in settings.enabled]
    try:
        tree = cst.parse_module(file.text)
    except cst.ParserSyntaxError as e:
        span = Span(file.path, e.raw_line, e.raw_column + 1, e.raw_line, e.raw_column + 2)
        return [Finding("DDP000", "cannot-parse", f"cannot parse: {e.message}", span, Confidence.HIGH)]
    name, is_package = project.module_name(path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        imports = ImportTable.of(ast.parse(file.text), name, is_package)
    module = Module(file, tree, imports, name=name, project=project)
    crashes: list[Finding] = []

    def crashed(rule: type[Rule], error: Exception) -> None:
        message = f"rule {rule.code} ({rule.slug}) failed here: {type(error).__name__}: {error}"
        crashes.append(Finding("DDP001", "rule-crashed", message, Span(file.path, 1, 1, 1, 1), Confidence.HIGH))

    return walk(module, kinds, crashed) + crashes
