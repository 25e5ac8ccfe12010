"""Whether the host needs a value that it reads in forward, and how often it reads it.

A size that an allocation or an all-to-all takes has to be on the host: one wait for it in a forward is the price of the
algorithm. What is read for every layer or item, or only to be computed with or reported, can be had without the wait.
"""

from __future__ import annotations

import ast
import collections
import functools
from collections.abc import Iterator

import libcst as cst

from ddp_lint.knowledge.tensors import is_log
from ddp_lint.launch.callers import call_sites
from ddp_lint.project import Project
from ddp_lint.source import dotted
from ddp_lint.source.imports import dotted_ast
from ddp_lint.source.syntax import below
from ddp_lint.source.tree import descendants
from ddp_lint.tensors import TensorFile
from ddp_lint.tensors.classes import ModuleClass
from ddp_lint.tensors.contexts import inside_graphs
from ddp_lint.view import Module

_LOOPS = (ast.For, ast.AsyncFor, ast.ListComp, ast.GeneratorExp, ast.SetComp, ast.DictComp)
#: Files that hold the name of a class; where more do, the search for a loop that makes it ends.
_FILES = 40
#: Functions of one file that call another one: fewer may never run together.
_SEVERAL = 3
#: Functions of numbers that hand the value on.
_NUMERIC = {"int", "float", "round", "max", "min", "abs", "math.sqrt", "math.log"}
#: Methods that keep what they are given to report it later.
_TELLING = {"append", "update", "add_scalar", "log", "log_dict", "put_scalar", "put_scalars", "add_scalars"}
#: Operations whose operand may be a tensor as well as a number.
_TAKE_TENSORS = {
    "add", "sub", "mul", "div", "pow", "clamp", "clip", "clamp_min", "clamp_max", "full_like", "masked_fill", "lerp",
    "add_", "sub_", "mul_", "div_", "clamp_", "masked_fill_", "fill_", "copy_", "where", "maximum", "minimum", "tensor",
    "as_tensor", "new_tensor",
}  # fmt: skip


def in_loop(module: Module, node: cst.CSTNode) -> bool:
    """Whether a `for` loop or a comprehension of the function runs over the line: what it iterates over is read
    once."""
    below_it = node
    for up in module.ancestors(node):
        if isinstance(up, cst.For) and below_it is up.body:
            return True
        if isinstance(up, (cst.ListComp, cst.GeneratorExp, cst.SetComp)) and below_it is up.elt:
            return True
        if isinstance(up, cst.DictComp) and below_it in (up.key, up.value):
            return True
        if isinstance(up, cst.CompIf):
            return True
        if isinstance(up, cst.FunctionDef):
            return False
        below_it = up
    return False


def repeated(module: Module, node: cst.CSTNode, *, per_layer: bool = True) -> bool:
    """Whether a forward comes by several times: in a loop, in a method that a loop of the class calls, in a helper that
    the functions of one file call all over, or (`per_layer`) in a module that the project makes in a loop."""
    function = module.function_of(node)
    if function is None:
        return False
    if in_loop(module, node):
        return True
    owner = TensorFile.of(module).owner(function)
    if owner is None:
        return _is_called_all_over(module, function)
    project = module.project
    if f"self.{function.name.value}" in _used_in_loops_of(project, owner):
        return True
    if project is None or not per_layer:
        return False
    return project.remember(("made in loops", owner.name), lambda: _is_made_in_loop(project, owner.name))


def _is_called_all_over(module: Module, function: cst.FunctionDef) -> bool:
    """Whether several functions of one file call a function: the steps of one computation, which all read anew."""
    sites = {(site.facts.name, site.around) for site in call_sites(module, function) if site.around is not None}
    return max(collections.Counter(name for name, _ in sites).values(), default=0) >= _SEVERAL


def _used_in_loops_of(project: Project | None, owner: ModuleClass) -> frozenset[str]:
    """The dotted names that loops in the methods of a class call, or hand to what calls them."""

    def names() -> frozenset[str]:
        return frozenset().union(*(_used_in_loops(method) for _, method in owner.methods.values()))

    return names() if project is None else project.remember(("in loops of", owner.name), names)


