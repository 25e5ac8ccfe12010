"""Edits keep the layout of what they change."""

from __future__ import annotations

import libcst as cst
import pytest

from ddp_lint.fixes import apply_edits
from ddp_lint.source.file import SourceFile
from ddp_lint.source.imports import ImportTable
from ddp_lint.view.edits import add_argument, remove_argument
from ddp_lint.view.module import Module


def parsed(text: str) -> tuple[Module, cst.Call]:
    """A module of one call."""
    module = Module(SourceFile("m.py", text), cst.parse_module(text), ImportTable({}))
    statement = cst.ensure_type(module.tree.body[0], cst.SimpleStatementLine)
    return module, cst.ensure_type(cst.ensure_type(statement.body[0], cst.Expr).value, cst.Call)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("f(a)\n", "f(a, new=1)\n"),
        ("f((a), b=2)\n", "f((a), new=1, b=2)\n"),
        ("f()\n", "f(new=1)\n"),
        ("f(b=2)\n", "f(new=1, b=2)\n"),
        ("f(*rest)\n", "f(new=1, *rest)\n"),
        ("f(\n    [a]\n    + b\n)\n", "f(\n    [a]\n    + b, new=1\n)\n"),
        ("f(\n    a,\n    b=2,\n)\n", "f(\n    a, new=1,\n    b=2,\n)\n"),
    ],
)
def test_an_argument_is_added(before: str, after: str) -> None:
    module, call = parsed(before)
    assert apply_edits(before, [add_argument(module, call, "new", "1")]) == after


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("f(a, gone=1, b=2)\n", "f(a, b=2)\n"),
        ("f(a, gone=1)\n", "f(a)\n"),
        ("f(gone=1,)\n", "f()\n"),
        ("f(\n    gone=1,\n)\n", "f()\n"),
        ("f(\n    a,\n    gone=1,\n)\n", "f(\n    a,\n)\n"),
        ("f(\n    gone=1,\n    **rest,\n)\n", "f(\n    **rest,\n)\n"),
        ("f(a,\n  gone=1)\n", "f(a)\n"),
    ],
)
def test_an_argument_is_taken_out(before: str, after: str) -> None:
    module, call = parsed(before)
    (gone,) = (arg for arg in call.args if arg.keyword is not None and arg.keyword.value == "gone")
    assert apply_edits(before, [remove_argument(module, call, gone)]) == after


@pytest.mark.parametrize("text", ["f(a)", "f(\n    a,  # why\n    b\n)", f"f({'a' * 200})"])
def test_a_message_quotes_code_on_one_short_line(text: str) -> None:
    module, call = parsed(f"{text}\n")
    quoted = module.quoted(call)
    assert "\n" not in quoted
    assert len(quoted) <= 62
    assert quoted == f"`{module.code(call)}`" if len(text) < 60 else quoted.endswith("a…`")


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("f(not a and b \\\n    and c)", "f(not a and b and c)"),
        ("f(a,  # why\n  '#',\n  b)", "f(a, '#', b)"),
    ],
)
def test_code_on_one_line_reads_as_before(text: str, line: str) -> None:
    module, call = parsed(f"{text}\n")
    assert module.code(call) == line
