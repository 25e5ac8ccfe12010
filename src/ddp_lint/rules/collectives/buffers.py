"""Of which type a tensor is by the expression that makes it, as far as the expression says so."""

from __future__ import annotations

import ast
import math
from typing import Final, NamedTuple

from ddp_lint.project.facts import ModuleFacts
from ddp_lint.source.imports import dotted_ast, last_part
from ddp_lint.source.syntax import argument_at

#: What is of the default type where it is not told another one, with the place of its first size.
SIZED: Final = frozenset({"torch.zeros", "torch.ones", "torch.empty", "torch.rand", "torch.randn"})
#: What is as long as the list that it is made of.
LISTED: Final = frozenset({"torch.tensor", "torch.as_tensor", "torch.LongTensor", "torch.FloatTensor", "torch.Tensor"})
#: Methods that change neither type nor number of elements.
_KEEPING: Final = frozenset({"cuda", "cpu", "view", "reshape", "contiguous", "clone", "detach", "squeeze", "unsqueeze"})
_CASTS: Final = {
    "long": "int64", "int": "int32", "short": "int16", "float": "float32", "double": "float64", "half": "float16",
    "bfloat16": "bfloat16", "bool": "bool",
}  # fmt: skip
_CLASSES: Final = {
    "LongTensor": "int64", "IntTensor": "int32", "ByteTensor": "uint8", "FloatTensor": "float32", "Tensor": "float32",
    "DoubleTensor": "float64", "HalfTensor": "float16", "randperm": "int64",
}  # fmt: skip
_SPELLED: Final = {"long": "int64", "int": "int32", "float": "float32", "double": "float64", "half": "float16"}
_DTYPES: Final = frozenset({*_CASTS.values(), "uint8", "int8", "complex64"})
_PLACES: Final = ("device", "rank", "cuda", "gpu", "cpu")


class Made(NamedTuple):
    """How a tensor is made: its type ('' where it is not known), and the call at the bottom of it; of a tensor that is
    cast (``loss.half()``) the cast."""

    dtype: str
    base: ast.Call
    #: The canonical name of what is called, '' for a cast.
    maker: str

    @property
    def elements(self) -> int | None:
        """How many elements it has, where they, or its sizes, are written out."""
        if self.maker in SIZED:
            sizes = self.base.args
            sizes = sizes[0].elts if len(sizes) == 1 and isinstance(sizes[0], (ast.Tuple, ast.List)) else sizes
            numbers = [each.value for each in sizes if isinstance(each, ast.Constant) and isinstance(each.value, int)]
            return math.prod(numbers) if numbers and len(numbers) == len(sizes) else None
        listed = self.base.args[0] if self.maker in LISTED and self.base.args else None
        is_list = isinstance(listed, (ast.List, ast.Tuple)) and all(map(_of_number, listed.elts))
        return len(listed.elts) if is_list and isinstance(listed, (ast.List, ast.Tuple)) else None


def made_by(facts: ModuleFacts, value: ast.expr) -> Made | None:
    """What an expression makes: ``torch.zeros(3, dtype=torch.long).cuda()``, ``loss.half()``; None for what neither
    makes a tensor nor says the type of one."""
    cast: str | None = None
    outermost = value
    while isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute):
        name = facts.qualified(value.func)
        if name.startswith("torch."):
            own = _own_type(facts, value, name) if cast is None else cast
            return Made(own, value, name)
        if cast is None and value.func.attr in _CASTS and not value.args:
            cast = _CASTS[value.func.attr]
        elif value.func.attr in ("to", "type"):
            cast = _moved(facts, value) if cast is None else cast
        elif value.func.attr not in _KEEPING and value.func.attr not in _CASTS:
            return None
        value = value.func.value
    named = isinstance(value, (ast.Name, ast.Attribute)) and isinstance(outermost, ast.Call)
    return Made(cast, outermost, "") if named and cast and isinstance(outermost, ast.Call) else None


def _moved(facts: ModuleFacts, call: ast.Call) -> str | None:
    """The type that ``x.to(...)`` casts to; '' where it may cast, None where it moves."""
    given = [*call.args, *(keyword.value for keyword in call.keywords if keyword.arg in ("dtype", "other"))]
    types = [_spelled(facts, each) for each in given]
    found = next(filter(None, types), "")
    if found or not given:
        return found or None
    places = (ast.unparse(each).lower() for each in given)
    return None if all(any(word in place for word in _PLACES) for place in places) else ""


def _spelled(facts: ModuleFacts, value: ast.expr | None) -> str:
    """The type that an expression names: ``torch.long``."""
    name = facts.qualified(value)
    last = _SPELLED.get(last_part(value), last_part(value))
    return last if name.startswith("torch.") and last in _DTYPES else ""


def _own_type(facts: ModuleFacts, call: ast.Call, name: str) -> str:
    keyword = next((each.value for each in call.keywords if each.arg == "dtype"), None)
    if keyword is not None:
        return _spelled(facts, keyword)
    last = name.rpartition(".")[2]
    if last in _CLASSES:
        return _CLASSES[last]
    if name in SIZED:
        return "float32"
    if name in ("torch.tensor", "torch.as_tensor"):
        return _of_literal(argument_at(call, 0, "data"))
    return ""


def _of_literal(value: ast.expr | None) -> str:
    """The type of a tensor of numbers that are written out, or counted by `len`."""
    elements = list(value.elts) if isinstance(value, (ast.List, ast.Tuple)) else [value]
    types = {_of_number(each) for each in elements}
    return types.pop() if len(types) == 1 else ""


def _of_number(value: ast.expr | None) -> str:
    if isinstance(value, ast.UnaryOp):
        value = value.operand
    if isinstance(value, ast.Constant):
        return {bool: "bool", int: "int64", float: "float32"}.get(type(value.value), "")
    return "int64" if isinstance(value, ast.Call) and dotted_ast(value.func) == "len" else ""
