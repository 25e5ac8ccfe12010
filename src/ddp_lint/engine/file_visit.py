"""One file, visited by the rules that apply to it."""

from __future__ import annotations

import ast
import pathlib
import weakref
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import libcst as cst

from ddp_lint.engine.cst_grafting import Trees
from ddp_lint.engine.focus import Concern, Focus, Source
from ddp_lint.engine.parsing import check_depth, of_file, tree_of, tree_of_new_syntax
from ddp_lint.engine.report import rule_crashed
from ddp_lint.engine.walk import walk
from ddp_lint.findings import Confidence, Finding, Span
from ddp_lint.project import Project
from ddp_lint.project.facts import ModuleFacts
from ddp_lint.rules.base import Rule
from ddp_lint.source import ImportTable, SourceFile
from ddp_lint.source.parsing import CannotParse, parse
from ddp_lint.source.tree import descendants
from ddp_lint.view import Module
from ddp_lint.view.module import Kept

#: Of projects whose files change.
_trees: weakref.WeakKeyDictionary[Project, Trees] = weakref.WeakKeyDictionary()


def visit(
    file: SourceFile, path: pathlib.Path, project: Project, focus: Focus, focused: bool
) -> tuple[list[Finding], bool]:
    """The findings of the rules that the file concerns, and whether LibCST had to parse anything."""
    try:
        module, concern = _module(file, path, project, focus, focused)
    except CannotParse as e:
        return [_cannot_parse(file, e)], False
    crashes: list[Finding] = []

    def crashed(rule: type[Rule], error: Exception) -> None:
        crashes.append(rule_crashed(file, rule, error))

    facts, parsed = module.facts, bool(module.tree.body)
    limits = dict(_limits(module.tree.body, facts.tree.body, concern)) if facts is not None and concern else {}
    try:
        return walk(module, focus.rules, crashed, limits) + crashes, parsed
    finally:
        module.let_go()


class Look(NamedTuple):
    """What the rules that visit nodes find in the functions that an edit has changed, and where these are."""

    found: list[Finding]
    places: list[Span]

    def holds(self, finding: Finding) -> bool:
        """Whether a finding is in one of these functions."""
        return any(place.line <= finding.span.line <= place.end_line for place in self.places)


def visit_edited(file: SourceFile, path: pathlib.Path, project: Project, focus: Focus) -> Look | None:
    """A look at the functions that the last edit has changed; None where it changed more."""
    try:
        module, concern = _module(file, path, project, focus, focused=True)
    except CannotParse:
        return None
    failed: list[Exception] = []
    try:
        edited, facts = module.kept.edited if module.kept else None, module.facts
        if edited is None or facts is None or concern is None:
            return None
        limits = dict(_limits(module.tree.body, facts.tree.body, concern))
        limits |= dict.fromkeys(_functions(module.tree.body) - edited, frozenset[str]())
        found = walk(module, focus.visitors, lambda rule, error: failed.append(error), limits)
        look = Look(found, [module.span(function) for function in edited])
    finally:
        module.let_go()
    return look._replace(found=list(filter(look.holds, found))) if not failed else None


def _functions(body: Sequence[cst.CSTNode]) -> set[cst.CSTNode]:
    """The functions of a module and the methods of its classes."""
    found: set[cst.CSTNode] = {node for node in body if isinstance(node, cst.FunctionDef)}
    return found.union(*(_functions(node.body.body) for node in body if isinstance(node, cst.ClassDef)))


def _limits(
    kept: Sequence[cst.CSTNode], body: list[ast.stmt], concern: Concern
) -> Iterator[tuple[cst.CSTNode, frozenset[str]]]:
    """The definitions of a module with the rules that apply to them: a rule sees the same of a file, whichever other
    rules made focus keep of it."""
    nodes = [node for node in kept if isinstance(node, (cst.FunctionDef, cst.ClassDef))]
    definitions = [s for s in body if isinstance(s, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))]
    for node, definition in zip(nodes, definitions, strict=True):
        yield node, concern.codes(concern.of(definition))


def _module(
    file: SourceFile, path: pathlib.Path, project: Project, focus: Focus, focused: bool
) -> tuple[Module, Concern | None]:
    """The view of the file for the rules that it concerns, and which of its parts concern which. Raises CannotParse."""
    name = project.modules.name_of(path)[0]
    facts = project.modules.facts_of(path)
    if facts is None:
        tree = tree_of_new_syntax(file.text, project.modules.problem(path) or CannotParse("it cannot be read"))
        return Module(file, tree, _imports(tree, path, project), name=name, project=project, path=path), None
    source = focus.source(facts) if focused else Source(file.text)
    tree, kept = _tree(source, facts, project)
    module = Module(
        file, tree, facts.imports, name=name, project=project, path=path, line_map=source.line_map, text=source.text
    )
    module.kept = kept
    return module, source.concern


def _tree(source: Source, facts: ModuleFacts, project: Project) -> tuple[cst.Module, Kept | None]:
    if not source.text:
        return cst.Module([]), None
    check_depth(facts)
    try:
        if not project.is_changing:
            return tree_of(source.text), None
        trees = _trees.setdefault(project, Trees())
        parsed = trees.parsed(facts.source.path, source.text, source.line_map, facts.tree.body)
    except CannotParse as problem:
        raise of_file(problem, facts, source.line_map) from None
    return parsed.tree, parsed.kept


def _imports(tree: cst.Module, path: pathlib.Path, project: Project) -> ImportTable:
    """The import table of a file that `ast` cannot parse, by its import statements alone."""
    statements = (n for n in descendants(tree) if isinstance(n, (cst.Import, cst.ImportFrom)))
    return project.modules.imports(parse("\n".join(map(tree.code_for_node, statements))), path, tree.code)


def _cannot_parse(file: SourceFile, problem: CannotParse) -> Finding:
    line = min(max(problem.line, 1), len(file.lines))
    column = min(max(problem.column, 0), len(file.lines[line - 1])) + 1
    return Finding(
        "DDP000",
        "cannot-parse",
        f"the file is not checked, {problem.parser} cannot parse it: {problem.reason}",
        Span(file.path, line, column, line, column + 1),
        Confidence.HIGH,
    )
