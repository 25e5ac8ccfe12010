"""Python's operators and a few of its functions on values that may be unknown."""

from __future__ import annotations

import ast
import dataclasses
import operator
from collections.abc import Callable, Hashable, Iterable
from typing import Any, Final

from ddp_lint.messages.values import External, TooMuch, Unknown

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
#: Values with their elements that are worked on at a time, and characters of a text that count as one.
_PARTS: Final = 1024
_TOGETHER: Final = 64
#: What an operation is not carried out on.
_PLAIN: Final = (int, str, bool, float, type(None), list, tuple, dict, range)


def key_of(value: Any) -> Hashable:
    """The same for values that are the same on two ranks, if they can be compared at all. Raises TooMuch for large
    values."""
    bounded(value)
    return _key(value)


def _key(value: Any) -> Hashable:
    if isinstance(value, (list, tuple)):
        return (type(value).__name__, *map(_key, value))
    if isinstance(value, range):
        return ("range", value.start, value.stop, value.step)
    if isinstance(value, dict):
        return ("dict", *((name, _key(each)) for name, each in value.items()))
    if isinstance(value, Unknown):
        return value.key
    return (type(value).__name__, value) if isinstance(value, (int, str, float, External, type(None))) else "object"


def is_own(values: Iterable[Any]) -> bool:
    """Is one of these what a rank alone knows? Raises TooMuch for large values."""
    return any(isinstance(part, Unknown) and part.own for part in bounded(*values))


def holds_unknown(value: Any) -> bool:
    """Whether only the run knows a value, or an element of it. Raises TooMuch for large values."""
    return any(isinstance(part, Unknown) for part in bounded(value))


def combined(what: Hashable, *values: Any) -> Unknown:
    """What follows from these values in a way that only the run knows."""
    own = is_own(values)
    # A digest: the keys of ``x = x + x``, many times over, would double with each.
    return Unknown((what, hash(tuple(map(_key, values)))), own)


def bounded(*values: Any) -> list[Any]:
    """The values with all elements of lists in them. Raises TooMuch where they are many, or a list holds itself: no
    work on values may take long, whatever a program does with them."""
    found: list[Any] = []
    stack, left = [*values], _PARTS
    while stack:
        value = stack.pop()
        found.append(value)
        left -= 1 + (len(value) // _TOGETHER if isinstance(value, str) else 0)
        if isinstance(value, (list, tuple, dict)):
            if len(value) > left:
                raise TooMuch
            stack += value.values() if isinstance(value, dict) else value
        if left < 0:
            raise TooMuch
    return found


def short(*values: Any) -> None:
    """Raises TooMuch for a range of which a list would take much memory."""
    if any(isinstance(value, range) and value[_PARTS:] for value in values):
        raise TooMuch


def apply(kind: type[ast.AST], *values: Any) -> Any:
    """The result of an operator. Raises TooMuch for large values."""
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
    bounded(*values)
    if kind is ast.Mod and isinstance(values[0], str):  # a width that the format has makes a text of any length
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
    """The result of a function of Python. Raises TooMuch for large values."""
    function = _FUNCTIONS.get(name)
    bounded(*values)
    if name != "len":
        short(*values)
    if name == "list" and len(values) == 1 and isinstance(values[0], Unknown):
        return values[0]
    needs_values = name not in ("len", "list", "tuple", "enumerate", "zip", "reversed", "dict")
    plain = all(isinstance(value, _PLAIN) for value in values)
    if function is None or not plain or (needs_values and any(map(holds_unknown, values))):
        return combined(name, *values)
    try:
        result = function(*values)
    except Exception:  # what the arguments raise they raise in the program, too
        return combined(name, *values)
    return result if not isinstance(result, int) or abs(result) < _LARGEST else combined(name, *values)


def elements(value: Any) -> list[Any] | None:
    """What a loop goes through; None where only the run knows. Raises TooMuch for too many."""
    if not isinstance(value, (list, tuple, range, dict)):
        return None
    if value[_MOST:] if isinstance(value, range) else len(value) > _MOST:  # the length of a range may be no `int` of C
        raise TooMuch
    return list(value)


def truth(value: Any) -> bool | None:
    """Whether a test holds; None where only the run knows."""
    if isinstance(value, Unknown):
        return None
    return bool(value) if isinstance(value, _PLAIN) else True
