"""Flags that a signal handler sets: each rank receives the signal between different steps."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Final

from ddp_lint.divergence.arguments import Arguments
from ddp_lint.divergence.expressions import dotted
from ddp_lint.divergence.frame import Frame, span_of
from ddp_lint.divergence.references import FunctionRef
from ddp_lint.divergence.values import Variation, divergent
from ddp_lint.findings import Confidence, Label
from ddp_lint.project.facts import ModuleFacts
from ddp_lint.project.parts import children, kept_by_node
from ddp_lint.source.syntax import FunctionNode, calls_below, first_name

REGISTERING: Final = "signal.signal"


def of_attribute(class_: ast.ClassDef, facts: ModuleFacts, name: str) -> Variation | None:
    """Why ``self.name`` differs between ranks, if a method that the class registers for a signal sets it."""
    for call in _registered(facts):
        handler = dotted(call.args[1]).rpartition(".")
        for method in class_.body:
            if handler[0] == "self" and isinstance(method, FunctionNode) and method.name == handler[2]:
                this = first_name(method)
                if f"{this}.{name}" in _stored(method):
                    return _heard(call, facts)
    return None


def of_variable(facts: ModuleFacts, name: str) -> Variation | None:
    """The same of a variable of the module, which a function registered for a signal sets."""
    for call in _registered(facts):
        for function in facts.tree.body:
            if isinstance(function, FunctionNode) and function.name == dotted(call.args[1]):
                rebinds = any(isinstance(child, ast.Global) and name in child.names for child in children(function))
                if rebinds and name in _stored(function):
                    return _heard(call, facts)
    return None


def register(frame: Frame, arguments: Arguments, node: ast.Call) -> None:
    """``signal.signal(number, handler)``: from here on what the handler sets is no longer what the function has set."""
    handler = arguments.positional[1].reference if len(arguments.positional) > 1 else None
    if isinstance(handler, FunctionRef) and not isinstance(handler.node, ast.Lambda):
        shared = {name for child in children(handler.node) if isinstance(child, ast.Nonlocal) for name in child.names}
        this = dotted(node.args[1]).rpartition(".")[0]
        own = first_name(handler.node) if handler.owner is not None else ""
        for path in _stored(handler.node):
            head, _, rest = path.partition(".")
            if path in shared or (own and head == own and f"{this}.{rest}" in frame.env):
                there = path if path in shared else f"{this}.{rest}"
                frame.env[there] = divergent(("signal", frame.key(node), there), _heard(node, frame.facts))


def _heard(call: ast.Call, facts: ModuleFacts) -> Variation:
    origin = Label(span_of(facts, call), "each rank receives the signal at another time")
    description = "whether this rank has received the signal"
    return Variation("signal", description, origin=origin, confidence=Confidence.MEDIUM)


def _registered(facts: ModuleFacts) -> Iterator[ast.Call]:
    """Calls of ``signal.signal(number, handler)``."""
    imported = any(target.partition(".")[0] == "signal" for target in facts.imports.names.values())
    candidates = _candidates(facts.tree) if imported else ()
    return (call for call in candidates if facts.imports.resolve(dotted(call.func)) == REGISTERING)


@kept_by_node(512)
def _candidates(tree: ast.Module) -> tuple[ast.Call, ...]:
    calls = (node for node in calls_below(tree) if len(node.args) == 2)
    return tuple(call for call in calls if dotted(call.func).endswith("signal"))


@kept_by_node(1024)
def _stored(function: FunctionNode) -> frozenset[str]:
    """Names and attributes that a function assigns."""
    return frozenset(_targets(function))


def _targets(function: FunctionNode) -> Iterator[str]:
    for child in children(function):
        if isinstance(child, ast.Assign):
            yield from (dotted(target) for target in child.targets)
