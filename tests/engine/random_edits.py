"""Random edits of Python files, for comparisons of what an earlier run has kept with a run that knows nothing."""

from __future__ import annotations

import ast
import random


def edited(text: str, chance: random.Random) -> str:
    """The text with one change: of comments alone, of a statement, of a name, of what a function does. It is Python."""
    for _ in range(20):
        new = chance.choice(_KINDS)(text, chance)
        try:
            ast.parse(new)
        except (SyntaxError, ValueError):
            continue
        if new != text:
            return new
    return text + "\n# the end\n"


def _nodes(text: str, *kinds: type[ast.AST]) -> list[ast.AST]:
    return [node for node in ast.walk(ast.parse(text)) if isinstance(node, kinds)]


def _replaced(text: str, node: ast.AST, by: str) -> str:
    lines = text.split("\n")
    first, last = node.lineno - 1, node.end_lineno - 1  # type: ignore[attr-defined]
    head = lines[first].encode()[: node.col_offset].decode()  # type: ignore[attr-defined]
    tail = lines[last].encode()[node.end_col_offset :].decode()  # type: ignore[attr-defined]
    return "\n".join([*lines[:first], head + by + tail, *lines[last + 1 :]])


def _comment(text: str, chance: random.Random) -> str:
    lines = text.split("\n")
    place = chance.randrange(len(lines))
    lines[place : place + 1] = chance.choice(
        ([lines[place] + "  # said"], ["# said", lines[place]], ["", lines[place]])
    )
    return "\n".join(lines)


def _constant(text: str, chance: random.Random) -> str:
    node = chance.choice(_nodes(text, ast.Constant) or [None])
    new = chance.choice(("0", "1", "True", "False", "None", "'rank'"))
    return _replaced(text, node, new) if node is not None else text


def _statement(text: str, chance: random.Random) -> str:
    node = chance.choice(_nodes(text, ast.Expr, ast.Assign, ast.Return, ast.If, ast.FunctionDef) or [None])
    new = chance.choice(("pass", "dist.barrier()", "return", "self.rank = dist.get_rank()", "raise ValueError"))
    return _replaced(text, node, new) if node is not None else text


def _test(text: str, chance: random.Random) -> str:
    found = [node.test for node in _nodes(text, ast.If, ast.While)]  # type: ignore[attr-defined]
    node = chance.choice(found or [None])
    new = chance.choice(("dist.get_rank() == 0", "True", "self.flag", "FLAG"))
    return _replaced(text, node, new) if node is not None else text


def _swapped(text: str, chance: random.Random) -> str:
    nodes = _nodes(text, ast.Name, ast.Attribute, ast.Call)
    if not nodes:
        return text
    one, other = chance.choice(nodes), chance.choice(nodes)
    return _replaced(text, one, ast.get_source_segment(text, other) or "x")


_KINDS = (_comment, _constant, _statement, _test, _swapped, _swapped)
