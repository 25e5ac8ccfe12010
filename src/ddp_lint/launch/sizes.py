"""How many ranks a program starts itself, as far as its code decides that."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence

from ddp_lint.knowledge import table
from ddp_lint.launch.joining import spawns
from ddp_lint.project import Project
from ddp_lint.project.facts import ModuleFacts
from ddp_lint.project.parts import assigned_to
from ddp_lint.source.imports import dotted_ast
from ddp_lint.source.syntax import argument_at, defaults, function_at, positional, walk

#: What a program is given by name: the constants among its arguments.
_Given = dict[str, object]


def spawns_one(facts: ModuleFacts, project: Project) -> bool:
    """Whether all ranks that a program starts by ``torch.multiprocessing.spawn`` are one process each time, and it asks
    for none that a launcher has started: ``nprocs=1``, also by settings that a function of the project returns with a
    size of 1 for what it is given (``get_config(path, mode="eval")``)."""
    if not facts.file.holds("spawn") or any(map(facts.file.holds, table("launch")["several_ranks"]["environment"])):
        return False
    calls = [*spawns(facts, project)]
    return bool(calls) and all(_is_one(facts, project, call) for call in calls)


def _is_one(facts: ModuleFacts, project: Project, call: ast.Call) -> bool:
    if any(isinstance(each, ast.Starred) for each in call.args) or any(each.arg is None for each in call.keywords):
        return False
    size = argument_at(call, 2, "nprocs")
    return size is None or _is_number_one(size) or _is_set_to_one(facts, project, call, size)


def _is_number_one(size: ast.AST | None) -> bool:
    return isinstance(size, ast.Constant) and type(size.value) is int and size.value == 1


def _is_set_to_one(facts: ModuleFacts, project: Project, call: ast.Call, size: ast.expr) -> bool:
    """Whether a size is an entry of settings (``cfg["ddp"]["world_size"]``) that the function sets which makes them."""
    name = size
    while isinstance(name, (ast.Subscript, ast.Attribute)):
        name = name.value
    if name is size or not isinstance(name, ast.Name):
        return False
    scope = function_at(facts.tree, call.lineno) or facts.tree
    made = assigned_to(name.id, scope)
    if len(made) != 1 or not isinstance(made[0], ast.Call) or _is_changed(scope, size, name.id):
        return False
    found = project.meanings.definition(project.meanings.of(facts, made[0].func))
    function = found[1] if found is not None else None
    if not isinstance(function, ast.FunctionDef) or function.decorator_list:
        return False
    returned = {dotted_ast(n.value) if n.value else "" for n in walk(function) if isinstance(n, ast.Return)}
    if len(returned) != 1 or not (own := returned.pop()):
        return False
    entry = own + ast.unparse(size).removeprefix(name.id)
    return _is_number_one(_last_set(function.body, entry, _given(function, made[0]), None))


def _is_changed(scope: ast.AST, size: ast.expr, name: str) -> bool:
    """Whether the program itself sets the entry, or part of the settings around it."""
    text, targets = ast.unparse(size), (n for n in walk(scope) if isinstance(n, (ast.Subscript, ast.Attribute)))
    stored = (ast.unparse(n) for n in targets if not isinstance(n.ctx, ast.Load))
    return any(text.startswith(each) for each in stored if each.startswith(name))


def _given(function: ast.FunctionDef, call: ast.Call) -> _Given:
    """The constants that a call gives the parameters of a function, or that these have as their defaults."""
    kept = {each.arg: value for each, value in defaults(function.args) if value is not None}
    places = [each.arg for each in positional(function)]
    names = [*places, *(each.arg for each in function.args.kwonlyargs)]
    values = {
        name: argument_at(call, places.index(name) if name in places else len(call.args), name) or kept.get(name)
        for name in names
    }
    return {name: value.value for name, value in values.items() if isinstance(value, ast.Constant)}


def _last_set(block: Sequence[ast.stmt], entry: str, given: _Given, before: ast.expr | None) -> ast.expr | None:
    """What a block sets an entry to at last, by the arms that it takes for what is given; `before` where it sets it
    nowhere, and None where that depends on something else."""
    for statement in block:
        if not any(_may_set(node, entry) for node in walk(statement)):
            continue
        if isinstance(statement, ast.Assign) and any(ast.unparse(target) == entry for target in statement.targets):
            before = statement.value
        elif isinstance(statement, ast.With):
            before = _last_set(statement.body, entry, given, before)
        elif isinstance(statement, ast.If) and (taken := _outcome(statement.test, given)) is not None:
            before = _last_set(statement.body if taken else statement.orelse, entry, given, before)
        else:
            before = None
    return before


def _may_set(node: ast.AST, entry: str) -> bool:
    """Whether a node gives an entry a value, or the settings around it (``cfg = {}``, ``cfg["ddp"] = other``), or is a
    call that may (``cfg.update(other)``)."""
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Call) and any(dotted_ast(n) == _root(entry) for n in walk(node))
    stored = isinstance(node, (ast.Subscript, ast.Attribute, ast.Name)) and not isinstance(node.ctx, ast.Load)
    return stored and re.match(rf"{re.escape(ast.unparse(node))}(?![^\[.])", entry) is not None


def _root(entry: str) -> str:
    return re.split(r"[\[.]", entry, maxsplit=1)[0]


def _outcome(test: ast.expr, given: _Given) -> bool | None:
    """What ``mode == "eval"`` comes to for what is given; None for any other test."""
    if not isinstance(test, ast.Compare) or len(test.ops) != 1 or not isinstance(test.left, ast.Name):
        return None
    other, operator = test.comparators[0], test.ops[0]
    if test.left.id not in given or not isinstance(other, ast.Constant):
        return None
    equal = given[test.left.id] == other.value
    return equal if isinstance(operator, ast.Eq) else not equal if isinstance(operator, ast.NotEq) else None