def _used_in_loops(tree: ast.AST) -> frozenset[str]:
    found: set[str] = set()
    stack: list[tuple[ast.AST, bool]] = [(tree, False)]
    while stack:
        node, looped = stack.pop()
        if looped and isinstance(node, (ast.Name, ast.Attribute)):
            found.add(dotted_ast(node))
        is_loop = isinstance(node, _LOOPS)
        for child in below(node):
            iterated = isinstance(node, (ast.For, ast.AsyncFor)) and child in (node.iter, node.target)
            first = isinstance(child, ast.comprehension)
            stack.append((child, looped or (is_loop and not iterated and not first)))
    return frozenset(found - {""})


def _is_made_in_loop(project: Project, name: str) -> bool:
    for path in project.contents.holding(f"{name}(")[:_FILES]:
        facts = project.modules.facts_of(path)
        if facts is None or facts.source.is_test:
            continue
        if name in project.remember(("in loops of file", path), functools.partial(_used_in_loops, facts.tree)):
            return True
    return False


def avoidable(module: Module, node: cst.BaseExpression, function: cst.FunctionDef) -> bool:
    """Whether all that is done with a value that was read could be done with the tensor: it is computed with, or kept
    to be reported."""
    uses = list(_uses(module, node, function, frozenset()))
    return all(_could_be_tensor(module, use, function) for use in uses)


def wanted_by_compiler(module: Module, node: cst.BaseExpression, function: cst.FunctionDef) -> bool:
    """Whether compiled code alone uses a value, and all code reads it: elsewhere a forward waits for nothing."""
    uses = list(_uses(module, node, function, frozenset()))
    return bool(uses) and not inside_graphs(module, node) and all(inside_graphs(module, use) for use in uses)


def _uses(
    module: Module, node: cst.BaseExpression, function: cst.FunctionDef, followed: frozenset[str]
) -> Iterator[cst.CSTNode]:
    """The places where a value ends up, through arithmetic on numbers and through names."""
    up = module.parent(node)
    if isinstance(up, cst.Arg):
        call = module.parent(up)
        if isinstance(call, cst.Call) and dotted(call.func) in _NUMERIC:
            yield from _uses(module, call, function, followed)
            return
    elif (isinstance(up, (cst.BinaryOperation, cst.UnaryOperation)) and not _with_tensor(module, up, function)) or (
        isinstance(up, cst.IfExp) and node is not up.test
    ):
        yield from _uses(module, up, function, followed)
        return
    elif isinstance(up, (cst.Assign, cst.AnnAssign)):
        targets = [t.target for t in up.targets] if isinstance(up, cst.Assign) else [up.target]
        if len(targets) == 1 and isinstance(targets[0], cst.Name):
            name = targets[0].value
            if name not in followed:
                for read in descendants(function.body):
                    if isinstance(read, cst.Name) and read.value == name and _is_read(module, read):
                        yield from _uses(module, read, function, followed | {name})
            return
    yield node


def _is_read(module: Module, name: cst.Name) -> bool:
    up = module.parent(name)
    if isinstance(up, cst.AssignTarget) or (isinstance(up, (cst.AnnAssign, cst.AugAssign)) and up.target is name):
        return False
    if isinstance(up, cst.Attribute):
        return up.value is name
    return not (isinstance(up, cst.Arg) and up.keyword is name)


def _with_tensor(module: Module, operation: cst.CSTNode, function: cst.FunctionDef) -> bool:
    flow = TensorFile.of(module).flow(function)
    parts = [operation.left, operation.right] if isinstance(operation, cst.BinaryOperation) else []
    return any(flow.value(part).tensorish for part in parts)


def _could_be_tensor(module: Module, use: cst.CSTNode, function: cst.FunctionDef) -> bool:
    up = module.parent(use)
    if isinstance(up, cst.BinaryOperation):
        return _with_tensor(module, up, function)
    if isinstance(up, cst.AugAssign):
        return isinstance(up.target, cst.Attribute) or TensorFile.of(module).flow(function).value(up.target).tensorish
    if isinstance(up, (cst.DictElement, cst.FormattedStringExpression, cst.Expr)):
        return True
    if isinstance(up, cst.Assign):
        target = up.targets[0].target
        return isinstance(target, cst.Subscript) and any(
            isinstance(n, (cst.SimpleString, cst.FormattedString)) for n in descendants(target.slice[0])
        )
    call = module.parent(up) if isinstance(up, cst.Arg) else None
    if isinstance(call, cst.Call):
        name = dotted(call.func)
        last = call.func.attr.value if isinstance(call.func, cst.Attribute) else name
        if name == "print" or is_log(name) or last in _TELLING:
            return True
        if name == "dict" or (last in _TAKE_TENSORS and isinstance(call.func, cst.Attribute)):
            return True
    return False
