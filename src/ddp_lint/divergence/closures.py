"""What a nested function sees of the functions around it, and that as a part of its summary's key."""

from __future__ import annotations

import ast
from collections.abc import Hashable

from ddp_lint.divergence import references as ref
from ddp_lint.divergence.frame import Frame
from ddp_lint.divergence.references import FunctionRef
from ddp_lint.divergence.values import Value
from ddp_lint.project.parts import kept_by_node
from ddp_lint.source.syntax import names_in

#: References that are equal only where all of them is.
_PLAIN = (type(None), ref.External, ref.ModuleRef, ref.ClassRef, ref.Method, ref.GroupRef)
#: Functions that see functions that see functions.
_DEPTH = 3


def visible(frame: Frame, node: ast.AST) -> dict[str, Value]:
    """Names that a function in the running one sees, of those that it mentions. All of them would take the square of
    the functions of a module in memory."""
    found = {}
    for name in _names(node):
        value = frame.env.get(name)
        if value is None and frame.closure is not None:
            value = frame.closure.get(name)
        if value is not None:
            found[name] = value
    return found


def seen(function: FunctionRef, depth: int = 0) -> Hashable:
    """Equal where the function sees the same, each time that the one around it is evaluated again; 0 for a function
    that is not nested. Where a value may hold what equality does not show, only the very same names are equal."""
    closure = function.closure
    if closure is None:
        return 0
    parts = []
    for name in _names(function.node):
        value = closure.get(name)
        if value is not None:
            part = _whole(value, function, depth)
            if part is None:
                return id(closure)
            parts.append((name, part))
    return tuple(parts)


@kept_by_node(4096)
def _names(node: ast.AST) -> tuple[str, ...]:
    return tuple(sorted(names_in(node)))


def _whole(value: Value, function: FunctionRef, depth: int) -> Hashable:
    """All that is known of a value; None where equality of its parts would not show a difference."""
    reference = _reference(value.reference, function, depth)
    items = tuple(_whole(item, function, depth) for item in value.items or ())
    entries = tuple((key, _whole(entry, function, depth)) for key, entry in (value.entries or {}).items())
    if reference is None or None in items or any(entry is None for _, entry in entries):
        return None
    held = (None if value.items is None else items, None if value.entries is None else entries)
    known = (value.components, value.varies, value.open, value.test, value.agreed, value.even)
    return (*known, value.missing, value.loose, reference, held)


def _reference(reference: object, function: FunctionRef, depth: int) -> Hashable:
    if isinstance(reference, _PLAIN) or (isinstance(reference, ref.Instance) and reference.filled is None):
        return (reference,)
    if not isinstance(reference, FunctionRef) or depth >= _DEPTH:
        return None
    receiver: Value | None = reference.receiver
    held = _whole(receiver, function, depth + 1) if receiver is not None else ()
    if held is None:
        return None
    return (reference, held, () if reference.closure is function.closure else seen(reference, depth + 1))


__all__ = ["seen", "visible"]
