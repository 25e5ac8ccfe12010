"""What a text imports, found without a parser."""

from __future__ import annotations

import ast

import pytest

from ddp_lint.source.imports import ImportTable, imports_in, of_self


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("import a.b, c as d  # import e\n", [("a.b", ""), ("c", "d")]),
        ("    from ..a import b as c, d\n", [("..a.b", "c"), ("..a.d", "d")]),
        ("from a import (\n    b,  # of (some) use\n    c,\n)\nimport d\n", [("a.b", "b"), ("a.c", "c"), ("d", "")]),
        ("from a import b, \\\n    c\n", [("a.b", "b"), ("a.c", "c")]),
        ("x = 1; import a\nimportant = 'import b'\n", []),
        ("from importlib import import_module\n", [("importlib.import_module", "import_module")]),
    ],
)
def test_imports_at_starts_of_lines(text: str, found: list[tuple[str, str]]) -> None:
    assert list(imports_in(text)) == found


@pytest.mark.parametrize(("name", "attribute"), [("self.x", "x"), ("self.x.y", ""), ("self", ""), ("other.x", "")])
def test_attributes_of_the_own_object(name: str, attribute: str) -> None:
    assert of_self(name) == attribute


@pytest.mark.parametrize(
    ("text", "hidden"),
    [
        ("from a import B\nclass B: ...\n", True),
        ("from a import B, C\nclass B(C): ...\n", True),
        ("from a import B\ndef B(): ...\n", True),
        ("from a import B\nclass B(B): ...\n", False),
        ("from a import B\n@B\ndef B(): ...\n", False),
        ("class B: ...\nfrom a import B\n", False),
        ("try:\n    from a import B\nexcept ImportError:\n    class B: ...\n", False),
        ("try:\n    from a import B\nexcept ImportError:\n    B = None\nclass B: ...\n", False),
        ("from a import B\ndef f():\n    class B: ...\n", False),
        ("from a import B\nclass B: ...\ndef f():\n    from a import B\n", False),
    ],
)
def test_names_that_a_definition_hides(text: str, hidden: bool) -> None:
    table = ImportTable.of(ast.parse(text), "m", is_package=False)
    assert (table.resolve("B") is None) is hidden
