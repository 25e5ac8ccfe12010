"""Locks and turns in which the processes of a machine come one after the other."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import libcst as cst

from ddp_lint.launch.callers import CallSite, sites_in_project
from ddp_lint.launch.one_rank import BARRIERS, has_turns, on_one_rank
from ddp_lint.project import Project
from ddp_lint.project.parts import assigned_to
from ddp_lint.source import dotted
from ddp_lint.source.imports import dotted_ast
from ddp_lint.source.queries import calls_in
from ddp_lint.source.syntax import FunctionNode, holds_line, statements, text_of
from ddp_lint.source.tree import called
from ddp_lint.view import Module

#: Calls that lead to a place which are looked at, one above the other, and at each step.
_ABOVE, _CALLS = 5, 20
#: Of filelock, fasteners, portalocker, and what projects name so: a `threading.Lock` holds in one process alone.
_LOCK = re.compile(r"file_?lock$|(\b|_)inter_?process_?lock$|^portalocker\.([\w.]*\.)?R?Lock$", re.IGNORECASE)


def is_machine_lock(name: str) -> bool:
    """Whether a class or function of that dotted name gives a lock for all processes: ``filelock.FileLock``."""
    return _LOCK.search(name) is not None


def is_locked(module: Module, node: cst.CSTNode) -> bool:
    """Whether a lock for all processes is held at a place: ``with FileLock(path):``, also by its name."""
    locks = (_taken(held) for held in _held(module, node))
    made = (value for lock in locks for value in (lock, *module.assignments(lock)))
    makers = (value.func for value in made if isinstance(value, cst.Call))
    return any(is_machine_lock(module.qualified(maker) or dotted(maker)) for maker in makers)


class Turns:
    """Where in a module the first rank comes by before the others."""

    def __init__(self, module: Module) -> None:
        self.module = module
        self._calls: dict[cst.FunctionDef | None, dict[str, list[cst.Call]]] = {}
        self._first: dict[tuple[cst.FunctionDef | None, str], bool] = {}

    def has(self, call: cst.Call, name: str = "") -> bool:
        """Whether it does so at a call: under a lock or ``with main_process_first():``, or where one rank alone has a
        barrier in the function, or a call of `name`."""
        if any("first" in self.module.code(each) for each in _held(self.module, call)) or is_locked(self.module, call):
            return True
        function = self.module.function_of(call)
        return any(self._is_of_first(function, each) for each in (*BARRIERS, name) if each)

    def _is_of_first(self, function: cst.FunctionDef | None, name: str) -> bool:
        """Whether one rank alone makes a call by a name in a function: a barrier by its last one."""
        key = function, name
        if key not in self._first:
            calls = self._calls_of(function).get(name, ())
            self._first[key] = any(on_one_rank(self.module, each) for each in calls)
        return self._first[key]

    def _calls_of(self, function: cst.FunctionDef | None) -> dict[str, list[cst.Call]]:
        if function not in self._calls:
            found = self._calls.setdefault(function, {})
            for call in calls_in(function.body if function is not None else self.module.tree):
                last = called(call)
                found.setdefault(last if last in BARRIERS else self.module.qualified(call.func), []).append(call)
        return self._calls[function]


def is_called_in_turn(site: CallSite) -> bool:
    """Whether the first rank makes a call before the others, as far as the function around it shows."""
    around = site.around
    if around is None:
        return False
    return has_turns(around, site.node) or any(_lets_one_first(held, around) for held in _holding(around, site.node))


def is_way_in_turn(project: Project, site: CallSite) -> bool:
    """The same of a call, or of one of those that lead to it."""
    level, seen = [site], {site.node}
    for _ in range(_ABOVE):
        if any(map(is_called_in_turn, level)):
            return True
        above = [up for each in level if each.around for up in sites_in_project(project, each.facts, each.around)]
        level = list({up.node: up for up in above if up.node not in seen}.values())[:_CALLS]
        seen |= {up.node for up in level}
    return False


def _holding(function: FunctionNode, node: ast.Call) -> Iterator[ast.expr]:
    """What the `with` around a place of a function hold."""
    for up in statements(function):
        if isinstance(up, ast.With) and holds_line(up.body, node.lineno):
            yield from (item.context_expr for item in up.items)


def _lets_one_first(held: ast.expr, function: FunctionNode) -> bool:
    if "first" in text_of(held):
        return True
    acquires = isinstance(held, ast.Call) and isinstance(held.func, ast.Attribute) and held.func.attr == "acquire"
    lock = held.func.value if acquires else held  # type: ignore[attr-defined]
    made = (lock, *(assigned_to(lock.id, function) if isinstance(lock, ast.Name) else ()))
    return any(isinstance(value, ast.Call) and is_machine_lock(dotted_ast(value.func)) for value in made)


def _held(module: Module, node: cst.CSTNode) -> list[cst.BaseExpression]:
    """What the `with` around a place hold."""
    return [item.item for up in module.ancestors(node) if isinstance(up, cst.With) for item in up.items]


def _taken(held: cst.BaseExpression) -> cst.BaseExpression:
    """The lock of ``with lock:`` and of ``with lock.acquire():``."""
    if isinstance(held, cst.Call) and isinstance(held.func, cst.Attribute) and called(held) == "acquire":
        return held.func.value
    return held
