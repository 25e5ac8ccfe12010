"""What an autograd function of the project saves for its backward, and then writes in place itself."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import NamedTuple

import libcst as cst

from ddp_lint.findings import Span
from ddp_lint.knowledge.tensors import names, writes
from ddp_lint.project.facts import ModuleFacts
from ddp_lint.source import dotted
from ddp_lint.source.control_flow import exclusive
from ddp_lint.source.imports import dotted_ast, last_part
from ddp_lint.source.queries import calls_in
from ddp_lint.source.syntax import parameters, walk
from ddp_lint.source.tree import called, descendants
from ddp_lint.view import Module


class Overwritten(NamedTuple):
    """A write to an argument of `forward` behind the call that has saved it: `node` is the write, or where it is in a
    function of the same file."""

    node: cst.CSTNode | Span
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
                yield Overwritten(_place(module, node), name, save)


def _is_of_autograd(module: Module, function: cst.FunctionDef) -> bool:
    of = module.class_of(function)
    return of is not None and any(module.qualified(base.value) in names("no_grad", "functions") for base in of.bases)


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
            found = method or (given and _written_by(module, node) is not None)
        elif isinstance(node, cst.AssignTarget):
            found = isinstance(node.target, cst.Subscript) and dotted(node.target.value) == name
        else:
            found = isinstance(node, cst.AugAssign) and dotted(node.target) == name
        if found:
            yield node


def _place(module: Module, write: cst.CSTNode) -> cst.CSTNode | Span:
    """Where to change something: in the function that writes what it is given, if that is in the same file."""
    found = _written_by(module, write) if isinstance(write, cst.Call) else None
    here = found is not None and found[0] is module.facts
    return found[0].file.span_of(found[1]) if here and found is not None else write


def _written_by(module: Module, call: cst.Call) -> tuple[ModuleFacts, ast.Call] | None:
    """Where the function of the project that is called writes what it is given first."""
    project = module.project
    found = (
        project.meanings.definition(project.meanings.canonical(module.callee(call))) if project is not None else None
    )
    function = found[1] if found is not None else None
    if found is None or not isinstance(function, ast.FunctionDef) or not parameters(function):
        return None
    first = parameters(function)[0].arg
    if any(isinstance(n, ast.Name) and n.id == first and isinstance(n.ctx, ast.Store) for n in walk(function)):
        return None
    calls = (n for n in walk(function) if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute))
    writing = (n for n in calls if writes(last_part(n.func)) and dotted_ast(n.func).rpartition(".")[0] == first)
    write = next(writing, None)
    return (found[0], write) if write is not None else None
