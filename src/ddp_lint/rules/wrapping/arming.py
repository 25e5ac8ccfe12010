"""Does a call run the forward of a wrapper: that prepares its gradient hooks for the next backward. Does it train what
it is given."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import libcst as cst

from ddp_lint.findings import Span
from ddp_lint.project import Project
from ddp_lint.project.facts import ModuleFacts
from ddp_lint.source import dotted
from ddp_lint.source.imports import dotted_ast, last_part
from ddp_lint.source.syntax import FunctionNode, argument_at, below, parameters, walk
from ddp_lint.tensors.contexts import body_without_gradient
from ddp_lint.view import Module
from ddp_lint.view.wraps import argument

#: Functions that hand a model on to each other before one calls it.
_DEPTH = 3


def runs_forward(module: Module, call: cst.Call, wrapper: str) -> bool:
    """Whether a call is one of the wrapper, or of a function of the project that gets the wrapper and calls it:
    ``evaluate(model, batch)``; or of a method that calls the wrapper which its object has: ``self.run_forward()``."""
    if dotted(call.func) == wrapper or _method_calls(module, call, wrapper):
        return True
    if module.project is None or not any(dotted(arg.value) == wrapper for arg in call.args):
        return False
    found = module.project.meanings.definition(module.project.meanings.canonical(module.callee(call)))
    if found is None or not isinstance(found[1], ast.FunctionDef) or any(arg.star for arg in call.args):
        return False
    names = [parameter.arg for parameter in parameters(found[1])]
    given = [name for place, name in enumerate(names) if dotted(argument(call, place, name)) == wrapper]
    return any(_calls(module.project, found[0], found[1], name, _DEPTH) for name in given)


def trained_by(project: Project, facts: ModuleFacts, call: ast.Call, model: str) -> Span | None:
    """The backward of a function of the project that a call gives a model, and that runs the forward of this one with
    gradients: ``train_epoch(model, loader)``. None where the function handles gradients itself."""
    found = project.meanings.definition(project.meanings.of(facts, call.func)) if model in _given(call) else None
    if found is None or not isinstance(found[1], ast.FunctionDef):
        return None
    of, function = found[0], found[1]
    handles = any(isinstance(node, ast.Attribute) and node.attr == "grad" for node in walk(function))
    backwards = [each for each in _with_gradient(function, of) if last_part(each.func) == "backward"]
    if not backwards or handles:
        return None
    for place, taken in enumerate(parameters(function)):
        given = argument_at(call, place, taken.arg)
        if given is not None and dotted_ast(given) == model and _calls(project, of, function, taken.arg, _DEPTH):
            return of.file.span_of(min(backwards, key=lambda each: each.lineno))
    return None


def returns_output_of(facts: ModuleFacts, function: FunctionNode, model: str) -> bool:
    """Whether a function returns what its parameter computes, with gradients, and leaves the backward to its caller:
    ``def elbo(net, x): out = net(x); return mse(out, x)``."""
    if not isinstance(function, ast.FunctionDef) or body_without_gradient(function, facts) or _is_set(function, model):
        return False
    if any(isinstance(node, ast.Attribute) and node.attr in ("backward", "grad") for node in walk(function)):
        return False
    calls = {call for call in _with_gradient(function, facts) if dotted_ast(call.func) == model}
    held = set[str]()
    for node in _in_order(function.body):
        if isinstance(node, ast.Assign) and _holds(node.value, calls, held):
            stored = (part for target in node.targets for part in walk(target))
            held |= {part.id for part in stored if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)}
        elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
            held |= {node.target.id} if _holds(node.value, calls, held) else set()
        elif isinstance(node, ast.Return) and node.value is not None and _holds(node.value, calls, held):
            return True
    return False


def _in_order(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements of a function with those in its blocks, as they are written; not those of functions in it."""
    for statement in body:
        if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            continue
        yield statement
        for part in ("body", "orelse", "finalbody"):
            yield from _in_order(getattr(statement, part, []))


def _holds(value: ast.AST, calls: set[ast.Call], held: set[str]) -> bool:
    """Whether an expression has a gradient of one of the calls, or of a name that holds it."""
    if value in calls or (isinstance(value, ast.Name) and value.id in held):
        return True
    if isinstance(value, ast.Attribute) and value.attr in ("data", "shape"):
        return False
    if isinstance(value, ast.Call) and last_part(value.func) in ("detach", "item", "tolist"):
        return False
    return not isinstance(value, ast.Lambda) and any(_holds(part, calls, held) for part in below(value))


def _method_calls(module: Module, call: cst.Call, wrapper: str) -> bool:
    own, _, name = dotted(call.func).rpartition(".")
    owner = module.class_of(call) if own == "self" and wrapper.startswith("self.") else None
    if owner is None or module.project is None:
        return False
    found = module.project.classes.method(module.name_of(owner), name)
    if found is None or not isinstance(found[1], ast.FunctionDef):
        return False
    facts, method = found[0].module, found[1]
    if body_without_gradient(method, facts):
        return False
    return any(dotted_ast(each.func) == wrapper for each in _with_gradient(method, facts))


def _calls(project: Project, facts: ModuleFacts, function: ast.FunctionDef, parameter: str, depth: int) -> bool:
    """Whether a function calls what it gets as a parameter, itself or by one that it hands it to."""
    if body_without_gradient(function, facts) or _is_set(function, parameter):
        return False
    for call in _with_gradient(function, facts):
        if dotted_ast(call.func) == parameter:
            return True
        found = (
            project.meanings.definition(project.meanings.of(facts, call.func))
            if depth and parameter in _given(call)
            else None
        )
        if found is not None and isinstance(found[1], ast.FunctionDef):
            for place, taken in enumerate(parameters(found[1])):
                given = argument_at(call, place, taken.arg)
                handed = given is not None and dotted_ast(given) == parameter
                if handed and _calls(project, found[0], found[1], taken.arg, depth - 1):
                    return True
    return False


def _is_set(function: ast.FunctionDef, name: str) -> bool:
    """Whether a function gives a parameter another value: ``model = model.module``."""
    return any(isinstance(n, ast.Name) and n.id == name and isinstance(n.ctx, ast.Store) for n in walk(function))


def _given(call: ast.Call) -> set[str]:
    return {dotted_ast(value) for value in (*call.args, *(keyword.value for keyword in call.keywords))}


def _with_gradient(function: ast.FunctionDef, facts: ModuleFacts) -> Iterator[ast.Call]:
    """The calls of a function, without those where gradients are off and those of functions in it."""
    stack: list[ast.AST] = list(function.body)
    while stack:
        node = stack.pop()
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)):
            continue
        if isinstance(node, ast.With) and body_without_gradient(node, facts):
            continue
        if isinstance(node, ast.Call):
            yield node
        stack += below(node)
