"""Calls that give parameters of a module new random values, themselves or in functions of the project."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Final

from ddp_lint.launch.by_rank import Place, called_function
from ddp_lint.project import Project
from ddp_lint.project.facts import ModuleFacts
from ddp_lint.source.imports import dotted_ast, last_part
from ddp_lint.source.syntax import FunctionNode, calls_below, positional, walk

#: Functions of `torch.nn.init` that draw.
_INIT: Final = "torch.nn.init."
_DRAWS: Final = frozenset({"uniform_", "normal_", "trunc_normal_", "orthogonal_", "sparse_"})
_FAMILIES: Final = ("xavier_", "kaiming_")
#: What goes over all parts of a module, or over its parameters.
_OVER: Final = frozenset(
    {"modules", "named_modules", "parameters", "named_parameters", "children", "named_children", "apply"}
)
#: Words by which a function makes the ranks draw alike, or brings them into one state.
_AGREES: Final = ("seed", "broadcast", "rng_state", "all_reduce", "get_rank", "generator")
_DEPTH: Final = 2


def drawn_again(project: Project, call: ast.Call, place: Place) -> ast.Call | None:
    """The draw by which a call of the project's own function on a module changes parameters of it: ``reset(model)``,
    ``model.apply(reset)``. None where the function may agree with the other ranks."""
    found = _applied(project, call, place) if last_part(call.func) == "apply" else called_function(project, call, place)
    if found is None or any(word in ast.unparse(found[1]) for word in _AGREES):
        return None
    facts, function = found
    if last_part(call.func) != "apply" and not _goes_over(function, call):
        return None
    return next(_draws(project, facts, function, _DEPTH), None)


def _applied(project: Project, call: ast.Call, place: Place) -> tuple[ModuleFacts, FunctionNode] | None:
    """The function that a module is to run on each of its parts."""
    given = call.args[0] if len(call.args) == 1 else None
    if not isinstance(given, (ast.Name, ast.Attribute)):
        return None
    own = (node for node in walk(place.around or place.facts.tree) if isinstance(node, FunctionNode))
    local = next((node for node in own if node.name == dotted_ast(given)), None)
    if local is not None:
        return place.facts, local
    found = project.meanings.definition(project.meanings.of(place.facts, given))
    return (found[0], found[1]) if found is not None and isinstance(found[1], FunctionNode) else None


def _goes_over(function: FunctionNode, call: ast.Call) -> bool:
    """Whether a function goes over the parts of the one module that a call gives it."""
    names = [each.arg for each in positional(function)]
    if len(call.args) != 1 or not names:
        return False
    wanted = {f"{names[0]}.{way}" for way in _OVER} | {f"{names[0]}.module.{way}" for way in _OVER}
    return any(dotted_ast(each.func) in wanted for each in calls_below(function))


def _draws(project: Project, facts: ModuleFacts, function: FunctionNode, depth: int) -> Iterator[ast.Call]:
    """The draws of a function into parameters, itself or in what it calls; the call of its own is what counts."""
    for call in calls_below(function):
        if is_draw(facts, call):
            yield call
            continue
        found = called_function(project, call, Place(facts, function)) if depth else None
        if found is not None and found[1] is not function:
            yield from (call for _ in _draws(project, *found, depth - 1))


def is_draw(facts: ModuleFacts, call: ast.Call) -> bool:
    """Whether a call draws into a weight: ``nn.init.normal_(m.weight)``, ``m.weight.data.normal_()``."""
    if any(keyword.arg == "generator" for keyword in call.keywords):
        return False
    name = last_part(call.func)
    if name not in _DRAWS and not name.startswith(_FAMILIES):
        return False
    if facts.qualified(call.func).startswith(_INIT):
        target = call.args[0] if call.args else None
    else:
        target = call.func.value if isinstance(call.func, ast.Attribute) else None
    return isinstance(target, (ast.Name, ast.Attribute)) and "bias" not in dotted_ast(target)


def over_parts_of(loop: ast.expr) -> str:
    """The module over whose parts a loop goes, by its dotted name; '' for any other loop."""
    func = loop.func if isinstance(loop, ast.Call) else None
    return dotted_ast(func.value) if isinstance(func, ast.Attribute) and func.attr in _OVER - {"apply"} else ""
