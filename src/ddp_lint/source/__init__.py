"""The text of one file: its syntax trees, import table, names and positions. Nothing here knows of other files."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from ddp_lint.source.file import SourceFile, Unreadable
from ddp_lint.source.imports import ImportTable

if TYPE_CHECKING:
    from ddp_lint.source.tree import dotted

__all__ = ["ImportTable", "SourceFile", "Unreadable", "dotted"]


def __getattr__(name: str) -> object:
    if name != "dotted":  # it comes with LibCST, a fifth of a second: imported at its first use
        raise AttributeError(name)
    return importlib.import_module(f"{__name__}.tree").dotted
