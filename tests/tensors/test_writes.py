"""Which functions may write to a tensor, by their form: only those are read."""

from __future__ import annotations

import libcst as cst
import pytest

from ddp_lint.source import SourceFile
from ddp_lint.source.imports import ImportTable
from ddp_lint.tensors import TensorFile
from ddp_lint.tensors import file as tensor_file
from ddp_lint.view import Module


@pytest.mark.parametrize(
    ("statement", "is_read"),
    [
        ('log["loss"] = x', False),
        ('log[f"loss/{n}"] = x', False),
        ("for log['n'] in x: pass", False),
        ("x[0] = 1", True),
        ("x[n] = 1", True),
        ('log["loss"][0] = x', True),
        ('log["loss"] += x', True),
        ('log["loss", n] = x', False),
    ],
)
def test_functions_that_may_write(statement: str, is_read: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    text = f"import torch\n\ndef f(x, log, n):\n    {statement}\n"
    module = Module(SourceFile("m.py", text), cst.parse_module(text), ImportTable({}))
    read: list[cst.CSTNode] = []
    flow = TensorFile.flow
    monkeypatch.setattr(tensor_file.TensorFile, "flow", lambda self, node: read.append(node) or flow(self, node))
    TensorFile.of(module).writes(next(iter(module.of_type(cst.FunctionDef))))
    assert bool(read) is is_read
