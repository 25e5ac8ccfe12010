"""Losses from which backward reaches no parameter, as far as arms set them: ``loss = torch.tensor(0.0)``.

A wrapped model averages gradients as backward comes to its parameters. From a tensor that was made on the spot it
comes to none: a rank that has such a loss misses the ``all_reduce`` that the others wait in.
"""

from __future__ import annotations

import ast
import dataclasses
from typing import Final

from ddp_lint.divergence import references as ref
from ddp_lint.divergence.arguments import Arguments
from ddp_lint.divergence.frame import Frame
from ddp_lint.divergence.values import ALWAYS, NEVER, Test, Value
from ddp_lint.source.imports import dotted_ast

#: What makes a tensor on the spot.
_MAKERS: Final = frozenset(
    f"torch.{name}"
    for name in ("tensor", "zeros", "ones", "full", "zeros_like", "ones_like", "full_like", "FloatTensor")
)
_NEW: Final = frozenset({"new_tensor", "new_zeros", "new_ones", "new_full"})
#: Methods whose result is as far from the parameters as what they are called on.
_KEEPING: Final = frozenset(
    {"to", "cuda", "cpu", "float", "double", "half", "bfloat16", "type_as", "requires_grad_", "detach", "clone"}
    | {"sum", "mean", "squeeze", "unsqueeze", "view", "reshape", "contiguous", "nan_to_num", "clamp", "clip"}
)
#: The same as functions: their first argument is the tensor. A gradient of zeros is one that the others wait for.
_OF_FIRST: Final = frozenset(f"torch.{name}" for name in ("nan_to_num", "clamp", "clip", "sum", "mean", "squeeze"))


def as_far(base: Value, name: str, value: Value) -> Value:
    """A method of a tensor that leaves its result as far from the parameters as the tensor is."""
    loose = base.loose if name in _KEEPING else None
    return value if loose is None else dataclasses.replace(value, loose=loose)


def made_on_the_spot(node: ast.Call, function: Value, arguments: Arguments, result: Value) -> Value:
    """The result of a call, with when backward from it reaches no parameter."""
    name = getattr(node.func, "attr", "")
    outside = function.reference.name if isinstance(function.reference, ref.External) else ""
    made = outside in _MAKERS if outside else name in _NEW
    of_first = arguments.positional[0].loose if outside in _OF_FIRST and arguments.positional else None
    loose = ALWAYS if made else function.loose if name in _KEEPING and not outside else of_first
    if loose is None or result.constant is not None or result.loose == loose:
        return result
    return dataclasses.replace(result, loose=loose)


def written(frame: Frame, tensor: ast.expr) -> None:
    """``losses[i] = loss``, ``losses.add_(loss)``: what is written to it may have gradients."""
    path = dotted_ast(tensor)
    held = frame.env.get(path) if path else None
    if held is not None and held.loose is not None:
        frame.env[path] = dataclasses.replace(held, loose=None)


def of_operation(node: ast.BinOp | ast.AugAssign, left: Value, right: Value, result: Value) -> Value:
    """``loss / steps``: as far from the parameters as the loss, where the other side is a number."""
    if left.loose is None and right.loose is None:
        return result
    first, second = _loose(left), _loose(right)
    scaled = isinstance(node.op, (ast.Mult, ast.Div)) and left.loose is not None and right.same
    loose = left.loose if scaled else first if second is ALWAYS else second if first is ALWAYS else None
    return dataclasses.replace(result, loose=loose) if result.constant is None else result


def _loose(value: Value) -> Test:
    return ALWAYS if value.constant is not None else value.loose or NEVER


def without_gradients(frame: Frame, arguments: Arguments, node: ast.Call) -> Test | None:
    """When a backward reaches no parameter: of ``loss.backward()``, ``scaler.scale(loss).backward()`` or
    ``engine.backward(loss)``. None where nothing shows that it may be so, or where it always is."""
    of = node.func.value if isinstance(node.func, ast.Attribute) else None
    named = [of, *(of.args if isinstance(of, ast.Call) else ())]
    held = (frame.env.get(dotted_ast(part)) for part in named if isinstance(part, (ast.Name, ast.Attribute)))
    found = next((v for v in (*arguments.positional[:1], *held) if v is not None and v.loose is not None), None)
    loose = found.loose if found is not None else None
    return None if loose in (ALWAYS, NEVER) else loose
