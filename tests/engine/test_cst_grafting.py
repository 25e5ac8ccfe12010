"""Trees of edited files are those that LibCST makes of the whole text."""

from __future__ import annotations

import ast
import random

import libcst as cst

from ddp_lint.engine.cst_grafting import Trees

from .random_edits import edited

#: Functions at the top level, in a class and in a class within it, with comments where LibCST has to place them.
TEXT = '''import torch

# before
@torch.no_grad()
def f(x):
    """Text."""
    if x > 0:
        return x
    # at the end of f
  # between


class A:
    def g(self, x):
        y = x + 1

        return y
        # at the end of g

    # before B
    class B:
        def h(self): return 1
        async def i(self, x):
            for y in x:
                print(y)
            # at the end of i
    value = 1

    def j(self):
        pass


def k(x):
    return x
'''


def test_edits_within_functions_leave_the_other_nodes_as_they_are() -> None:
    trees = Trees()
    before = trees.parsed("a.py", TEXT, None, ast.parse(TEXT).body).tree
    text = TEXT.replace("x + 1", "x + 2").replace("print(y)", "print(x)")
    after = trees.parsed("a.py", text, None, ast.parse(text).body).tree
    assert after.code == text
    assert [new is old for new, old in zip(after.body, before.body, strict=True)] == [True, True, False, True]


def test_after_any_edits_the_tree_is_that_of_the_whole_text() -> None:
    chance = random.Random(1)
    trees, text = Trees(), TEXT
    for number in range(300):
        text = edited(text, chance) if number % 30 else TEXT
        found = trees.parsed("a.py", text, None, ast.parse(text).body).tree
        assert found.deep_equals(cst.parse_module(text)), text


def test_of_a_text_with_parts_left_out_too() -> None:
    """Line 3 of the text is line 5 of the file."""
    file = "import torch\ndef f():\n    pass\n    return 1\ndef g(x):\n    y = 1\n    return x\n"
    short, lines = "def f():\n    ...\ndef g(x):\n    y = 1\n    return x\n", [2, 3, 5, 6, 7]
    trees = Trees()
    before = trees.parsed("a.py", short, lines, ast.parse(file).body).tree
    new = short.replace("y = 1", "y = 2")
    after = trees.parsed("a.py", new, lines, ast.parse(file.replace("y = 1", "y = 2")).body).tree
    assert after.code == new
    assert after.body[0] is before.body[0]
