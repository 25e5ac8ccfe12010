"""`ast` trees are walked as `ast` itself does it, contexts left out."""

from __future__ import annotations

import ast
import pathlib

import pytest

from ddp_lint.source.syntax import below, statements, statements_in_order, walk

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
