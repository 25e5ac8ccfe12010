"""What tests for the version of torch come to on each torch that is in use."""

from __future__ import annotations

import ast
import re

from ddp_lint.source.imports import dotted_ast, last_part
from ddp_lint.source.syntax import walk

#: The oldest one that is in use: no older one runs on the GPUs of today.
_OLDEST = (1, 8)
#: What files call the version of torch.
_NAMES = re.compile(r"torch\.__version__|_?(?:torch|pt|pytorch)_ver(?:sion)?", re.IGNORECASE)
#: Calls that make a version of a text which compares number by number: two texts do not, ``"1.13" < "1.6"``.
_PARSES = frozenset({"digit_version", "LooseVersion", "StrictVersion", "Version", "parse", "parse_version"})
_NUMBERS = re.compile(r"v?(\d+(?:\.\d+)*)")
_OUTCOMES: dict[type[ast.cmpop], bool] = {ast.GtE: True, ast.Gt: True, ast.Lt: False, ast.LtE: False}


def holds_today(test: ast.expr) -> bool | None:
    """What a test comes to on each torch that is in use, where it asks for one that is older:
    ``digit_version(TORCH_VERSION) >= digit_version("1.6.0")``. None for any other test."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        found = holds_today(test.operand)
        return None if found is None else not found
    if isinstance(test, ast.BoolOp):
        parts, decides = [holds_today(each) for each in test.values], isinstance(test.op, ast.Or)
        return decides if decides in parts else None if None in parts else not decides
    if not isinstance(test, ast.Compare) or len(test.ops) != 1 or not _is_of_torch(test.left):
        return None
    asks, other = type(test.ops[0]), test.comparators[0]
    if isinstance(other, ast.Constant) and isinstance(other.value, str) and not _NUMBERS.match(other.value):
        return {ast.Eq: False, ast.NotEq: True}.get(asks)  # ``TORCH_VERSION != "parrots"``: no version has that name
    limit = _numbers(test.left, other)
    return _OUTCOMES.get(asks) if limit and limit < _OLDEST else None


def arm_left(branch: ast.If) -> list[ast.stmt]:
    """The arm of a branch that no torch takes which is in use."""
    taken = holds_today(branch.test)
    return [] if taken is None else branch.orelse if taken else branch.body


def _is_of_torch(version: ast.expr) -> bool:
    """Whether an expression is the version of torch, or made of it."""
    return any(isinstance(n, (ast.Name, ast.Attribute)) and _NAMES.fullmatch(dotted_ast(n)) for n in walk(version))


def _numbers(version: ast.expr, other: ast.expr) -> tuple[int, ...]:
    """The numbers of the version that one is compared with, () where they do not compare as numbers: those of
    ``Version("1.6")``, ``LooseVersion(torch.__version__) < "1.6"``, and ``(1, 6)``."""
    if isinstance(other, (ast.Tuple, ast.List)):
        # Of the version itself, and not of one of its numbers.
        values = [each.value for each in other.elts if isinstance(each, ast.Constant)]
        numbers = [each for each in values if type(each) is int]
        whole = not isinstance(version, ast.Subscript) or isinstance(version.slice, ast.Slice)
        return tuple(numbers) if whole and len(numbers) == len(other.elts) else ()
    parsed = any(isinstance(each, ast.Call) and last_part(each.func) in _PARSES for each in (version, other))
    text = other.args[0] if isinstance(other, ast.Call) and len(other.args) == 1 else other
    found = _NUMBERS.match(text.value) if isinstance(text, ast.Constant) and isinstance(text.value, str) else None
    return tuple(map(int, found[1].split("."))) if found is not None and parsed else ()
