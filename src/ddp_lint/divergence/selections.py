"""Tensors of which each rank has as many elements as its own data give: what a mask or `nonzero` selects."""

from __future__ import annotations

import ast
import re
from typing import Final

from ddp_lint.divergence import references as ref
from ddp_lint.divergence.frame import Frame
from ddp_lint.divergence.values import Value, Variation, unknown
from ddp_lint.findings import Confidence, Label
from ddp_lint.knowledge import table

SELECTION = "builtins.selection"
_KNOWN = table("tensors")["selection"]
SELECTING: Final[tuple[str, ...]] = tuple(_KNOWN["selecting"])
SIZES: Final[frozenset[str]] = frozenset(_KNOWN["sizes"])
_MASK = re.compile(r"(^|_)masks?$")


def is_mask(node: ast.expr) -> bool:
    """Is it an index that selects: ``x > 0``, ``~mask``, ``mask.bool()``, or a mask by name?"""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Invert):
        return True
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Attribute) and node.func.attr == "bool"
    if isinstance(node, ast.Compare):
        return isinstance(node.ops[0], (ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE))
    name = node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")
    return _MASK.search(name) is not None


def selection(frame: Frame, node: ast.AST, parts: list[Value]) -> Value:
    """What is selected by these; the same number on all ranks if they have agreed on any of it."""
    agreed = any(part.agreed for part in parts)
    return unknown(frame.key(node), None if agreed else ref.Instance(SELECTION), agreed=agreed)


def is_selection(value: Value) -> bool:
    return isinstance(value.reference, ref.Instance) and value.reference.of == SELECTION


def keeps(method: str) -> bool:
    """Has the result of the method as many elements as what it is called on?"""
    return method in _KNOWN["keeping"]


def own_size(frame: Frame, node: ast.AST) -> Variation:
    """Why the number of elements is a rank's own."""
    origin = Label(frame.span(node), "each rank selects as many elements as its own data give")
    says = "how many elements this rank's own data select"
    return Variation("data", says, origin=origin, confidence=Confidence.MEDIUM)
