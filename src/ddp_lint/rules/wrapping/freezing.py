"""Where the gradients of a model, or of a part of one, are turned on and off."""

from __future__ import annotations

import ast
import dataclasses
import re

import libcst as cst

from ddp_lint.launch.helpers import helper_of
from ddp_lint.source import dotted
from ddp_lint.source.control_flow import exclusive
from ddp_lint.source.imports import dotted_ast, last_part
from ddp_lint.source.queries import model_path
from ddp_lint.source.syntax import FunctionNode, defaults, parameters, statements_in_order
from ddp_lint.source.tree import descendants, method_of
from ddp_lint.view import Module
from ddp_lint.view.wraps import argument

Change = tuple[str, cst.BaseExpression]  # the model, or its part, by its dotted name, and what is set

#: In the names of functions that do it.
_SAYS_SO = re.compile(r"grad|freez|frozen|train", re.IGNORECASE)
_TRUE, _FALSE = cst.Name("True"), cst.Name("False")


def change_of(module: Module, node: cst.CSTNode) -> Change | None:
    """What a call or an assignment sets `requires_grad` of, and to what: ``net.requires_grad_(False)``,
    ``p.requires_grad = False`` in a loop over ``net.parameters()``, ``set_requires_grad(net, False)`` by a function of
    the project."""
    if isinstance(node, cst.Assign):
        target = node.targets[0].target
        if isinstance(target, cst.Attribute) and target.attr.value == "requires_grad":
            return model_path(module, target.value), node.value
    if isinstance(node, cst.Call):
        if isinstance(node.func, cst.Attribute) and node.func.attr.value == "requires_grad_":
            return model_path(module, node.func.value), node.args[0].value if node.args else _TRUE
        return _by_function(module, node)
    return None


@dataclasses.dataclass(frozen=True)
class Changes:
    """The changes in each function of a file, looked for once: many calls of one function ask for those before it."""

    module: Module
    known: dict[cst.FunctionDef, list[tuple[cst.CSTNode, Change]]] = dataclasses.field(default_factory=dict)

    def is_frozen(self, name: str, node: cst.CSTNode) -> bool:
        """Whether the function around a place has turned the gradients of a whole model off, and not on again."""
        order, function = self.module.order, self.module.function_of(node)
        before = [
            (each, change)
            for each, change in (self._within(function) if function is not None else ())
            if change[0].removesuffix(".module") == name
            and order[each] < order[node]
            and not exclusive(self.module, each, node)
        ]
        return bool(before) and dotted(before[-1][1][1]) == "False"

    def _within(self, function: cst.FunctionDef) -> list[tuple[cst.CSTNode, Change]]:
        if function not in self.known:
            nodes = [n for n in descendants(function.body) if isinstance(n, (cst.Call, cst.Assign))]
            found = ((each, change_of(self.module, each)) for each in nodes)
            made = [(each, change) for each, change in found if change is not None]
            self.known[function] = sorted(made, key=lambda change: self.module.order[change[0]])
        return self.known[function]


def set_in(function: FunctionNode) -> list[tuple[str, bool, ast.stmt]]:
    """What a method sets `requires_grad` of, itself: the parts of its object by their dotted names, what to, and where,
    in the order in which it is written."""
    found: list[tuple[str, bool, ast.stmt]] = []
    for node in statements_in_order(function):
        over = node.iter if isinstance(node, ast.For) and isinstance(node.iter, ast.Call) else None
        if isinstance(node, ast.For) and over is not None and last_part(over.func) == "parameters":
            target, part = dotted_ast(node.target), dotted_ast(over.func).removesuffix(".parameters")
            value = _set_to(node.body[0], target)
            found += [(part, value, node.body[0])] if value is not None and len(node.body) == 1 else []
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            part = dotted_ast(node.value.func).removesuffix(".requires_grad_")
            value = _set_to(node, part)
            found += [(part, value, node)] if value is not None and f"{part}." != dotted_ast(node.value.func) else []
    return [(part, value, node) for part, value, node in found if part.startswith("self.")]


def _set_to(statement: ast.stmt, name: str) -> bool | None:
    """The constant that ``name.requires_grad = False`` or ``name.requires_grad_(False)`` sets."""
    value: ast.expr | None = None
    if isinstance(statement, ast.Assign) and dotted_ast(statement.targets[0]) == f"{name}.requires_grad":
        value = statement.value
    call = statement.value if isinstance(statement, ast.Expr) else None
    if isinstance(call, ast.Call) and dotted_ast(call.func) == f"{name}.requires_grad_":
        value = call.args[0] if call.args else ast.Constant(True)
    known = isinstance(value, ast.Constant) and isinstance(value.value, bool)
    return bool(value.value) if known and isinstance(value, ast.Constant) else None


def _by_function(module: Module, call: cst.Call) -> Change | None:
    """The change by a function that does nothing to a model but this."""
    if not call.args or method_of(call) == "requires_grad_" or any(arg.star for arg in call.args):
        return None
    helper = helper_of(module, call) if _SAYS_SO.search(dotted(call.func)) else None
    if helper is None or helper.owner is not None or not isinstance(helper.function, ast.FunctionDef):
        return None
    places = [parameter.arg for parameter in parameters(helper.function)]
    set_by = _sets(helper.function, places)
    if set_by is None:
        return None
    model = argument(call, places.index(set_by[0]), set_by[0])
    if model is None:
        return None
    value: ast.expr | None = set_by[1]
    if isinstance(value, ast.Name):
        given = argument(call, places.index(value.id), value.id)
        if given is not None:
            return model_path(module, model), given
        value = {each.arg: default for each, default in defaults(helper.function.args)}.get(value.id)
    if not isinstance(value, ast.Constant) or not isinstance(value.value, bool):
        return None
    return model_path(module, model), _TRUE if value.value else _FALSE


def _sets(function: FunctionNode, places: list[str]) -> tuple[str, ast.expr] | None:
    """The parameter of a function that is a model whose gradients it sets, and what to: a constant, or the name of
    another parameter."""
    statements = [s for s in function.body if not (isinstance(s, ast.Expr) and isinstance(s.value, ast.Constant))]
    if len(statements) != 1:
        return None
    statement, name = statements[0], ""
    if isinstance(statement, ast.For) and isinstance(statement.iter, ast.Call) and len(statement.body) == 1:
        if last_part(statement.iter.func) != "parameters" or not isinstance(statement.target, ast.Name):
            return None
        name = dotted_ast(statement.iter.func).removesuffix(".parameters")
        target, statement = statement.target.id, statement.body[0]
    else:
        target = ""
    if isinstance(statement, ast.Assign) and target and dotted_ast(statement.targets[0]) == f"{target}.requires_grad":
        value = statement.value
    elif isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        call = statement.value
        if last_part(call.func) != "requires_grad_" or len(call.args) != 1:
            return None
        owner = dotted_ast(call.func).rpartition(".")[0]
        name, value = name if owner == target and name else owner, call.args[0]
    else:
        return None
    known = isinstance(value, ast.Constant) or (isinstance(value, ast.Name) and value.id in places)
    return (name, value) if name in places and known else None
