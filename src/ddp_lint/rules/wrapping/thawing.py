"""Methods of a model that turn on the gradients which its constructor has turned off, called when DDP has placed its
hooks."""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Iterator

from ddp_lint.project import Project
from ddp_lint.project.facts import ModuleFacts
from ddp_lint.rules.wrapping.freezing import set_in
from ddp_lint.source.imports import dotted_ast, last_part, of_self
from ddp_lint.source.syntax import (
    FunctionNode,
    calls_below,
    defaults,
    function_at,
    holds_line,
    statements_in_order,
    walk,
)

_MODULE = "torch.nn.Module"
_WRAPS = frozenset({"DistributedDataParallel", "DDP"})


@dataclasses.dataclass(frozen=True)
class Thawed:
    """Where a part is frozen, where it is unfrozen, and the call behind a wrapper that does so."""

    frozen: ast.stmt
    place: ast.stmt
    caller: ModuleFacts
    call: ast.Call


def thawed_behind_wrapper(project: Project, facts: ModuleFacts, owner: ast.ClassDef) -> Iterator[Thawed]:
    """For each part of a model that its constructor freezes, the method that unfreezes it, where the project calls
    that by ``model.module.unfreeze()`` and does not wrap the model again behind the call."""
    cls = project.classes.of(facts, owner)
    init = cls.methods.get("__init__")
    if init is None or not project.classes.subclass_of(cls.name, _MODULE):
        return
    off = {part: place for part, value, place in _set_by_constructor(cls.methods, init) if not value}
    for name, method in cls.methods.items() if off else ():
        on = [(part, place) for part, value, place in set_in(method) if value and part in off and method is not init]
        if not on or _runs_before(init, name) or _others_define(project, facts, name):
            continue
        for caller, call in _calls(project, name):
            if not _wraps_behind(project, caller, call):
                yield Thawed(off[on[0][0]], on[0][1], caller, call)
                break


def _set_by_constructor(methods: dict[str, FunctionNode], init: FunctionNode) -> Iterator[tuple[str, bool, ast.stmt]]:
    """What a constructor sets, the last value of each part, itself or by a method; not under a flag that is off by
    default."""
    flags = {each.arg for each, value in defaults(init.args) if isinstance(value, ast.Constant) and not value.value}
    by_flag = [
        n
        for n in statements_in_order(init)
        if isinstance(n, ast.If) and any(isinstance(each, ast.Name) and each.id in flags for each in walk(n.test))
    ]
    found = set_in(init)
    for statement in init.body:
        call = statement.value if isinstance(statement, ast.Expr) else None
        name = of_self(dotted_ast(call.func)) if isinstance(call, ast.Call) else ""
        found += set_in(methods[name]) if name in methods else []
    last = {part: (part, value, place) for part, value, place in found}
    for part, value, place in last.values():
        if not any(holds_line(each.body, place.lineno) for each in by_flag):
            yield part, value, place


def _runs_before(init: FunctionNode, name: str) -> bool:
    """Whether a constructor calls the method itself."""
    return any(of_self(dotted_ast(call.func)) == name for call in calls_below(init))


def _others_define(project: Project, facts: ModuleFacts, name: str) -> bool:
    """Whether another class of the project has a method of this name, which the call may mean."""
    files = project.modules.but_tests(project.contents.holding(f"def {name}("))
    nodes = [n for each in files for n in walk(each.tree) if isinstance(n, FunctionNode) and n.name == name]
    return len(nodes) != 1


def _calls(project: Project, name: str) -> Iterator[tuple[ModuleFacts, ast.Call]]:
    for each in project.modules.but_tests(project.contents.holding(f".module.{name}(")):
        for call in calls_below(each.tree):
            if dotted_ast(call.func).endswith(f".module.{name}"):
                yield each, call


def _wraps_behind(project: Project, facts: ModuleFacts, call: ast.Call) -> bool:
    """Whether the function around wraps a model behind a call, itself or by a function of the project that it calls."""
    function = function_at(facts.tree, call.lineno)
    for each in calls_below(function or facts.tree):
        if each.lineno <= call.lineno:
            continue
        found = project.meanings.definition(project.meanings.of(facts, each.func))
        inner = calls_below(found[1]) if found is not None else iter(())
        if any(last_part(one.func) in _WRAPS for one in (each, *inner)):
            return True
    return False
