"""Loops of a forward that go through their input in pieces of one size, as many as this rank's batch fills."""

from __future__ import annotations

import ast

from ddp_lint.divergence.batches import have_unlike_sizes
from ddp_lint.divergence.definitions import defaults_of
from ddp_lint.divergence.frame import Frame
from ddp_lint.divergence.lengths import assigned_once
from ddp_lint.divergence.values import Variation
from ddp_lint.findings import Confidence, Label
from ddp_lint.source.imports import dotted_ast
from ddp_lint.source.syntax import FunctionNode, positional


def own_pieces(frame: Frame, iterable: ast.expr) -> Variation | None:
    """Why ranks go round a loop unlike often: ``range(0, x.size(0), size)`` in the forward of a module, which each rank
    gives a batch of its own, where the project makes batches of unlike sizes."""
    if not isinstance(iterable, ast.Call) or dotted_ast(iterable.func) != "range" or len(iterable.args) != _STEPPED:
        return None
    function, owner = frame.function, frame.owner
    if not isinstance(function, FunctionNode) or function.name != "forward" or owner is None:
        return None
    of = _counted(assigned_once(frame, iterable.args[1]))
    whole = isinstance(step := iterable.args[2], ast.Constant) and step.value == 1
    if whole or of not in _inputs(function) or not frame.linker.is_module(owner):
        return None
    if not have_unlike_sizes(frame.linker.project):
        return None
    origin = Label(frame.span(iterable), f"as many rounds as this rank's own `{of}` fills")
    return Variation.of_data("count", origin, Confidence.MEDIUM)


#: Arguments of `range` that goes in steps.
_STEPPED = 3


def _inputs(function: FunctionNode) -> set[str]:
    """What a method has to be given."""
    return {parameter.arg for parameter in positional(function)[1:]} - defaults_of(function).keys()


def _counted(node: ast.expr) -> str:
    """The tensor of which an expression counts the samples: ``int(x.size(0))``, ``x.shape[0]``, ``len(x)``."""
    match node:
        case ast.Call(func=ast.Name(id="int"), args=[inner]):
            return _counted(inner)
        case (
            ast.Call(func=ast.Name(id="len"), args=[ast.Name(id=name)])
            | ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="size"), args=[ast.Constant(value=0)])
            | ast.Subscript(value=ast.Attribute(value=ast.Name(id=name), attr="shape"), slice=ast.Constant(value=0))
        ):
            return name
    return ""
