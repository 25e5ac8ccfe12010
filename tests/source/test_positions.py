"""A statement that is written without the ones around it stands where the whole file has it."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import libcst as cst
import pytest
from libcst.metadata import MetadataWrapper, PositionProvider

from ddp_lint.source.file import SourceFile
from ddp_lint.source.positions import Positions
from ddp_lint.source.tree import children

TEXT = '''\
# A header.

"""Docstring."""
import os; import sys
@first
@second(
    1,
)
class A(B):
  """Two spaces."""
  x = 1; y = """a
b"""
  async def f(self, a=lambda: 1):
        # eight
        with open("é") as f, g(
    2
        ): pass
        for x in y:
            if x: a; b
            elif z:
                return (1,
2)
            else:
                while 1:
                    break
                else: continue
            # a footer
        else:
            pass
        try:
            pass
        except A: b
        except (B, C) as e:
            raise
        else:
            c
        finally:
            d = \\
                1

def g(): return 1
match x:
    case [1, 2] if y:
        print(x)
    case _: pass
if __name__ == "__main__":
\tg()
# The end.
'''


EXPRESSIONS = """\
x = (f(a) if g(b) else h(c))(d)[1:2].e
y = not -a < (b + c) * d <= a.b.c(x, *y, key=(z), **w) and [f(v) for v in g(u) if h(v)]
print(f"{f(x)!r} {a.b}", f(x)); (f(x)); a.b = c[0], d.e = (
    f)(x)
w = "a" 'b', b"c"["d"], ("e" + f("g"))
é = f("é"); z = f(é).g
v = lambda a=-b[0], /, c=-d[1], *, e=(f < g): h
run(lambda q, k=f(1), *a, m=g(2), **w: h(q, k)); del a.b, c
async def go(a: B.C = f(1), *, d=g(2)) -> E:
    await f(a).b
    if f(a) == b.c: g(a); h(b)
    while not f(): x += g(1).y
    for (a, b.c) in f(
        g()
    ): pass
    with f(a) as b, g(b).c as (d, e.f): pass
    global q
    from a.b import c
    assert (y := f(x)), g(y)
    return (yield f(a))
"""


def _with_all_around(node: cst.CSTNode, around: tuple[cst.CSTNode, ...] = ()) -> Iterator[tuple[cst.CSTNode, ...]]:
    yield (node, *around)
    for child in children(node):
        yield from _with_all_around(child, (node, *around))


@pytest.mark.parametrize("text", [TEXT, EXPRESSIONS])
def test_a_statement_stands_where_the_whole_file_has_it(text: str) -> None:
    tree = cst.parse_module(text)
    whole = MetadataWrapper(tree, unsafe_skip_copy=True).resolve(PositionProvider)
    for node, *around in _with_all_around(tree):
        found = Positions(tree, text).place(node, around)  # anew: nothing is known from another node
        wanted = whole[node]
        assert found == (wanted.start.line, wanted.start.column, wanted.end.line, wanted.end.column), node


def test_most_places_are_read_and_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "def f(x):\n    y = g(x.a)[0] + 1\n    if h(y) > 0:\n        k(y)\n"
    tree = cst.parse_module(text)
    monkeypatch.setattr("ddp_lint.source.positions.places_in", lambda *_: pytest.fail("written"))
    kinds = (cst.Call, cst.Subscript, cst.BinaryOperation, cst.Comparison, cst.Assign)
    for node, *around in _with_all_around(tree):
        if isinstance(node, kinds):
            assert Positions(tree, text).place(node, around)


def test_columns_of_ast_count_characters():
    file = SourceFile.of_text("a.py", 'x = "ä", load(y)\n')
    call = next(node for node in ast.walk(ast.parse(file.text)) if isinstance(node, ast.Call))
    assert (file.span_of(call).column, file.span_of(call).end_column) == (10, 17)
