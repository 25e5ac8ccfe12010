"""Which wrapped model a dotted name leads into."""

from __future__ import annotations

import libcst as cst

from ddp_lint.source import Module, dotted
from ddp_lint.source.wraps import Wrap


def wrap_of(module: Module, name: str, at: cst.CSTNode) -> Wrap | None:
    """The wrap before `at` of the model that a dotted name leads into: of `model` for `model.module.fc.weight`."""
    parts = name.split(".")
    for end in range(len(parts) - 1, 0, -1):
        head = ".".join(parts[:end])
        wrap = module.wraps.of(head, at) or module.wraps.twin(head, at)
        if wrap is not None:
            return wrap
    return None


def path_of(node: cst.CSTNode) -> str:
    """The dotted name of `model.module[2].weight`, subscripts left out."""
    parts: list[str] = []
    while isinstance(node, (cst.Attribute, cst.Subscript)):
        if isinstance(node, cst.Attribute):
            parts.append(node.attr.value)
        node = node.value
    return ".".join([dotted(node), *reversed(parts)])
