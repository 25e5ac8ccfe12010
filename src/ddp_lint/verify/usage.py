"""What uses the parts of a model, or updates what an object keeps, and the tests that this is below, by the source."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from ddp_lint.knowledge import table
from ddp_lint.source.imports import last_part
from ddp_lint.source.syntax import calls_below
from ddp_lint.verify.control_flow import calls_at, functions_in, gates_before, names_of, rank_tests, tests_of, tree_at
from ddp_lint.verify.sources import lines_of, tree_of
from ddp_lint.verify.trace import Frame


def used_below(files: Sequence[str], classes: Mapping[str, str], names: Sequence[str]) -> str:
    """Of parameters: the conditions that every use of the parts of a model is below which hold them, '' where one of
    those is always used. `classes` are those of its modules by name: a part that is always used may have a
    forward that uses its own parts below a condition."""
    for depth in range(max((name.count(".") for name in names), default=0)):
        found = dict.fromkeys(_part_below(files, classes, name, depth) for name in names)
        parts = [part for part in found if part is not None]
        if len(parts) == len(found):
            return "; ".join(_used_at(list(same)) for _, same in itertools.groupby(parts, lambda part: part.gates))
    return ""


class _Part(NamedTuple):
    """A part of a model, the lines that use it, and the conditions that all of them are below."""

    name: str
    lines: tuple[int, ...]
    gates: tuple[str, ...]


def _used_at(parts: Sequence[_Part]) -> str:
    """Of parts that are used below the same conditions."""
    names = ", ".join(part.name for part in parts)
    lines = sorted({line for part in parts for line in part.lines})
    used = f"{names} {'are' if len(parts) > 1 else 'is'} used only at line{'s' * (len(lines) > 1)} "
    return f"{used}{', '.join(map(str, lines))}, depending on {' and '.join(parts[0].gates)}"


def _part_below(files: Sequence[str], classes: Mapping[str, str], name: str, depth: int) -> _Part | None:
    """The part at this depth that holds a parameter; None where it is always used."""
    path = name.split(".")
    if depth >= len(path) - 1:
        return None
    owner = classes.get(".".join(path[:depth]), "") if depth else ""
    uses = [frame for file in files for frame in _uses(file, path[depth], owner)] if owner or not depth else []
    gates = tuple(dict.fromkeys(tests_of(gates_before(frame)) for frame in uses))
    if not gates or not all(gates):
        return None
    return _Part(".".join(path[: depth + 1]), tuple(frame.line for frame in uses), gates)


def _uses(path: str, part: str, owner: str) -> Iterator[Frame]:
    """Where methods of a file (of one class, where it is named) read an attribute of this name, but for those that
    build."""
    tree = tree_of(path)
    within = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and node.name == owner]
    for function in (one for scope in (within if owner else [tree]) for one in functions_in(scope)):
        for node in ast.walk(function) if function.name != "__init__" else ():
            if isinstance(node, ast.Attribute) and node.attr == part and isinstance(node.ctx, ast.Load):
                for line in _called_in_rounds(function, node) or (node.lineno,):
                    yield Frame(path, line, function.name)


def _called_in_rounds(function: ast.FunctionDef, parts: ast.Attribute) -> list[int]:
    """Of a loop over the parts: the lines that call the one of the round (`for expert in self.experts: ...`)."""
    loops = (node for node in ast.walk(function) if isinstance(node, ast.For))
    loop = next((one for one in loops if any(node is parts for node in ast.walk(one.iter))), None)
    names = names_of(loop.target) if loop is not None else set()
    calls = [call for statement in loop.body for call in calls_below(statement)] if loop is not None else []
    return [call.lineno for call in calls if isinstance(call.func, ast.Name) and call.func.id in names]


def drawn_conditions(files: Sequence[str]) -> Iterator[Frame]:
    """The tests in methods of these files that a random number decides: what runs in a forward is another part each
    time."""
    draws = frozenset(table("tensors")["random"]["calls"])
    for path in files:
        for function in functions_in(tree_of(path)):
            drawn = {
                name
                for node in ast.walk(function)
                if isinstance(node, ast.Assign) and not draws.isdisjoint(_called(node.value))
                for name in names_of(node.targets[0])
            }
            nodes = ast.walk(function) if function.name != "__init__" else ()
            for test in (node.test for node in nodes if isinstance(node, ast.If | ast.IfExp)):
                if not draws.isdisjoint(_called(test)) or not drawn.isdisjoint(names_of(test)):
                    yield Frame(path, test.lineno, function.name)


def _called(node: ast.AST) -> set[str]:
    return {last_part(inner.func) for inner in calls_below(node)}


def kept_apart(site: Frame) -> str:
    """Of a line that copies what an object keeps: the function of its file that updates that, where it is called below
    a test of the rank, and the test."""
    tree = tree_at(site)
    read = {node for node in ast.walk(tree) if isinstance(node, ast.Attribute) and node.lineno == site.line}
    kept = {node.attr for node in read} - {last_part(node.func) for node in calls_below(tree)}
    for function in functions_in(tree):
        if function.name == "__init__" or site.line in lines_of(function.body) or not _updates(function, kept):
            continue
        calls = [n for n in calls_below(tree) if last_part(n.func) == function.name]
        gates = [rank_tests(site.path, call.lineno) for call in calls]
        if gates and all(gates):
            what = ", ".join(sorted(kept & names_of(function)))
            return f"{what} is updated by {function.name} (line {function.lineno}), which is called below {gates[0]}"
    return _updated_apart(site, tree)


def _updated_apart(site: Frame, tree: ast.Module) -> str:
    """The same of an object that a line reads: each call of its `update...()` is below a test of the rank."""
    read = {name for node in calls_at(site) for arg in node.args for name in names_of(arg)}
    updates = [
        node
        for node in calls_below(tree)
        if isinstance(node.func, ast.Attribute)
        and node.func.attr.startswith("update")
        and last_part(node.func.value) in read
    ]
    gates = [rank_tests(site.path, call.lineno) for call in updates]
    if not gates or not all(gates):
        return ""
    first = updates[0]
    return f"`{ast.unparse(first.func)}` is called at line {first.lineno}, below {gates[0]}"


def _updates(function: ast.FunctionDef, kept: set[str]) -> bool:
    """It assigns to one of these attributes or to their items, or calls what changes them in place."""
    for node in ast.walk(function):
        stored = isinstance(node, ast.Attribute | ast.Subscript) and isinstance(node.ctx, ast.Store)
        changes = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr.endswith("_")
        target = node.func if changes and isinstance(node, ast.Call) else node
        if (stored or changes) and not kept.isdisjoint(names_of(target)):
            return True
    return False
