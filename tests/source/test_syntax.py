"""`ast` trees are walked as `ast` itself does it, contexts left out."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import pathlib
import types

import pytest

from ddp_lint.project import Project
from ddp_lint.source import syntax
from ddp_lint.source.syntax import (
    below,
    blocks_at,
    calls_below,
    first_line,
    function_at,
    last_line,
    statements,
    statements_in_order,
    walk,
)

_OWN = sorted(pathlib.Path(__file__).parent.glob("*.py"))
_ODD = """\
global a
def f(a, /, b=1, *c, d, e=2, **g) -> int: return {**a, 'k': b}, lambda x=1, *, y: (yield x), f"{a!r:>{b}}"
class A(B, metaclass=C):
    x: int = 3
try:
    import a.b as c
except (D, E) as e:
    raise F from e
else:
    del a[1:2, ...]
finally:
    with a as b, c: nonlocal_ = [x for x in y if x async_ for z in w] if False else None
match a:
    case {"k": [1, *rest], **more} if more: pass
    case A(x=None) | (B() as b): pass
""".replace(" async_", "")


@pytest.mark.parametrize("text", [_ODD, *(path.read_text(encoding="utf-8") for path in _OWN)])
def test_all_nodes_in_the_order_of_ast(text: str) -> None:
    tree = ast.parse(text)
    expected = [node for node in ast.walk(tree) if not isinstance(node, ast.expr_context)]
    assert list(walk(tree)) == expected
    for node in expected:
        children = [child for child in ast.iter_child_nodes(node) if not isinstance(child, ast.expr_context)]
        assert below(node) == children
    kinds = (ast.mod, ast.stmt, ast.ExceptHandler, ast.match_case)
    found = [node for node in expected if isinstance(node, kinds)]
    assert list(statements(tree)) == found
    placed = [node for node in statements_in_order(tree) if hasattr(node, "lineno")]
    assert {*placed} == {node for node in found if hasattr(node, "lineno")}
    assert [(node.lineno, node.col_offset) for node in placed] == sorted((n.lineno, n.col_offset) for n in placed)


_NESTED = """\
@hook(
    1)
def f(x):
    for y in x:
        try:
            g(y)
        except E:
            h(y)(y)
    match x:
        case [1]:
            k()
"""


@pytest.mark.parametrize(
    ("line", "kinds"),
    [
        (1, ["FunctionDef"]),
        (6, ["FunctionDef", "For", "Try", "Expr"]),
        (8, ["FunctionDef", "For", "Try", "ExceptHandler", "Expr"]),
        (11, ["FunctionDef", "Match", "match_case", "Expr"]),
        (12, []),
    ],
)
def test_the_blocks_around_a_line(line: int, kinds: list[str]) -> None:
    assert [type(block).__name__ for block in blocks_at(ast.parse(_NESTED), line)] == kinds


def test_the_lines_of_a_block() -> None:
    function = ast.parse(_NESTED).body[0]
    assert (first_line(function), last_line(function)) == (1, 11)
    case = blocks_at(function, 11)[1]
    assert (first_line(case), last_line(case)) == (10, 11)


def test_a_function_begins_below_its_decorators() -> None:
    tree = ast.parse(_NESTED)
    assert function_at(tree, 1) is None and function_at(tree, 3) is function_at(tree, 11) is tree.body[0]


def test_calls_of_what_a_call_returns_are_calls() -> None:
    calls = calls_below(ast.parse("h(y)(y)"))
    assert [ast.unparse(call) for call in calls] == ["h(y)(y)", "h(y)"]


@pytest.mark.parametrize("module", [syntax, ast, dataclasses])
def test_the_text_of_an_expression_is_that_of_unparse(module: types.ModuleType) -> None:
    expressions = [node for node in ast.walk(ast.parse(inspect.getsource(module))) if isinstance(node, ast.expr)]
    assert [syntax.text_of(node) for node in expressions] == list(map(ast.unparse, expressions))


@pytest.mark.parametrize(
    "text",
    [
        "not a",
        "not not a",
        "a < b < c",
        "not a in b",
        "(a < b) < c",
        "f(*a, **b, c=-1)",
        "x[1:2]",
        "1 .real",
        "'a'.b",
        "u'a'",
    ],
)
def test_the_text_of_a_few_expressions(text: str) -> None:
    node = ast.parse(text, mode="eval").body
    assert syntax.text_of(node) == ast.unparse(node)


def test_the_nodes_of_a_file_are_those_of_its_tree_after_an_edit(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "a.py"
    path.write_text("def f():\n    g(1)\n\n\nx = [h for h in f()]\n")
    project = Project(tmp_path)
    project.stop_recording()
    facts = project.modules.facts_of(path)
    assert facts is not None
    assert list(map(ast.dump, walk(facts.tree))) == list(map(ast.dump, ast_without_contexts(facts.tree)))
    assert [node.lineno for node in syntax.calls_below(facts.tree)] == [2, 5]
    facts.tree.body[0].__dict__["body"] = ast.parse("\ng(1), g(2)").body
    facts.tree.__dict__["version"] = 1
    assert len(list(syntax.calls_below(facts.tree))) == 3
    assert list(map(ast.dump, walk(facts.tree))) == list(map(ast.dump, ast_without_contexts(facts.tree)))


def ast_without_contexts(tree: ast.AST) -> list[ast.AST]:
    return [node for node in ast.walk(tree) if not isinstance(node, ast.expr_context)]
