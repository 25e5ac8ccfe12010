"""Attributes in which a module gathers statistics by assignment: `self.mean = 0.9 * self.mean + 0.1 * x.mean(0)`.

No operator writes to them: each time a new tensor takes the place of the old one. The class's source shows
which they are.
"""

from __future__ import annotations

import ast
import functools
import inspect
import textwrap
from collections.abc import Iterator, Mapping

from ddp_lint.source.imports import last_part
from ddp_lint.source.syntax import calls_below
from ddp_lint.verify.frames import is_user
from ddp_lint.verify.trace import Frame

#: What makes one value of many samples.
_REDUCES = frozenset({
    "mean", "var", "std", "var_mean", "std_mean", "sum", "max", "min", "amax", "amin", "norm", "median", "quantile",
    "bincount", "histc",
})  # fmt: skip
#: What computes with its arguments, besides operators.
_COMPUTES = frozenset({
    "add", "addmm", "batch_norm", "cdist", "div", "einsum", "matmul", "mm", "mse_loss", "mul", "pow", "sub", "where",
})  # fmt: skip
#: Methods that keep what they are called on as a part of their result.
_BLENDS = frozenset({"add", "sub", "mul", "div", "lerp", "addcmul", "addcdiv", "detach", "clone"})


@functools.cache
def gathered(cls: type) -> Mapping[str, Frame]:
    """By attribute the line that blends what it held with what was made from samples, where the class computes with it
    elsewhere; of user classes only."""
    found: dict[str, Frame] = {}
    for base in cls.__mro__:
        try:
            path = inspect.getsourcefile(base)
            if path is None or not is_user(path):
                continue
            lines, first = inspect.getsourcelines(base)
            tree = ast.parse(textwrap.dedent("".join(lines)))
        except (OSError, TypeError, SyntaxError):
            continue
        used = {name for node in ast.walk(tree) for name in _computed_with(node)}
        for function in (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)):
            for target, line in _blended(function):
                if target in used:
                    name = target.rpartition(".")[2]
                    found.setdefault(name, Frame(path, first + line - 1, function.name))
    return found


def _computed_with(statement: ast.AST) -> Iterator[str]:
    """The attributes that the expressions of a statement compute with, but for one that is assigned there."""
    if not isinstance(statement, ast.stmt):
        return
    targets = {ast.unparse(target) for target in getattr(statement, "targets", ())}
    inner = (
        node for child in ast.iter_child_nodes(statement) if isinstance(child, ast.expr) for node in ast.walk(child)
    )
    for node in inner:
        if isinstance(node, ast.BinOp) or (isinstance(node, ast.Call) and last_part(node.func) in _COMPUTES):
            for part in ast.walk(node):
                if isinstance(part, ast.Attribute) and (text := ast.unparse(part)) not in targets:
                    yield text


def _blended(function: ast.FunctionDef) -> Iterator[tuple[str, int]]:
    """(target, line) of the assignments of a method that blend an attribute with a reduced value."""
    reduces = {last_part(node.func) for node in calls_below(function)}
    if reduces.isdisjoint(_REDUCES):
        return
    for node in ast.walk(function):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Attribute) and _keeps(node.value, ast.unparse(target)):
                    yield ast.unparse(target), node.lineno


def _keeps(value: ast.expr, target: str) -> bool:
    """What is assigned holds a share of what the target held."""
    if isinstance(value, ast.IfExp):
        return _keeps(value.body, target) or _keeps(value.orelse, target)
    parts: list[ast.expr] = []
    if isinstance(value, ast.BinOp):
        parts = [value.left, value.right]
    elif isinstance(value, ast.Call) and last_part(value.func) in _BLENDS:
        parts = [value.func.value, *value.args] if isinstance(value.func, ast.Attribute) else value.args
    return any(ast.unparse(part) == target or _keeps(part, target) for part in parts)
