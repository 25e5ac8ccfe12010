"""The variables of the loops around a line of the user's source."""

from __future__ import annotations

import ast
import functools
import pathlib
from collections.abc import Iterator


@functools.lru_cache(maxsize=4096)
def loop_variables(path: str, line: int) -> tuple[str, ...]:
    """The names that the loops around a line bind, the outermost first; none where the source cannot be read."""
    return tuple(dict.fromkeys(name for first, last, name in _loops(path) if first <= line <= last))


@functools.cache
def _loops(path: str) -> tuple[tuple[int, int, str], ...]:
    """(first line, last line, name) of each variable of each loop of a file."""
    try:
        tree = ast.parse(pathlib.Path(path).read_bytes())
    except (OSError, SyntaxError, ValueError):
        return ()
    return tuple(sorted(found for node in ast.walk(tree) for found in _bound(node)))


def _bound(node: ast.AST) -> Iterator[tuple[int, int, str]]:
    if isinstance(node, ast.For | ast.AsyncFor):
        targets, at = [node.target], node.lineno
    elif isinstance(node, ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp):
        targets, at = [loop.target for loop in node.generators], node.lineno
    else:
        return
    for target in targets:
        for inner in ast.walk(target):
            if isinstance(inner, ast.Name):
                yield at, node.end_lineno or at, inner.id
