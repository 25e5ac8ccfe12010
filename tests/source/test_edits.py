"""Edits keep the layout of what they change."""

from __future__ import annotations

import libcst as cst
import pytest

from ddp_lint.fixes import apply_edits
from ddp_lint.source.edits import remove_argument
from ddp_lint.source.file import SourceFile
from ddp_lint.source.imports import ImportTable
from ddp_lint.source.module import Module


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
    module = Module(SourceFile("m.py", before), cst.parse_module(before), ImportTable({}))
    statement = cst.ensure_type(module.tree.body[0], cst.SimpleStatementLine)
    call = cst.ensure_type(cst.ensure_type(statement.body[0], cst.Expr).value, cst.Call)
    (gone,) = (arg for arg in call.args if arg.keyword is not None and arg.keyword.value == "gone")
    assert apply_edits(before, [remove_argument(module, call, gone)]) == after
