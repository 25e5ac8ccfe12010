"""The fixture of writes to what other code of the project keeps, run: backward raises where a line is flagged."""

from __future__ import annotations

import ast
import importlib
import pathlib

import pytest

torch = pytest.importorskip("torch")

FIXTURE = pathlib.Path(__file__).parents[1] / "fixtures" / "parameters" / "DDP203_through_calls"
SOURCE = (FIXTURE / "model.py").read_text()
CLASSES = [node for node in ast.parse(SOURCE).body if isinstance(node, ast.ClassDef)]


@pytest.mark.parametrize("node", CLASSES, ids=lambda node: node.name)
def test_backward_raises_where_a_line_is_flagged(node: ast.ClassDef, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(FIXTURE)
    model = getattr(importlib.import_module("model"), node.name)()
    raised = ""
    try:
        model(torch.rand(3, 2, 4)).sum().backward()
    except RuntimeError as error:
        raised = str(error)
    flagged = any("# expect: DDP203" in line for line in SOURCE.splitlines()[node.lineno - 1 : node.end_lineno])
    assert flagged == ("modified by an inplace operation" in raised), raised
