"""Optimizers of tensors that the function around has made on the spot: they hold nothing of a model, so that each rank
may step them by itself."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Final

from ddp_lint.divergence.frame import Frame
from ddp_lint.knowledge.tensors import is_factory
from ddp_lint.project.facts import assigned_in
from ddp_lint.project.parts import children, kept_by_node
from ddp_lint.source.imports import last_part
from ddp_lint.source.syntax import FunctionNode, argument_at, calls_below, names_in, parameters

#: Methods that make a tensor of another one, as it is or of its shape.
_MAKING: Final = ("clone", "detach", "requires_grad_", "new_zeros", "new_ones", "new_empty", "new_full", "new_tensor")
_PARAMETERS: Final = ("torch.nn.Parameter", "torch.nn.parameter.Parameter", "torch.autograd.Variable")
_DEVICES: Final = ("to", "cuda", "cpu", "float", "half", "double")
#: What the names of calls that exchange tensors have in them.
_EXCHANGES: Final = ("reduce", "gather", "broadcast", "scatter")


def holds_own_tensors(frame: Frame, optimizer: ast.Call) -> bool:
    """Whether an optimizer is given tensors alone that the function at hand makes, keeps in no object, and exchanges
    with no other rank: coefficients that are fitted to one picture."""
    function, given = frame.function, argument_at(optimizer, 0, "params")
    names = list(_names_in(given)) if given is not None else []
    if not isinstance(function, FunctionNode) or not names or None in names:
        return False
    kept = _kept_or_exchanged(function)
    return all(name not in kept and _is_made(frame, function, name) for name in names if name is not None)


def _names_in(given: ast.expr) -> Iterator[str | None]:
    """The names of a list of tensors, or of groups of them: ``[{"params": [a, b], "lr": 0.1}, ..]``; None for anything
    else."""
    if isinstance(given, ast.Name):
        yield given.id
    elif isinstance(given, (ast.List, ast.Tuple)):
        for each in given.elts:
            yield from _names_in(each)
    elif isinstance(given, ast.Dict):
        for key, value in zip(given.keys, given.values, strict=True):
            if not isinstance(key, ast.Constant) or key.value == "params":
                yield from _names_in(value)
    else:
        yield None


def _is_made(frame: Frame, function: FunctionNode, name: str) -> bool:
    """Whether all that a function assigns to a name are tensors that it makes, also by another name."""
    names = [name]
    for each in names:  # grows as names are found
        values = assigned_in(function, each)
        if not values or any(each == parameter.arg for parameter in parameters(function)):
            return False
        names += (v.id for v in values if isinstance(v, ast.Name) and v.id not in names)
        if not all(isinstance(value, ast.Name) or _makes(frame, value) for value in values):
            return False
    return True


def _makes(frame: Frame, value: ast.expr) -> bool:
    if not isinstance(value, ast.Call):
        return False
    name = frame.facts.qualified(value.func)
    if is_factory(name) or (name.startswith("torch.") and name.endswith("_like")):
        return True
    if name in _PARAMETERS:
        return bool(value.args) and _makes(frame, value.args[0])
    method = last_part(value.func)
    if method in _DEVICES and isinstance(value.func, ast.Attribute):
        return _makes(frame, value.func.value)
    return method in _MAKING and isinstance(value.func, ast.Attribute)


@kept_by_node(256)
def _kept_or_exchanged(function: ast.AST) -> frozenset[str]:
    """The names of a function that an object keeps, or that a call exchanges with other ranks."""
    found: set[str] = set()
    for node in children(function):
        if isinstance(node, ast.Assign) and any(isinstance(target, ast.Attribute) for target in node.targets):
            found |= {node.value.id} if isinstance(node.value, ast.Name) else set()
    for call in calls_below(function):
        if any(word in last_part(call.func) for word in _EXCHANGES):
            found |= frozenset().union(*map(names_in, call.args))
    return frozenset(found)
