"""Objects that write into the parameters of a model that they were made with: an average that is copied back."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping

from ddp_lint.project.facts import ClassFacts, paired
from ddp_lint.source.imports import dotted_ast, last_part, of_self
from ddp_lint.source.syntax import FunctionNode, argument_at, defaults, parameters, walk

#: Methods of a tensor that write into it.
_WRITES = frozenset({"copy_", "lerp_", "mul_", "add_", "sub_", "div_", "set_"})


def writes_back(owner: ClassFacts, method: str, made: ast.Call) -> tuple[ast.AST, ast.expr] | None:
    """Where a method of an object writes into the parameters of the model that its constructor got, as `made` calls
    it, and what the constructor got. None as well where another method does so, too: it may restore what was there."""
    constructor = owner.methods.get("__init__")
    if constructor is None:
        return None
    kept = _kept_arguments(constructor)
    found = {name: place for name, each in owner.methods.items() if (place := _written(each, kept)) is not None}
    if set(found) != {method}:
        return None
    write, attribute, tests = found[method]
    given = _given(constructor, made)
    if not all(_holds(test, kept, given) for test in tests):
        return None
    model = given.get(kept[attribute])
    return (write, model) if model is not None else None


def _kept_arguments(constructor: FunctionNode) -> Mapping[str, str]:
    """The attributes that hold what the constructor gets for a parameter, by its name."""
    names = {each.arg for each in parameters(constructor)}
    found: dict[str, str] = {}
    for node in walk(constructor):
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            target, value = node.targets[0], node.value
            for to, what in paired(target, value):
                if of_self(dotted_ast(to)) and dotted_ast(what) in names:
                    found[of_self(dotted_ast(to))] = dotted_ast(what)
    return found


def _written(method: FunctionNode, kept: Mapping[str, str]) -> tuple[ast.AST, str, list[ast.expr]] | None:
    """A write into the parameters of a kept model in a loop over them, its attribute, and the tests around it."""
    for loop, tests in _loops(method.body, []):
        for name, over in _elements(loop):
            owner, _, called = dotted_ast(over.func).rpartition(".") if isinstance(over, ast.Call) else ("", "", "")
            if called != "parameters" or of_self(owner) not in kept:
                continue
            for node in walk(loop):
                target = node.targets[0] if isinstance(node, ast.Assign) else None
                by_method = isinstance(node, ast.Call) and last_part(node.func) in _WRITES
                written = dotted_ast(node.func).rpartition(".")[0] if isinstance(node, ast.Call) and by_method else ""
                if written in (name, f"{name}.data") or (target is not None and dotted_ast(target) == f"{name}.data"):
                    return node, of_self(owner), tests
    return None


def _loops(body: list[ast.stmt], tests: list[ast.expr]) -> Iterator[tuple[ast.For, list[ast.expr]]]:
    """The loops of a body, each with the tests around it that hold there."""
    for statement in body:
        if isinstance(statement, ast.For):
            yield statement, tests
        elif isinstance(statement, ast.If):
            yield from _loops(statement.body, [*tests, statement.test])
        elif isinstance(statement, ast.With):
            yield from _loops(statement.body, tests)


def _elements(loop: ast.For) -> Iterator[tuple[str, ast.expr]]:
    """The names that a loop binds, each with what it goes through: of ``for s, p in zip(a, b)`` two."""
    if isinstance(loop.target, ast.Tuple) and isinstance(loop.iter, ast.Call) and last_part(loop.iter.func) == "zip":
        for name, over in zip(loop.target.elts, loop.iter.args, strict=False):
            yield dotted_ast(name), over
    else:
        yield dotted_ast(loop.target), loop.iter


def _given(constructor: FunctionNode, made: ast.Call) -> dict[str, ast.expr]:
    """What a call gives the parameters of a constructor, or their defaults."""
    names = [each.arg for each in parameters(constructor)][1:]
    known = {each.arg: value for each, value in defaults(constructor.args) if value is not None}
    given = {name: value for place, name in enumerate(names) if (value := argument_at(made, place, name)) is not None}
    return {**known, **given}


def _holds(test: ast.expr, kept: Mapping[str, str], given: Mapping[str, ast.expr]) -> bool:
    """Whether a test may hold in some round: no attribute that it asks for is what turns the writing off."""
    parts = test.values if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And) else [test]
    for part in parts:
        value = given.get(kept.get(of_self(dotted_ast(part)), ""))
        if of_self(dotted_ast(part)) and (value is None or (isinstance(value, ast.Constant) and not value.value)):
            return False
    return True
