"""Functions of the project that take a wrapped model and run what is inside it alone: ``unwrap(model).encode(batch)``.

The hooks of a wrapper wait for its own forward. Where no loss comes by it, backward averages no gradients.
"""

from __future__ import annotations

import ast
from typing import Final

from ddp_lint.divergence.frame import Frame
from ddp_lint.divergence.references import FunctionRef
from ddp_lint.project.parts import inside, kept_by_node
from ddp_lint.source.imports import dotted_ast
from ddp_lint.source.syntax import FunctionNode, either_of, parameters

#: Functions that hand the model on to functions.
_DEPTH: Final = 3
_INSIDE: Final = "module"


def runs_inside_alone(frame: Frame, function: ast.expr) -> bool:
    """Does a function of the project use one of its arguments as the model in a wrapper, and never call it itself?"""
    called = _of_project(frame, function)
    if called is None:
        return False
    names = [parameter.arg for parameter in parameters(called)]
    return any(_goes_inside(frame, called, name, _DEPTH) for name in names)


def _goes_inside(frame: Frame, function: FunctionNode, name: str, depth: int) -> bool:
    """Is the parameter given to nothing but functions that return, or use in the same way, the model inside?"""
    given = _given_on(function, name)
    if given is None or not given or depth == 0:
        return False
    functions = [(_of_project(frame, call.func), place) for call, place in given]
    return all(
        called is not None and (_returns_inside(called) or _goes_inside_at(frame, called, call_place, depth - 1))
        for called, call_place in functions
    )


def _goes_inside_at(frame: Frame, function: FunctionNode, place: int | str, depth: int) -> bool:
    names = [parameter.arg for parameter in parameters(function)]
    names = names[1:] if names[:1] == ["self"] else names
    name = place if isinstance(place, str) else names[place] if place < len(names) else ""
    return bool(name) and _goes_inside(frame, function, name, depth)


def _of_project(frame: Frame, function: ast.expr) -> FunctionNode | None:
    """A function of the file or of the class by its name; None for one that another class may override."""
    name = dotted_ast(function)
    first, _, method = name.partition(".")
    found: object = None
    if first == "self" and frame.owner is not None and method:
        found = frame.linker.method(frame.owner, method)
    elif name and not method:
        found = frame.linker.in_module(frame.facts, name)
    node = found.node if isinstance(found, FunctionRef) else None
    if not isinstance(node, FunctionNode):
        return None
    return node if not method or len(frame.linker.project.contents.holding(f"def {method}(")) == 1 else None


@kept_by_node(256)
def _given_on(function: FunctionNode, name: str) -> list[tuple[ast.Call, int | str]] | None:
    """The calls that are given the parameter, each with the place or keyword; None where it is used in another way."""
    found: list[tuple[ast.Call, int | str]] = []
    for call in (node for node in inside(function) if isinstance(node, ast.Call)):
        found += [(call, place) for place, value in enumerate(call.args) if _is_name(value, name)]
        found += [(call, keyword.arg or "") for keyword in call.keywords if _is_name(keyword.value, name)]
    uses = sum(_is_name(node, name) for node in inside(function))
    return found if uses == len(found) else None


def _is_name(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


@kept_by_node(256)
def _returns_inside(function: FunctionNode) -> bool:
    """``return model.module if wrapped else model``: one or the other of a parameter, and nothing else."""
    names = {parameter.arg for parameter in parameters(function)}
    returned = [node.value for node in inside(function) if isinstance(node, ast.Return)]
    texts = [dotted_ast(value) for each in returned for value in (either_of(each) if each is not None else (None,))]
    of = {text.partition(".")[0] for text in texts}
    plain = all(text in names or text == f"{text.partition('.')[0]}.{_INSIDE}" for text in texts)
    return len(of) == 1 and of <= names and plain and any(text not in names for text in texts)
