"""What leads to a place, and what of it holds there."""

import ast

import libcst as cst
import pytest
from libcst import matchers

from ddp_lint.source import ImportTable, SourceFile
from ddp_lint.source.control_flow import conditions, holding, is_never_reached
from ddp_lint.view import Module

TEXT = """
def f(a, b, c, d):
    if a:
        return
    while b:
        if c:
            continue
        if not d:
            pass
        elif c and g():
            x = 1
        else:
            y = 1
"""


def _told(text: str, name: str) -> tuple[list[tuple[str, bool]], list[str]]:
    tree = cst.parse_module(text)
    module = Module(SourceFile("m.py", text), tree, ImportTable({}))
    place = matchers.findall(tree, matchers.Name(name))[0]
    return (
        [(module.code(test), taken) for test, taken in conditions(module, place)],
        list(map(module.code, holding(module, place))),
    )


def test_what_holds_are_the_conditions_that_are_taken() -> None:
    failed = [("c", False), ("b", True), ("a", False)]
    assert _told(TEXT, "x") == ([("c and g()", True), ("not d", False), *failed], ["c and g()", "b"])
    assert _told(TEXT, "y") == ([("c and g()", False), ("not d", False), *failed], ["b"])
    assert _told(TEXT, "g") == ([("c", True), ("not d", False), *failed], ["c", "b"])


def test_what_has_failed_before_is_not_gone_through_for_what_holds() -> None:
    text = (
        "def f(a):\n" + "".join(f"    if a == {n}:\n        return\n" for n in range(50)) + "    if a:\n        x = 1\n"
    )
    before, held = _told(text, "x")
    assert (len(before), held) == (51, ["a"])


def _is_reached(text: str) -> bool:
    tree = cst.parse_module(text)
    facts = ImportTable.of(ast.parse(text), "m", is_package=False)
    module = Module(SourceFile("m.py", text), tree, facts)
    return not is_never_reached(module, matchers.findall(tree, matchers.Name("here"))[0])


@pytest.mark.parametrize(
    "text",
    [
        "if 0:\n    here()\n",
        "if None:\n    pass\nelif False:\n    here()\n",
        "while 0:\n    here()\n",
        "if 1:\n    pass\nelse:\n    here()\n",
        "def f(a):\n    if a:\n        never_tested\n        if a > 1:\n            here()\n",
        "raise ValueError\nhere()\n",
        "def f(a, b):\n    if a:\n        raise ValueError\n    if b:\n        if a:\n            here()\n",
        "def f(a):\n    if not a:\n        return\n    if a:\n        pass\n    else:\n        here()\n",
    ],
)
def test_what_no_run_reaches(text: str) -> None:
    assert not _is_reached(text)


@pytest.mark.parametrize(
    "text",
    [
        "if 1:\n    here()\n",
        "if 0:\n    pass\nelse:\n    here()\n",
        "while True:\n    here()\n",
        "if a:\n    here()\n",
        "def f(a):\n    a\n    here()\n",
        "import a\na\nhere()\n",
        "from m import *\na\nhere()\n",
        "globals()['a'] = 1\na\nhere()\n",
        "print\nhere()\n",
        "try:\n    unicode\nexcept NameError:\n    here()\n",
        "def f():\n    here()\n    never_tested\n",
        "def f(a):\n    if a:\n        raise ValueError\n    a = g()\n    if a:\n        here()\n",
        "def f():\n    if a:\n        raise ValueError\n    if a:\n        here()\n",
        "def f(a, b):\n    if a:\n        raise ValueError\n    if b:\n        here()\n",
    ],
)
def test_what_a_run_may_reach(text: str) -> None:
    assert _is_reached(text)
