"""Optimizers that a file makes, and the models whose parameters they take."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import libcst as cst

from ddp_lint.findings import Span
from ddp_lint.launch.helpers import Helper, helper_of
from ddp_lint.project import Project
from ddp_lint.project.facts import ModuleFacts
from ddp_lint.project.handed_on import given_for
from ddp_lint.source import dotted
from ddp_lint.source.imports import dotted_ast
from ddp_lint.source.syntax import FunctionNode, calls_below, parameters, statements, walk
from ddp_lint.source.tree import subtree
from ddp_lint.tensors.classes import is_module_class
from ddp_lint.view import Module
from ddp_lint.view.wraps import argument

_TAKES = ("parameters", "named_parameters")


def is_optimizer(module: Module, call: cst.Call) -> bool:
    """Whether a call is that of an optimizer of torch's."""
    return _is_optimizer_name(module.qualified(call.func))


def makes_optimizer(module: Module, call: cst.Call) -> bool:
    """Whether a call makes an optimizer, itself or as a function of the project."""
    return is_optimizer(module, call) or _builder(module, call) is not None


def models_of(module: Module, call: cst.Call) -> set[str]:
    """The names whose `.parameters()` or `.named_parameters()` occur in the arguments, or in what local names among
    these were assigned just before: ``groups = [{"params": model.parameters()}]``."""
    found = set()
    function = module.function_of(call)
    for arg in call.args:
        named = module.assignments(arg.value) if isinstance(arg.value, cst.Name) and function is not None else []
        for node in (n for given in (arg.value, *named[-1:]) for n in subtree(given)):
            if isinstance(node, cst.Call):
                owner, _, method = dotted(node.func).rpartition(".")
                if method in _TAKES:
                    found.add(owner)
    builder = _builder(module, call)
    if builder is not None and module.project is not None:
        of_object = builder.owner is not None
        places = [p.arg for p in parameters(builder.function)][of_object:]
        taken = _taken(module.project, builder.facts, builder.function)
        given = {dotted(argument(call, places.index(name), name)) for name in taken if name in places}
        own = {dotted(call.func).rpartition(".")[0]} if of_object and "self" in taken else set()
        found |= (given | own) - {""}
        found |= _made_together(module, call, builder)
    return found


def made_in(module: Module, call: cst.Call) -> Span | None:
    """Where the function of the project that a call runs makes the optimizer; None for an optimizer of torch's."""
    builder = _builder(module, call)
    made = calls_below(builder.function) if builder is not None else ()
    place = next((each for each in made if builder is not None and _makes_optimizer(builder.facts, each)), None)
    return builder.facts.file.span_of(place) if builder is not None and place is not None else None


def _made_together(module: Module, call: cst.Call, builder: Helper) -> set[str]:
    """The names that get a model from the function that makes its optimizer, too: ``model, optimizer = build()``."""
    up = module.parent(call)
    targets = up.targets[0].target if isinstance(up, cst.Assign) else None
    if not isinstance(targets, cst.Tuple):
        return set()
    taken = _models_taken(builder)
    return {
        dotted(target.value)
        for value in builder.returned
        if isinstance(value, ast.Tuple) and len(value.elts) == len(targets.elements)
        for target, part in zip(targets.elements, value.elts, strict=True)
        if dotted_ast(part) in taken
    } - {""}


def _models_taken(builder: Helper) -> set[str]:
    """The names in a function whose parameters its optimizers take, directly or by the names of lists of them."""
    values = dict(_assigned(builder.function))
    left = [value for value in values.values() if _makes_optimizer(builder.facts, value)]
    taken, seen = set[str](), set[str]()
    while left:
        for node in walk(left.pop()):
            owner, _, method = dotted_ast(node.func).rpartition(".") if isinstance(node, ast.Call) else ("", "", "")
            if method in _TAKES:
                taken.add(owner)
            if isinstance(node, ast.Name) and node.id in values and node.id not in seen:
                seen.add(node.id)
                left += [values[node.id]] if not isinstance(values[node.id], ast.Constant) else []
    return taken


def _builder(module: Module, call: cst.Call) -> Helper | None:
    """The function of the project that is called, if it makes an optimizer and returns it."""
    own = not module.qualified(call.func).startswith("torch.")
    helper = (helper_of(module, call) or _method(module, call)) if own else None
    if helper is None or not helper.facts.file.holds("optim"):
        return None
    made = {name for name, value in _assigned(helper.function) if _makes_optimizer(helper.facts, value)}
    parts = [part for value in helper.returned for part in (value.elts if isinstance(value, ast.Tuple) else (value,))]
    returns = any(dotted_ast(part) in made or _makes_optimizer(helper.facts, part) for part in parts)
    return helper if returns else None


def _method(module: Module, call: cst.Call) -> Helper | None:
    """The method of a model of the project that is called: ``model.configure_optimizers(lr)``."""
    if module.project is None or not isinstance(call.func, cst.Attribute):
        return None
    owner, _, name = module.callee(call).rpartition(".")
    found = module.project.classes.method(owner, name) if owner and is_module_class(module.project, owner) else None
    return Helper(found[0].module, found[1], found[0]) if found is not None else None


def _assigned(function: FunctionNode) -> Iterator[tuple[str, ast.expr]]:
    for node in statements(function):
        if isinstance(node, ast.Assign):
            yield from ((dotted_ast(target), node.value) for target in node.targets)


def _makes_optimizer(facts: ModuleFacts, value: ast.expr) -> bool:
    return isinstance(value, ast.Call) and _is_optimizer_name(facts.qualified(value.func) or "")


def _is_optimizer_name(name: str) -> bool:
    return name.startswith("torch.optim.") and "lr_scheduler" not in name


def _taken(project: Project, facts: ModuleFacts, function: FunctionNode, depth: int = 2) -> set[str]:
    """The parameters of a function whose own `parameters()` it takes, or a function that it hands them to."""
    names = {p.arg for p in parameters(function)}
    found = set()
    for call in calls_below(function):
        owner, _, method = dotted_ast(call.func).rpartition(".")
        given = {dotted_ast(a) for a in (*call.args, *(k.value for k in call.keywords))} & names
        if method in _TAKES and owner in names:
            found.add(owner)
        inner = project.meanings.definition(project.meanings.of(facts, call.func)) if given and depth else None
        if inner is not None and isinstance(inner[1], ast.FunctionDef):
            taken = _taken(project, inner[0], inner[1], depth - 1)
            places = [p.arg for p in parameters(inner[1])]
            found |= {given_for((places.index(name), name), call) for name in taken} & names
    return found
