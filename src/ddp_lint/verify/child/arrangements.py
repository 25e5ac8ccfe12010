"""How a function takes apart an argument that holds several tensors, by its source."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any

from ddp_lint.source.imports import last_part
from ddp_lint.verify.child import shapes
from ddp_lint.verify.child.arguments import syntax

#: Functions of torch that take a list of tensors, and no tensor in its place.
_OF_LISTS = frozenset(
    {
        "cat", "concat", "concatenate", "stack", "hstack", "vstack", "pad_sequence", "pack_sequence", "nested_tensor",
        "as_nested_tensor",
    }
)  # fmt: skip


class Arrangement:
    """How the tensors of one argument are arranged: `leaves` are their names, `filled` puts specifications there.

    `kind`: tensor, dict (by the leaves), tuple (of the leaves), list (a tensor for each sample) or records (a dict for
    each sample).
    """

    def __init__(self, kind: str, leaves: tuple[str, ...]) -> None:
        self.kind = kind
        self.leaves = leaves

    def filled(self, specs: tuple[shapes.Spec, ...]) -> shapes.Spec:
        """The specification of the argument: `specs` are those of the leaves, each with a batch dimension."""
        if self.kind == "tuple":
            return {"kind": "tuple", "items": list(specs)}
        if self.kind in ("dict", "records"):
            items = {"kind": "dict", "items": dict(zip(self.leaves, specs, strict=True))}
            return items if self.kind == "dict" else shapes.samples(items)
        return shapes.samples(specs[0]) if self.kind == "list" else specs[0]


def arrangements(name: str, function: Any) -> list[Arrangement]:
    """The ways in which the function may take its argument, the likely ones first."""
    tree = syntax(function)
    whole = Arrangement("tensor", (name,))
    found = [*_by_key(tree, name), *_unpacked(tree, name)]
    if "edge" in name:
        return [whole, *found]
    numbers = max((index + 1 for index in _indices(tree, name) if isinstance(index, int)), default=0)
    if numbers > 1 and not found:
        return [whole, Arrangement("tuple", tuple(f"{name}{n}" for n in range(numbers)))]
    elements = list(dict.fromkeys(_elements(tree, name)))
    keys = tuple(dict.fromkeys(key for element in elements for key in _keys(tree, element)))
    found += [Arrangement("records", keys)] if keys else []
    lists = [Arrangement("list", (name,))]
    if _is_joined(tree, name):
        return [*found, *lists, whole]
    return [*found, whole, *(lists if elements else [])]


def _by_key(tree: ast.AST, name: str) -> Iterator[Arrangement]:
    keys = tuple(_keys(tree, name))
    if keys:
        yield Arrangement("dict", keys)


def _keys(tree: ast.AST, name: str) -> dict[str, None]:
    return {index: None for index in _indices(tree, name) if isinstance(index, str)}


def _indices(tree: ast.AST, name: str) -> Iterator[object]:
    """The constants by which a name is subscripted."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Subscript) and _is_name(node.value, name) and isinstance(node.slice, ast.Constant):
            yield node.slice.value


def _unpacked(tree: ast.AST, name: str) -> Iterator[Arrangement]:
    """`x, y = name`, where it is first."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and _is_name(node.value, name) and isinstance(node.targets[0], ast.Tuple):
            parts = node.targets[0].elts
            yield Arrangement("tuple", tuple(item.id if isinstance(item, ast.Name) else "x" for item in parts))
            return


def _elements(tree: ast.AST, name: str) -> Iterator[str]:
    """The names of the elements, where the function loops over the argument."""
    for node in ast.walk(tree):
        if isinstance(node, ast.For | ast.comprehension):
            target = _element(node.iter, node.target, name)
            if isinstance(target, ast.Name):
                yield target.id


def _element(source: ast.expr, target: ast.expr, name: str) -> ast.expr | None:
    """What is bound to an element of the argument in a loop over it, over `zip` or over `enumerate`."""
    if _is_name(source, name):
        return target
    if not isinstance(source, ast.Call) or not isinstance(target, ast.Tuple):
        return None
    function = last_part(source.func)
    if function == "enumerate" and source.args and len(target.elts) == 2:
        return _element(source.args[0], target.elts[1], name)
    pairs = zip(source.args, target.elts, strict=False) if function == "zip" else ()
    return next((found for given, bound in pairs if (found := _element(given, bound, name)) is not None), None)


def _is_joined(tree: ast.AST, name: str) -> bool:
    """Whether the argument goes into a function of torch that takes a list."""
    calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call) and node.args)
    return any(_is_name(c.args[0], name) and last_part(c.func) in _OF_LISTS for c in calls)


def _is_name(node: ast.expr, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name
