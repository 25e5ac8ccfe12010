"""Whether a process that starts workers is a rank of their process group itself."""

from __future__ import annotations

import ast

import libcst as cst

from ddp_lint.knowledge import table
from ddp_lint.launch.communicating import Code, called_helper, called_name
from ddp_lint.launch.helpers import Helper
from ddp_lint.project import Project
from ddp_lint.source.control_flow import exclusive
from ddp_lint.source.imports import last_part
from ddp_lint.source.syntax import argument_at, calls_below
from ddp_lint.source.tree import descendants
from ddp_lint.view import Module

#: How many functions are followed from one that may join the group.
_DEPTH = 2


def is_rank_beside(module: Module, started: cst.Call) -> bool:
    """Whether the function that starts a worker also runs what the worker runs, or makes an object of the class of
    which the worker makes one, and that joins the process group: ``Process(target=Runner, args=(rank,))`` beside
    ``Runner(0)``. A worker that dies then fails the next collective of the process itself, or stops it there."""
    project, scope = module.project, module.function_of(started)
    if project is None or scope is None:
        return False
    joining = _joining(project, module, started)
    calls = (n for n in descendants(scope.body) if isinstance(n, cst.Call) and n is not started) if joining else ()
    return any(
        project.meanings.canonical(module.callee(call)) in joining and not exclusive(module, call, started)
        for call in calls
    )


def _joining(project: Project, module: Module, started: cst.Call) -> frozenset[str]:
    """The names of what a worker runs, or makes an object of, that joins the process group."""
    facts, line = module.facts, module.span(started).line
    if facts is None:
        return frozenset()
    makers = (c for c in calls_below(facts.tree) if c.lineno == line and last_part(c.func) == "Process")
    target = next((found for c in makers if (found := argument_at(c, 1, "target")) is not None), None)
    code = Code(facts, [])
    helper = _run(project, code, target) if target is not None else None
    if helper is None or target is None:
        return frozenset()
    names = {project.meanings.of(facts, target)} if _joins(project, helper, _DEPTH) else set()
    inner = Code.of(helper)
    for call in calls_below(helper.function):
        made = project.classes.find(name := called_name(project, inner, call))
        constructor = called_helper(project, inner, call) if made is not None else None
        if constructor is not None and _joins(project, constructor, _DEPTH):
            names.add(name)
    return frozenset(names - {""})


def _run(project: Project, code: Code, target: ast.expr) -> Helper | None:
    call = ast.copy_location(ast.Call(target, [], []), target)
    return called_helper(project, code, call)


def _joins(project: Project, helper: Helper, depth: int) -> bool:
    """Whether a function joins the process group, itself or in what it calls."""
    code, joining = Code.of(helper), frozenset(table("launch")["joining"]["calls"])
    calls = list(calls_below(helper.function))
    if any(called_name(project, code, call) in joining for call in calls):
        return True
    inner = (called_helper(project, code, call) for call in calls if depth)
    return any(each is not None and _joins(project, each, depth - 1) for each in inner)
