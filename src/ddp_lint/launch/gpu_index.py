"""Where a call takes the index of a GPU."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from typing import Any

import libcst as cst

from ddp_lint.knowledge import table
from ddp_lint.source.queries import literal_text
from ddp_lint.view import Module
from ddp_lint.view.wraps import argument

#: How the name of a device begins, to which its index is appended.
DEVICE = re.compile(r"^(cuda|xpu|npu|hpu|mlu|musa):$")


def indices_of(module: Module, call: cst.Call) -> Iterator[cst.BaseExpression]:
    """The arguments of a call that are the index of a GPU: ``set_device(local_rank)``, ``device_ids=[local_rank]``."""
    for sink in _sinks().get(module.qualified(call.func), ()):
        value = argument(call, sink.get("position"), sink["keyword"])
        if sink.get("list") and isinstance(value, (cst.List, cst.Tuple)) and len(value.elements) == 1:
            value = value.elements[0].value
        if value is not None:
            yield value


def index_in_name(node: cst.FormattedString) -> cst.BaseExpression | None:
    """The index in the name of a device: ``f"cuda:{local_rank}"``."""
    parts = node.parts
    if len(parts) != 2 or not isinstance(parts[1], cst.FormattedStringExpression):
        return None
    return parts[1].expression if DEVICE.match(literal_text(parts[0])) else None


@functools.cache
def _sinks() -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    for sink in table("devices")["sink"]:
        found.setdefault(sink["name"], []).append(sink)
    return found
