"""Where the nodes of a LibCST tree stand."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import TypeVar

import libcst as cst
from libcst.metadata import CodeRange, MetadataWrapper, PositionProvider

T = TypeVar("T")

#: LibCST uses some ten frames for one level of nesting; what is deeper than 1,000 levels is not parsed at all.
_FRAMES = 20_000
_STACK_BYTES = 512 * 1024 * 1024


def positions_of(tree: cst.Module) -> dict[cst.CSTNode, CodeRange]:
    """The positions of all nodes of a tree, in lines and columns of its code."""
    try:
        return _positions(tree)
    except RecursionError:
        return _with_room(lambda: _positions(tree))


def _positions(tree: cst.Module) -> dict[cst.CSTNode, CodeRange]:
    return dict(MetadataWrapper(tree, unsafe_skip_copy=True).resolve(PositionProvider))


def _with_room(compute: Callable[[], T]) -> T:
    """`compute()` with a stack for deep recursion, in a thread of its own: the main thread's cannot grow."""
    results: list[T] = []
    limit, size = sys.getrecursionlimit(), threading.stack_size(_STACK_BYTES)
    sys.setrecursionlimit(_FRAMES)
    try:
        thread = threading.Thread(target=lambda: results.append(compute()))
        thread.start()
        thread.join()
    finally:
        threading.stack_size(size)
        sys.setrecursionlimit(limit)
    if not results:
        raise RecursionError("the code is nested too deeply")
    return results[0]
