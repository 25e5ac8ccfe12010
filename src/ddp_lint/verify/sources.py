"""The syntax of the target's files, for what a run shows."""

from __future__ import annotations

import ast
import functools
import pathlib
from collections.abc import Sequence

from ddp_lint.source.syntax import last_line


def tree_of(path: str) -> ast.Module:
    """A file; an empty one where it cannot be read or parsed."""
    file = pathlib.Path(path)
    try:
        return _parsed(file, file.stat().st_mtime_ns)
    except (OSError, SyntaxError, ValueError):
        return ast.Module([], [])


@functools.lru_cache(maxsize=64)
def _parsed(path: pathlib.Path, _changed: int) -> ast.Module:
    """Many frames of many calls are of one file. Raises OSError, SyntaxError, ValueError."""
    return ast.parse(path.read_bytes())


def lines_of(body: Sequence[ast.stmt]) -> range:
    return range(body[0].lineno, last_line(body[-1]) + 1)
