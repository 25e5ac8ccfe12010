"""One file of a project as rules see it: its LibCST tree, what its names mean, bindings, and where it wraps models."""

from ddp_lint.view.module import Module
from ddp_lint.view.scopes import Binding

__all__ = ["Binding", "Module"]
