"""Python's operators and a few of its functions on values that may be unknown."""

from __future__ import annotations

import ast
import dataclasses
import operator
from collections.abc import Callable, Hashable, Iterable
from typing import Any, Final

from ddp_lint.messages.values import External, GiveUp, Unknown

_OPERATORS: Final[dict[type[ast.AST], Callable[..., Any]]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod, ast.BitXor: operator.xor, ast.BitAnd: operator.and_, ast.BitOr: operator.or_,
    ast.LShift: operator.lshift, ast.RShift: operator.rshift, ast.Div: operator.truediv, ast.Pow: operator.pow,
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt,
    ast.GtE: operator.ge, ast.Is: operator.is_, ast.IsNot: operator.is_not,
    ast.In: lambda one, two: one in two, ast.NotIn: lambda one, two: one not in two,
    ast.USub: operator.neg, ast.UAdd: operator.pos, ast.Not: operator.not_, ast.Invert: operator.invert,
}  # fmt: skip
_FUNCTIONS: Final[dict[str, Callable[..., Any]]] = {
    "len": len, "min": min, "max": max, "abs": abs, "sum": sum, "int": int, "str": str, "bool": bool, "divmod": divmod,
    "range": range, "list": list, "tuple": tuple, "enumerate": lambda *a: list(enumerate(*a)), "sorted": sorted,
    "zip": lambda *a: list(zip(*a, strict=False)), "reversed": lambda a: list(reversed(a)), "any": any, "all": all,
    "set": lambda *a: list(dict.fromkeys(*a)), "dict": dict, "round": round,
}  # fmt: skip
#: Elements of a range or a list, and the size of a number, that are followed.
_MOST: Final = 256
_LARGEST: Final = 1 << 40
#: What an operation is not carried out on.
_PLAIN: Final = (int, str, bool, float, type(None), list, tuple, dict, range)


def key_of(value: Any) -> Hashable:
    """The same for values that are the same on two ranks, if they can be compared at all."""
    if isinstance(value, (list, tuple, range)):
        return (type(value).__name__, *map(key_of, value))
    if isinstance(value, dict):
        return ("dict", *((name, key_of(each)) for name, each in value.items()))
    if isinstance(value, Unknown):
        return value.key
    return (type(value).__name__, value) if isinstance(value, (int, str, float, External, type(None))) else "object"


def is_own(values: Iterable[Any]) -> bool:
    """Is one of these what a rank alone knows?"""
    return any(is_own(v) if isinstance(v, (list, tuple)) else isinstance(v, Unknown) and v.own for v in values)


def holds_unknown(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return any(map(holds_unknown, value))
    return isinstance(value, Unknown)


def combined(what: Hashable, *values: Any) -> Unknown:
    """What follows from these values in a way that only the run knows."""
    return Unknown((what, *map(key_of, values)), is_own(values))


def apply(kind: type[ast.AST], *values: Any) -> Any:
    """The result of an operator."""
    result = _applied(kind, *values)
    counted = any(isinstance(value, Unknown) and value.counted for value in values)
    return dataclasses.replace(result, counted=True) if counted and isinstance(result, Unknown) else result


def element(iterable: Any, number: int) -> Any:
    """What a loop of unknown length goes through in one of its first rounds."""
    kind = iterable.key[0] if isinstance(iterable, Unknown) and isinstance(iterable.key, tuple) else ""
    if kind == "range":
        return Unknown(("element", number, iterable.key), counted=True)
    if kind == "enumerate":
        return Unknown(("index", number, iterable.key), counted=True), combined(("element", number), iterable)
    return combined(("element", number), iterable)


def _applied(kind: type[ast.AST], *values: Any) -> Any:
    compares_with_none = kind in (ast.Is, ast.IsNot, ast.Eq, ast.NotEq) and None in values
    if compares_with_none and not any(isinstance(value, Unknown) for value in values):
        return kind in (ast.IsNot, ast.NotEq) if values[0] is not values[1] else kind in (ast.Is, ast.Eq)
    if kind not in _OPERATORS or not all(isinstance(value, _PLAIN) for value in values):
        return combined(kind.__name__, *values)
    if kind in (ast.Pow, ast.LShift) and not all(isinstance(v, int) and 0 <= v < 40 for v in values):
        return combined(kind.__name__, *values)
    if kind is ast.Mult and any(isinstance(v, int) and v > _MOST for v in values) and _lists(values):
        return combined(kind.__name__, *values)
    if kind in (ast.Eq, ast.NotEq, ast.In, ast.NotIn) and any(map(holds_unknown, values)):
        return combined(kind.__name__, *values)
    try:
        result = _OPERATORS[kind](*values)
    except Exception:  # what the operands raise they raise in the program, too
        return combined(kind.__name__, *values)
    return result if not isinstance(result, int) or abs(result) < _LARGEST else combined(kind.__name__, *values)


def _lists(values: Iterable[Any]) -> bool:
    return any(isinstance(value, (list, tuple, str)) for value in values)


def builtin(name: str, values: list[Any]) -> Any:
    """The result of a function of Python."""
    function = _FUNCTIONS.get(name)
    if name == "list" and len(values) == 1 and isinstance(values[0], Unknown):
        return values[0]
    needs_values = name not in ("len", "list", "tuple", "enumerate", "zip", "reversed", "dict")
    plain = all(isinstance(value, _PLAIN) for value in values)
    if function is None or not plain or (needs_values and any(map(holds_unknown, values))):
        return combined(name, *values)
    try:
        return function(*values)
    except Exception:  # what the arguments raise they raise in the program, too
        return combined(name, *values)


def elements(value: Any) -> list[Any] | None:
    """What a loop goes through; None where only the run knows. Raises GiveUp for too many."""
    if not isinstance(value, (list, tuple, range, dict)):
        return None
    if len(value) > _MOST:
        raise GiveUp
    return list(value)


def truth(value: Any) -> bool | None:
    """Whether a test holds; None where only the run knows."""
    if isinstance(value, Unknown):
        return None
    return bool(value) if isinstance(value, _PLAIN) else True
