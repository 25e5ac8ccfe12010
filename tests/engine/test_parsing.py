"""LibCST trees of texts."""

from __future__ import annotations

import contextlib
import pathlib

import libcst as cst
import pytest

from ddp_lint.engine.parsing import tree_of
from ddp_lint.source.parsing import CannotParse


def test_a_tree_is_the_one_that_libcst_makes() -> None:
    text = pathlib.Path(__file__).read_text()
    assert tree_of(text).deep_equals(cst.parse_module(text))
    assert tree_of(text).code == text


@pytest.mark.parametrize("text", ["x = 1\n", "x = (\n"])
def test_whitespace_that_reads_the_same_is_one_object(text: str) -> None:
    first, second = tree_of("f(a, b)\n").body[0], tree_of("g(c, d)\n").body[0]
    assert isinstance(first, cst.SimpleStatementLine)
    assert isinstance(second, cst.SimpleStatementLine)
    assert first.trailing_whitespace is second.trailing_whitespace
    assert first.body[0] is not second.body[0]
    with contextlib.suppress(CannotParse):
        tree_of(text)
    assert cst.SimpleWhitespace("") is not cst.SimpleWhitespace("")


@pytest.mark.parametrize("text", ["x = 1\n", "x = (\n"])
def test_nodes_that_are_made_by_hand_are_still_validated(text: str) -> None:
    with contextlib.suppress(CannotParse):
        tree_of(text)
    with pytest.raises(cst.CSTValidationError):
        cst.Name("")


def test_a_parse_asks_no_node_whether_it_is_valid(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(cst.Name, "_validate", lambda self: asked.append(self.value))
    cst.parse_module("name\n")
    assert asked == ["name"]
    tree_of("name\n")
    assert asked == ["name"]
