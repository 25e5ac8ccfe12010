"""One file in, its findings out."""

from __future__ import annotations

import functools
import pathlib
import time

import libcst as cst

from ddp_lint.config import Settings
from ddp_lint.engine.fingerprints import with_fingerprints
from ddp_lint.engine.focus import Focus, Selection, Source
from ddp_lint.engine.parsing import check_depth, tree_of, tree_of_new_syntax
from ddp_lint.engine.report import FileResult
from ddp_lint.engine.walk import walk
from ddp_lint.findings import Confidence, Finding, Span
from ddp_lint.project import Project
from ddp_lint.project.facts import CannotParse, ModuleFacts, parse
from ddp_lint.rules.base import Rule
from ddp_lint.rules.registry import all_rules, rules_for_text
from ddp_lint.source import ImportTable, Module, SourceFile, Unreadable, suppressions
from ddp_lint.source.tree import descendants


class Checker:
    """Checks files of one project, one after the other; what it learns of other files it keeps."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.project = Project(settings.root)

    def check(self, path: pathlib.Path) -> FileResult:
        """The result for one file. Raises nothing: what goes wrong is in the result."""
        shown = self.project.shown(path)
        try:
            file = SourceFile.read(path, shown)
        except Unreadable as e:
            return FileResult(shown, error=str(e))
        return self.check_file(file, path)

    def check_file(self, file: SourceFile, path: pathlib.Path) -> FileResult:
        """The result for what is taken as the content of `path`."""
        started = time.perf_counter()
        try:
            with self.project.recording() as asked:
                findings, parsed = _check(file, path, self.project, self._settings)
            dependencies = tuple(self.project.dependencies(asked).items())
        except Exception as e:  # a defect of ours must not cost the other files
            return FileResult(file.path, error=f"ddp-lint failed on it, please report: {type(e).__name__}: {e}")
        seconds = time.perf_counter() - started
        return FileResult(file.path, tuple(findings), dependencies=dependencies, seconds=seconds, parsed=parsed)


def check_file(
    file: SourceFile, path: pathlib.Path, project: Project, settings: Settings, *, focus: bool = True
) -> list[Finding]:
    """The findings of one file, sorted, with fingerprints, without those that comments or settings suppress.

    `path` is absolute; `file` is what to take for its content. `focus=False` parses the whole file, for comparison:
    the findings are the same.
    """
    return _check(file, path, project, settings, focus)[0]


def _check(
    file: SourceFile, path: pathlib.Path, project: Project, settings: Settings, focused: bool = True
) -> tuple[list[Finding], bool]:
    """The findings, and whether LibCST had to parse anything."""
    ignored = settings.ignored_in(path)
    active = settings.enabled - ignored
    project.hold(path, file)
    found, parsed = _findings(file, path, project, active, focused)
    found = [finding for finding in found if finding.code not in ignored]
    found = suppressions.apply(file, found, active, noqa=settings.noqa)
    return with_fingerprints(found, file, project.inside(path)), parsed


@functools.lru_cache(maxsize=64)
def _selection(active: frozenset[str]) -> Selection:
    return Selection(rule for code, rule in all_rules().items() if code in active)


def _findings(
    file: SourceFile, path: pathlib.Path, project: Project, active: frozenset[str], focused: bool
) -> tuple[list[Finding], bool]:
    readers = rules_for_text(path.name)
    if readers:
        return _in_text(file, [rule for code, rule in readers.items() if code in active]), False
    focus = _selection(active).concerned(file.text)
    if not focus.rules:
        return [], False
    try:
        module = _module(file, path, project, focus, focused)
    except CannotParse as e:
        return [_cannot_parse(file, e)], False
    crashes: list[Finding] = []

    def crashed(rule: type[Rule], error: Exception) -> None:
        crashes.append(rule_crashed(file, rule, error))

    found = walk(module, focus.rules, crashed)
    return found + crashes, bool(module.tree.body)


def _in_text(file: SourceFile, rules: list[type[Rule]]) -> list[Finding]:
    """The findings in a shell script, a Dockerfile or YAML."""
    found: list[Finding] = []
    for rule in rules:
        try:
            found += rule.in_text(file)
        except Exception as e:  # one rule's defect must not cost the file
            found.append(rule_crashed(file, rule, e))
    return found


def _module(file: SourceFile, path: pathlib.Path, project: Project, focus: Focus, focused: bool) -> Module:
    """The view of the file for the rules that it concerns. Raises CannotParse."""
    name = project.module_name(path)[0]
    facts = project.facts_of(path)
    if facts is None:
        tree = tree_of_new_syntax(file, project.problem(path) or CannotParse("it cannot be read"))
        return Module(file, tree, _imports(tree, path, project), name=name, project=project, path=path)
    source = focus.source(facts) if focused else Source(file.text)
    tree = _tree(source, facts)
    return Module(
        file, tree, facts.imports, name=name, project=project, path=path, line_map=source.line_map, text=source.text
    )


def _tree(source: Source, facts: ModuleFacts) -> cst.Module:
    if not source.text:
        return cst.Module([])
    check_depth(facts)
    return tree_of(source.text)


def _imports(tree: cst.Module, path: pathlib.Path, project: Project) -> ImportTable:
    """The import table of a file that `ast` cannot parse, by its import statements alone."""
    statements = (n for n in descendants(tree) if isinstance(n, (cst.Import, cst.ImportFrom)))
    return project.imports(parse("\n".join(map(tree.code_for_node, statements))), path, tree.code)


def _cannot_parse(file: SourceFile, problem: CannotParse) -> Finding:
    line = min(max(problem.line, 1), len(file.lines))
    column = min(max(problem.column, 0), len(file.lines[line - 1])) + 1
    return Finding(
        "DDP000",
        "cannot-parse",
        f"the file is not checked, Python cannot parse it: {problem.reason}",
        Span(file.path, line, column, line, column + 1),
        Confidence.HIGH,
    )


def rule_crashed(file: SourceFile, rule: type[Rule], error: Exception) -> Finding:
    return Finding(
        "DDP001",
        "rule-crashed",
        " ".join(f"rule {rule.code} ({rule.slug}) failed on this file: {type(error).__name__}: {error}".split()),
        Span(file.path, 1, 1, 1, 1),
        Confidence.HIGH,
        help="This is a defect of ddp-lint, please report it with this message; the other rules did run.",
    )
