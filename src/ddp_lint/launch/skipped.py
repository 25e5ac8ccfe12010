"""Tests that are skipped in every run: what is in them is run by nothing."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ddp_lint.project.facts import ModuleFacts
from ddp_lint.source.syntax import FunctionNode, blocks_at, decorators

#: Not ``skipIf`` and ``skipif``, which ask something first.
_SKIPS = frozenset({"unittest.skip", "unittest.case.skip", "pytest.mark.skip"})
_DEFINED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def is_skipped(facts: ModuleFacts, line: int) -> bool:
    """Whether a line is in a test that is skipped whatever the run is: by a decorator of the method, of its class, or
    by the marks of its class or file (``pytestmark = pytest.mark.skip(..)``)."""
    around = [b for b in blocks_at(facts.tree, line) if isinstance(b, _DEFINED)]
    if not around or not facts.file.holds("skip"):
        return False
    if _is_test(around[0]) and _is_marked(facts, facts.tree.body):
        return True
    return any(_is_skip(facts, each) for node in around for each in decorators(node)) or any(
        _is_marked(facts, node.body) for node in around if isinstance(node, ast.ClassDef)
    )


def _is_test(definition: FunctionNode | ast.ClassDef) -> bool:
    """Whether the runner of tests takes a definition at the top of a file for one, and no program calls it."""
    bases = definition.bases if isinstance(definition, ast.ClassDef) else ()
    return definition.name.lower().startswith("test") or any("TestCase" in ast.unparse(base) for base in bases)


def _is_marked(facts: ModuleFacts, body: list[ast.stmt]) -> bool:
    return any(_is_skip(facts, mark) for mark in _marks(body))


def _marks(body: list[ast.stmt]) -> Iterator[ast.expr]:
    """The marks that ``pytestmark = ..`` gives what is beside it, one or a list of them."""
    for statement in body:
        if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "pytestmark":
            value = statement.value
            marks = value.elts if isinstance(value, (ast.List, ast.Tuple)) else [value]
            yield from (mark.func if isinstance(mark, ast.Call) else mark for mark in marks)


def _is_skip(facts: ModuleFacts, mark: ast.expr) -> bool:
    return facts.qualified(mark) in _SKIPS
