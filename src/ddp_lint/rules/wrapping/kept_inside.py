"""Wrapped models that a class takes apart: its constructor keeps the module inside, or parts of it, and its methods
train those."""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Iterable
from typing import Final

from ddp_lint.project import Project
from ddp_lint.project.facts import ModuleFacts
from ddp_lint.rules.wrapping.never_called import PLAIN, averages
from ddp_lint.source.imports import dotted_ast, last_part, of_self
from ddp_lint.source.syntax import FunctionNode, argument_at, calls_below, parameters, walk
from ddp_lint.tensors.contexts import evaluation_only_at

#: What only asks whether a model has a wrapper.
_ASKS: Final = frozenset({"hasattr", "isinstance", "getattr", "type"})
_INSIDE: Final = "module"


@dataclasses.dataclass(frozen=True)
class Kept:
    """The call that gives the wrapper away, and the first call of what the object has taken out of it."""

    given: ast.Call
    facts: ModuleFacts
    runs: ast.Call
    backward: ast.Call


def kept_inside(
    project: Project, facts: ModuleFacts, wrap: ast.Assign, scope: ast.AST, files: Iterable[ModuleFacts]
) -> Kept | None:
    """For ``model = DDP(net)`` the object of a project class that trains what its constructor takes out of `model`,
    where the function that wraps uses `model` for nothing else but its parameters and its state."""
    given = _given_away(scope, dotted_ast(wrap.targets[0]), wrap)
    if given is None:
        return None
    home, cls = project.meanings.definition(project.meanings.of(facts, given.func)) or (None, None)
    if home is None or not isinstance(cls, ast.ClassDef):
        return None
    made = next((n for n in cls.body if isinstance(n, ast.FunctionDef) and n.name == "__init__"), None)
    name = _parameter_of(made, given, dotted_ast(wrap.targets[0])) if made is not None else ""
    parts = _parts(made, name) if made is not None and name else frozenset()
    if not parts or _rebound(cls, made, parts) or averages(files):
        return None
    for method in cls.body:
        if not isinstance(method, FunctionNode) or method is made:
            continue
        calls = list(calls_below(method))
        backward = next((call for call in calls if last_part(call.func) == "backward"), None)
        runs = (call for call in calls if _runs(call, parts) and not evaluation_only_at(home, method, call))
        first = min(runs, key=lambda call: call.lineno, default=None)
        if backward is not None and first is not None:
            return Kept(given, home, first, backward)
    return None


def _given_away(scope: ast.AST, wrapper: str, wrap: ast.Assign) -> ast.Call | None:
    """The only call that gets the wrapper itself; None where anything else is done with it."""
    nodes = list(walk(scope))
    names = [n for n in nodes if isinstance(n, ast.Name) and n.id == wrapper]
    if "." in wrapper or any(isinstance(n.ctx, ast.Store) and n.lineno > wrap.lineno for n in names):
        return None
    plain = {n.value for n in nodes if isinstance(n, ast.Attribute) and n.attr in PLAIN}
    used = {n for n in names if isinstance(n.ctx, ast.Load) and n.lineno > (wrap.end_lineno or 0) and n not in plain}
    calls = [
        call for call in nodes if isinstance(call, ast.Call)
        if any(each in used for each in (*call.args, *(keyword.value for keyword in call.keywords)))
    ]  # fmt: skip
    return calls[0] if len(used) == len(calls) == 1 else None


def _parameter_of(made: ast.FunctionDef, given: ast.Call, wrapper: str) -> str:
    for place, each in enumerate(parameters(made)[1:]):
        if dotted_ast(argument_at(given, place, each.arg)) == wrapper:
            return each.arg
    return ""


def _parts(made: ast.FunctionDef, name: str) -> frozenset[str]:
    """The attributes that a constructor gives what is inside of its parameter; none where it does more with that."""
    assigned = [n for n in walk(made) if isinstance(n, ast.Assign) and len(n.targets) == 1]
    taken = {dotted_ast(n.targets[0]) for n in assigned if _takes_out(n.value, name)} - {""}
    inside = {part for n in assigned if _takes_out(n.value, name) for part in walk(n.value)}
    others = [
        n for n in walk(made) if isinstance(n, ast.Name) and n.id == name and isinstance(n.ctx, ast.Load)
        if n not in inside
    ]  # fmt: skip
    plain = {n.value for n in walk(made) if isinstance(n, ast.Attribute) and n.attr in PLAIN}
    direct = {n.value.value for n in walk(made) if _is_inside(n, name) and isinstance(n, ast.Attribute)
              if isinstance(n.value, ast.Attribute)}  # fmt: skip
    if not all(each in plain or each in direct for each in others):
        return frozenset()
    roots = {*taken, f"{name}.{_INSIDE}"}
    kept = {of_self(dotted_ast(n.targets[0])) for n in assigned if _begins_with(dotted_ast(n.value), roots)}
    return frozenset((kept | {of_self(each) for each in taken}) - {""})


def _is_inside(node: ast.AST, name: str) -> bool:
    """``model.module.body``"""
    return isinstance(node, ast.Attribute) and dotted_ast(node.value) == f"{name}.{_INSIDE}"


def _takes_out(value: ast.expr, name: str) -> bool:
    """``model.module``, ``getattr(model, "module", model)``, ``model.module if hasattr(model, ..) else model``."""
    if isinstance(value, ast.IfExp):
        arms = [dotted_ast(value.body), dotted_ast(value.orelse)]
        asks = all(last_part(call.func) in _ASKS for call in calls_below(value.test))
        return asks and f"{name}.{_INSIDE}" in arms and name in arms
    if isinstance(value, ast.Call) and last_part(value.func) == "getattr" and len(value.args) == 3:
        of, attribute, default = value.args
        asked = isinstance(attribute, ast.Constant) and attribute.value == _INSIDE
        return asked and dotted_ast(of) == dotted_ast(default) == name
    return dotted_ast(value) == f"{name}.{_INSIDE}"


def _begins_with(path: str, roots: set[str]) -> bool:
    return any(path.startswith(f"{root}.") for root in roots if root)


def _rebound(cls: ast.ClassDef, made: ast.FunctionDef | None, parts: frozenset[str]) -> bool:
    """Whether a method gives one of the attributes something else later."""
    later = (n for method in cls.body if method is not made for n in walk(method))
    return any(
        isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Store) and of_self(dotted_ast(n)) in parts for n in later
    )


def _runs(call: ast.Call, parts: frozenset[str]) -> bool:
    """Whether a call runs a part, or a method of one that computes with it."""
    name, _, rest = of_self(dotted_ast(call.func)).partition(".")
    return name in parts and (not rest or last_part(call.func) not in PLAIN)
