"""A module as rules see it: its LibCST tree, import table, dotted names, bindings and positions."""

from ddp_lint.source.file import SourceFile, Unreadable
from ddp_lint.source.imports import ImportTable
from ddp_lint.source.module import Module
from ddp_lint.source.scopes import Binding
from ddp_lint.source.tree import dotted

__all__ = ["Binding", "ImportTable", "Module", "SourceFile", "Unreadable", "dotted"]
