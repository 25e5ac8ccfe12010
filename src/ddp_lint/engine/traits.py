"""The traits of a function (`rules.triggers.Trait`), found in one quick pass over its `ast`."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

from ddp_lint.knowledge.tensors import is_log, names, writes
from ddp_lint.project.parts import is_part, kept_by_node
from ddp_lint.rules.triggers import Trait
from ddp_lint.source.imports import dotted_ast
from ddp_lint.source.syntax import FunctionNode, below, is_text, walk

_READS = {"item", "tolist", "allclose", "is_nonzero", "new_full", "full_like"}
_CONVERSIONS = {"float", "int", "bool"}
_PLAIN_CALLS = {
    "len",
    "int",
    "str",
    "list",
    "dict",
    "set",
    "range",
    "defaultdict",
    "collections.defaultdict",
    "OrderedDict",
}
_GROWING = {"append", "extend", "add"}
_COLLECTIONS = (ast.List, ast.Tuple, ast.Dict, ast.ListComp, ast.DictComp)


def traits(function: FunctionNode) -> frozenset[Trait]:
    """The traits of a function, nested definitions included."""
    if is_part(function):  # the only ones that are needed again, where files change
        return _traits_of_part(function)
    return _Look(function).found


@kept_by_node(1024)
def _traits_of_part(function: FunctionNode) -> frozenset[Trait]:
    return _Look(function).found


class _Look:
    """One pass. Writes to names count at the end, when it is known which names hold numbers, lists or dicts only."""

    def __init__(self, function: FunctionNode) -> None:
        self._name = function.name
        self._found = {Trait.CONSTRUCTS} if self._name == "__init__" else set[Trait]()
        self._written: set[str] = set()
        self._plain: set[str] = set()
        self._given: list[tuple[str, ast.expr]] = []
        self._tested: set[str] = set()
        stack: list[ast.AST] = [function]
        while stack:
            node = stack.pop()
            look = _LOOKS.get(type(node))
            if look is not None:
                look(self, node)
            stack += below(node)

    @property
    def found(self) -> frozenset[Trait]:
        writes_tensors = {Trait.WRITES} if self._written - self._plain else set()
        tested = (value for name, value in self._given if name in self._tested)
        branches = {Trait.BRANCHES} if any(map(_asks_for_value, tested)) else set()
        return frozenset(self._found | writes_tensors | branches)

    def attribute(self, node: ast.Attribute) -> None:
        if node.attr in _READS:
            self._found.add(Trait.READS)
        elif writes(node.attr) and not dotted_ast(node.value).endswith("init"):
            self._found.add(Trait.WRITES)
        elif node.attr == "module" and isinstance(node.value, ast.Attribute) and self._name.endswith("forward"):
            self._found.add(Trait.DELEGATES)

    def call(self, node: ast.Call) -> None:
        name = dotted_ast(node.func)
        if name in _CONVERSIONS:
            self._found.add(Trait.READS)
        elif name == "print" or is_log(name):
            self._found.add(Trait.PRINTS)
        elif any(k.arg == "inplace" for k in node.keywords):
            self._found.add(Trait.WRITES)
        if isinstance(node.func, ast.Attribute) and node.func.attr in _GROWING:
            self._found.add(Trait.COUNTS)

    def condition(self, node: ast.If | ast.While | ast.IfExp) -> None:
        test = node.test.operand if isinstance(node.test, ast.UnaryOp) else node.test
        if isinstance(test, ast.Name):
            self._tested.add(test.id)
        elif Trait.BRANCHES not in self._found and _asks_for_value(test):
            self._found.add(Trait.BRANCHES)

    def augmented(self, node: ast.AugAssign) -> None:
        counts = isinstance(node.value, ast.Constant) and isinstance(node.value.value, int)
        if isinstance(node.target, ast.Name):
            self._written.add(node.target.id)
            return
        self._found.add(Trait.COUNTS)
        if not counts or self._name == "forward" or isinstance(node.target, ast.Subscript):
            # ``self.steps += 1`` counts something; what forward adds to may be a parameter
            self._found.add(Trait.WRITES)

    def assigned(self, node: ast.Assign) -> None:
        if isinstance(node.targets[0], ast.Attribute):
            self._found |= {Trait.COUNTS} if _adds_number(node.value) else set()
            self._found |= {Trait.KEEPS} if self._name == "__init__" and _is_collection(node.value) else set()
        for target in node.targets:
            if isinstance(target, ast.Name):
                self._given.append((target.id, node.value))
            if isinstance(target, ast.Name) and _is_plain(node.value):
                self._plain.add(target.id)
            elif isinstance(target, ast.Attribute) and target.attr == "data":
                self._found.add(Trait.WRITES)
            elif isinstance(target, ast.Subscript) and not is_text(target.slice):
                self._written.add(dotted_ast(target.value) or "[]")


_LOOKS: dict[type[ast.AST], Callable[[_Look, Any], None]] = {
    ast.Attribute: _Look.attribute,
    ast.Call: _Look.call,
    ast.If: _Look.condition,
    ast.While: _Look.condition,
    ast.IfExp: _Look.condition,
    ast.AugAssign: _Look.augmented,
    ast.Assign: _Look.assigned,
}


def _is_plain(value: ast.expr) -> bool:
    """A number, a text, a container, a length: nothing that autograd knows of."""
    if isinstance(value, ast.Call):
        return dotted_ast(value.func) in _PLAIN_CALLS
    if isinstance(value, ast.Constant):
        return value.value is not None  # None is a placeholder for a later value
    return isinstance(value, (ast.JoinedStr, ast.List, ast.Dict, ast.Set, ast.ListComp, ast.DictComp, ast.SetComp))


def _is_collection(value: ast.expr) -> bool:
    """Whether it is a list or the like, or what a function gives, which may be one: ``make_layers(depth)``."""
    func = value.func if isinstance(value, ast.Call) else None
    name = func.id if isinstance(func, ast.Name) else func.attr if isinstance(func, ast.Attribute) else ""
    own = isinstance(func, ast.Name) or (isinstance(func, ast.Attribute) and isinstance(func.value, ast.Name))
    return isinstance(value, _COLLECTIONS) or (own and bool(name) and name.lstrip("_")[:1].islower())


def _adds_number(value: ast.expr) -> bool:
    """``self.calls + 1``."""
    return isinstance(value, ast.BinOp) and isinstance(value.right, ast.Constant) and type(value.right.value) is int


def _asks_for_value(test: ast.expr) -> bool:
    """Whether a condition compares or reduces something: ``error > limit``, ``x.isnan().any()``."""
    for part in walk(test):
        if isinstance(part, ast.Compare) and not isinstance(part.ops[0], (ast.Is, ast.IsNot, ast.In)):
            return True
        called = part.func if isinstance(part, ast.Call) else None
        if isinstance(called, ast.Attribute) and called.attr in names("evidence", "reductions"):
            return True
    return False
