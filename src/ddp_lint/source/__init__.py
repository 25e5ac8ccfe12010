"""A module as rules see it: its LibCST tree, import table, dotted names, bindings and positions."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from ddp_lint.source.file import SourceFile, Unreadable
from ddp_lint.source.imports import ImportTable

if TYPE_CHECKING:
    from ddp_lint.source.module import Module
    from ddp_lint.source.scopes import Binding
    from ddp_lint.source.tree import dotted

__all__ = ["Binding", "ImportTable", "Module", "SourceFile", "Unreadable", "dotted"]

#: What comes with LibCST, a fifth of a second: imported at its first use.
_WITH_LIBCST = {"Binding": "scopes", "Module": "module", "dotted": "tree"}


def __getattr__(name: str) -> object:
    if name not in _WITH_LIBCST:
        raise AttributeError(name)
    return getattr(importlib.import_module(f"{__name__}.{_WITH_LIBCST[name]}"), name)
