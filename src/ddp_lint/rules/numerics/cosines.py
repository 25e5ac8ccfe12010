"""Functions of the project that return cosines, over a temperature or not: the products of normalised vectors."""

from __future__ import annotations

import ast

from ddp_lint.launch.helpers import Helper
from ddp_lint.project.facts import assigned_in
from ddp_lint.source.imports import last_part
from ddp_lint.source.syntax import walk

_PRODUCTS = ("matmul", "mm", "bmm", "einsum")
_NORMS = ("norm", "vector_norm")
#: Methods and attributes that give the same vectors in another order.
_ORDERS = ("transpose", "permute", "t", "view", "reshape", "unsqueeze", "squeeze", "contiguous", "T", "mT", "float")
_STEPS = 6  # names and parts that are followed


def returns_cosine(helper: Helper) -> bool:
    """Whether all that a function returns are cosines: ``a / a.norm() @ ..``, ``torch.mm(F.normalize(a), ..)``."""
    return bool(helper.returned) and all(_is_cosine(helper, value, _STEPS) for value in helper.returned)


def _is_cosine(helper: Helper, value: ast.expr, depth: int) -> bool:
    if depth == 0:
        return False
    if isinstance(value, ast.Name):
        made = _last_assigned(helper, value)
        return made is not None and _is_cosine(helper, made, depth - 1)
    if isinstance(value, ast.BinOp) and isinstance(value.op, (ast.Div, ast.Mult)):
        sides = [value.left, *([value.right] if isinstance(value.op, ast.Mult) else [])]
        return any(_is_cosine(helper, side, depth - 1) for side in sides)
    factors: list[ast.expr] = []
    if isinstance(value, ast.BinOp) and isinstance(value.op, ast.MatMult):
        factors = [value.left, value.right]
    elif isinstance(value, ast.Call) and last_part(value.func) in _PRODUCTS:
        of_method = isinstance(value.func, ast.Attribute) and not helper.facts.qualified(value.func)
        on = [value.func.value] if of_method and isinstance(value.func, ast.Attribute) else []
        factors = [*on, *(each for each in value.args if not isinstance(each, ast.Constant))]
    elif isinstance(value, ast.Call):
        return last_part(value.func) == "cosine_similarity"
    return len(factors) > 1 and all(_is_normalised(helper, each, depth - 1) for each in factors)


def _is_normalised(helper: Helper, value: ast.expr, depth: int) -> bool:
    """Whether vectors have the length 1: ``F.normalize(a)``, ``a / torch.max(a.norm(dim=1), eps)``."""
    if depth == 0:
        return False
    if isinstance(value, ast.Name):
        made = _last_assigned(helper, value)
        return made is not None and _is_normalised(helper, made, depth - 1)
    inner = value.func if isinstance(value, ast.Call) else value
    if isinstance(inner, ast.Attribute) and inner.attr in _ORDERS:
        return _is_normalised(helper, inner.value, depth - 1)
    if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Div):
        return _is_length(helper, value.right, depth - 1)
    return isinstance(value, ast.Call) and helper.facts.qualified(value.func) == "torch.nn.functional.normalize"


def _is_length(helper: Helper, value: ast.expr, depth: int) -> bool:
    """Whether a value has the length of vectors in it, by itself or through its names."""
    parts = list(walk(value))
    if any(isinstance(n, ast.Call) and last_part(n.func) in _NORMS for n in parts):
        return True
    names = (made for n in parts if isinstance(n, ast.Name) and (made := _last_assigned(helper, n)) is not None)
    return depth > 0 and any(_is_length(helper, made, depth - 1) for made in names)


def _last_assigned(helper: Helper, name: ast.Name) -> ast.expr | None:
    """What a name of the function was assigned last above a place."""
    made = (m for m in assigned_in(helper.function, name.id) if m.lineno <= name.lineno)
    above = [m for m in made if all(n is not name for n in walk(m))]
    return above[-1] if above else None
