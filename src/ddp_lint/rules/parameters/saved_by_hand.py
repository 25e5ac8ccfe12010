"""What an autograd function of the project saves for its backward, and then writes in place itself."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import NamedTuple

import libcst as cst

from ddp_lint.source import Module, dotted
from ddp_lint.source.control_flow import exclusive
from ddp_lint.source.imports import dotted_ast
from ddp_lint.source.queries import calls_in
from ddp_lint.source.syntax import parameters, walk
from ddp_lint.source.tree import called, descendants
from ddp_lint.tensors.operations import writes

_AUTOGRAD = ("torch.autograd.Function", "torch.autograd.function.Function", "torch.autograd.function.InplaceFunction")


class Overwritten(NamedTuple):
    """A write to an argument of `forward` behind the call that has saved it."""

    node: cst.CSTNode
    name: str
    save: cst.Call


def overwritten(module: Module, forward: cst.FunctionDef) -> Iterator[Overwritten]:
    """The writes to arguments that ``ctx.save_for_backward(x)`` has saved. What ``ctx.mark_dirty(x)`` names is meant to
    be written: its backward takes the result."""
    given = [parameter.name.value for parameter in forward.params.params]
    if forward.name.value != "forward" or len(given) < 2 or not _is_of_autograd(module, forward):
        return
    calls = list(calls_in(forward.body))
    dirty = {dotted(arg.value) for call in calls if called(call) == "mark_dirty" for arg in call.args}
    for save in calls:
        if dotted(save.func) != f"{given[0]}.save_for_backward":
            continue
        for name in {dotted(arg.value) for arg in save.args}.intersection(given[1:]) - dirty:
            node = next((n for n in _writes(module, forward, name) if _comes_after(module, n, save, name)), None)
            if node is not None:
                yield Overwritten(node, name, save)


def _is_of_autograd(module: Module, function: cst.FunctionDef) -> bool:
    of = module.class_of(function)
    return of is not None and any(module.qualified(base.value) in _AUTOGRAD for base in of.bases)


def _comes_after(module: Module, write: cst.CSTNode, save: cst.Call, name: str) -> bool:
    """Whether the write is behind the save, on a way that leads to both, to the very tensor that was saved."""
    bindings = module.bindings(name, write)
    same = all(binding.kind in ("parameter", "augment") for binding in bindings)
    return same and module.span(write).line >= module.span(save).line and not exclusive(module, write, save)


def _writes(module: Module, function: cst.FunctionDef, name: str) -> Iterator[cst.CSTNode]:
    """What writes a variable in place, itself or by a function of the project that is given it first."""
    for node in descendants(function.body):
        if isinstance(node, cst.Call):
            method = isinstance(node.func, cst.Attribute) and dotted(node.func.value) == name and writes(called(node))
            given = bool(node.args) and dotted(node.args[0].value) == name
            found = method or (given and _writes_its_first(module, node))
        elif isinstance(node, cst.AssignTarget):
            found = isinstance(node.target, cst.Subscript) and dotted(node.target.value) == name
        else:
            found = isinstance(node, cst.AugAssign) and dotted(node.target) == name
        if found:
            yield node


def _writes_its_first(module: Module, call: cst.Call) -> bool:
    project = module.project
    found = project.definition(project.canonical(module.callee(call))) if project is not None else None
    function = found[1] if found is not None else None
    if not isinstance(function, ast.FunctionDef) or not parameters(function):
        return False
    first = parameters(function)[0].arg
    if any(isinstance(n, ast.Name) and n.id == first and isinstance(n.ctx, ast.Store) for n in walk(function)):
        return False
    targets = (n.func for n in walk(function) if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute))
    return any(dotted_ast(target.value) == first and writes(target.attr) for target in targets)
