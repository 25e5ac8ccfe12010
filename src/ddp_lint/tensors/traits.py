"""What a function does that a rule on tensors may care for, told by one quick pass over its `ast`: `Rule.wants`."""

from __future__ import annotations

import ast
import enum
import functools

from ddp_lint.source.imports import dotted_ast
from ddp_lint.tensors.operations import names, writes

_READS = {"item", "tolist", "allclose", "is_nonzero"}
_CONVERSIONS = {"float", "int", "bool"}
_LEVELS = {"debug", "info", "warning", "warn", "error", "critical", "exception", "log"}
_LOGGERS = {"logging", "logger", "log", "LOGGER", "LOG", "_logger"}


class Trait(enum.Enum):
    WRITES = "x += y, x[i] = y, x.add_(y)"
    READS = "x.item(), float(x)"
    BRANCHES = "if x.any():"
    PRINTS = "print(x), logger.info(x)"


def is_log(name: str) -> bool:
    """Whether a dotted name is a logging call: ``logger.info``, ``self.log.warning``."""
    owner, _, method = name.rpartition(".")
    return method in _LEVELS and owner.rpartition(".")[2] in _LOGGERS


@functools.lru_cache(maxsize=16)  # several rules ask about one function after another
def traits(function: ast.FunctionDef | ast.AsyncFunctionDef) -> frozenset[Trait]:
    """The traits of a function, nested definitions included."""
    found: set[Trait] = set()
    # `self.relu(x)` may be made with `inplace=True`: a forward is always worth a look.
    if "forward" in function.name:
        found.add(Trait.WRITES)
    stack: list[ast.AST] = [function]
    while stack:
        node = stack.pop()
        trait = _trait_of(node, function.name == "forward")
        if trait is not None:
            found.add(trait)
        for field in node._fields:
            value = getattr(node, field, None)
            if isinstance(value, ast.AST):
                stack.append(value)
            elif isinstance(value, list):
                stack.extend(part for part in value if isinstance(part, ast.AST))
    return frozenset(found)


def _trait_of(node: ast.AST, in_forward: bool) -> Trait | None:
    if isinstance(node, ast.Attribute):
        if node.attr in _READS:
            return Trait.READS
        return Trait.WRITES if writes(node.attr) else None
    if isinstance(node, ast.Call):
        name = dotted_ast(node.func)
        if name in _CONVERSIONS:
            return Trait.READS
        return Trait.PRINTS if name == "print" or is_log(name) else None
    if isinstance(node, (ast.If, ast.While, ast.IfExp)):
        return Trait.BRANCHES if _asks_for_value(node.test, in_forward) else None
    if isinstance(node, ast.AugAssign):
        return Trait.WRITES
    if isinstance(node, ast.Assign) and any(isinstance(t, (ast.Subscript, ast.Attribute)) for t in node.targets):
        parts = [t for t in node.targets if isinstance(t, ast.Subscript) or getattr(t, "attr", "") == "data"]
        return Trait.WRITES if parts else None
    return None


def _asks_for_value(test: ast.expr, in_forward: bool) -> bool:
    """Whether a condition reduces something, as ``x.isnan().any()`` does; in `forward` also ``error > limit``."""
    for part in ast.walk(test):
        if in_forward and isinstance(part, ast.Compare):
            return True
        called = part.func if isinstance(part, ast.Call) else None
        if isinstance(called, ast.Attribute) and called.attr in names("evidence", "reductions"):
            return True
    return False
