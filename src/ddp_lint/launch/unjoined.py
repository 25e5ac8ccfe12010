"""Tests for the first rank that every process passes: they ask the process group, which does not exist yet."""

from __future__ import annotations

import ast
import dataclasses

import libcst as cst

from ddp_lint.knowledge import table
from ddp_lint.launch.callers import CallSite, call_sites
from ddp_lint.launch.helpers import Helper, helper_of
from ddp_lint.launch.joining import joining_functions
from ddp_lint.project import Project
from ddp_lint.project.facts import ModuleFacts
from ddp_lint.source.control_flow import conditions, conditions_at
from ddp_lint.source.imports import dotted_ast, last_part
from ddp_lint.source.syntax import calls_below, parameters, walk
from ddp_lint.source.tree import subtree
from ddp_lint.view import Module

#: What makes the group where there is none, and leaves one alone that is there.
_MAKES_IF_NONE = frozenset({"deepspeed.initialize", "deepspeed.init_distributed"})
#: What else may have made a group before: calls by which a file shows that.
_MAKES = ("init_process_group", "init_distributed", "Accelerator(", "PartialState(")
_SPAWN = "torch.multiprocessing.spawn"
_DEPTH = 2


@dataclasses.dataclass(frozen=True)
class Unjoined:
    """The call of the function with the test, and the one below it that makes the group."""

    site: CallSite
    joins: ast.Call


def group_comes_later(module: Module, node: cst.CSTNode) -> Unjoined | None:
    """Whether a test for the first rank around a place holds on all ranks: it takes the process for rank 0 where there
    is no group, and all calls of the function are made before there is one."""
    function, project = module.function_of(node), module.project
    if function is None or project is None or not any(_asks_group(module, t) for t, _ in conditions(module, node)):
        return None
    found = [(site, _joins_below(project, site)) for site in call_sites(module, function)]
    first = next(iter(found), None)
    if first is None or first[1] is None or any(joins is None for _, joins in found):
        return None
    return Unjoined(first[0], first[1])


def _asks_group(module: Module, test: cst.BaseExpression) -> bool:
    """Whether a test calls a function of the project that takes the process for rank 0 where there is no group:
    ``return dist.get_rank() if dist.is_initialized() else 0``."""
    calls = (call for call in subtree(test) if isinstance(call, cst.Call))
    helpers = (helper_of(module, call) for call in calls if not call.args)
    return any(helper is not None and _is_first_alone(module.project, helper, _DEPTH) for helper in helpers)


def _is_first_alone(project: Project | None, helper: Helper, depth: int) -> bool:
    function = helper.function
    if project is None or not depth or parameters(function):
        return False
    names = {last_part(call.func) for call in calls_below(function)}
    others = any(isinstance(n, (ast.Subscript, ast.Attribute)) and "environ" in dotted_ast(n) for n in walk(function))
    if others or names & {"getenv", "get", "init_process_group"}:
        return False
    if "is_initialized" in names and "get_rank" in names:
        return not names - {"is_initialized", "is_available", "get_rank"}
    found = [project.meanings.definition(project.meanings.of(helper.facts, c.func)) for c in calls_below(function)]
    inner = [Helper(each[0], each[1]) for each in found if each is not None and isinstance(each[1], ast.FunctionDef)]
    return len(found) == 1 and len(inner) == 1 and _is_first_alone(project, inner[0], depth - 1)


def _joins_below(project: Project, site: CallSite) -> ast.Call | None:
    """What makes the group below a call in its function, under no test, if nothing can have made it above."""
    around, facts = site.around, site.facts
    if around is None:
        return None
    joining = frozenset(table("launch")["joining"]["calls"]) - {_SPAWN} | joining_functions(project, starting=False)
    calls = sorted(calls_below(around), key=lambda each: (each.lineno, each.col_offset))
    makes = [c for c in calls if _means(project, facts, c) in joining | _MAKES_IF_NONE]
    if not makes or makes[0].lineno <= site.node.lineno or any(conditions_at(around, makes[0])):
        return None
    first = _means(project, facts, makes[0])
    if first == "torch.distributed.init_process_group":  # raises where there is a group
        return makes[0]
    return None if first not in _MAKES_IF_NONE or _is_made_elsewhere(project) else makes[0]


def _means(project: Project, facts: ModuleFacts, call: ast.Call) -> str:
    return project.meanings.of(facts, call.func) or facts.qualified(call.func)


def _is_made_elsewhere(project: Project) -> bool:
    return any(True for word in _MAKES for _ in project.modules.but_tests(project.contents.holding(word)))
