"""Engines of DeepSpeed that keep a part of each parameter on each rank (ZeRO-3)."""

from __future__ import annotations

import ast
import json
import pathlib
from collections.abc import Iterator

import libcst as cst

from ddp_lint.findings import Span
from ddp_lint.launch.callers import call_sites
from ddp_lint.project import Project
from ddp_lint.project.facts import ModuleFacts, assigned_in
from ddp_lint.source.imports import dotted_ast
from ddp_lint.source.syntax import FunctionNode, argument_at, calls_below, function_at, walk
from ddp_lint.source.tree import parameters_of
from ddp_lint.view import Module

_INITIALIZE = "deepspeed.initialize"
#: Where `deepspeed.initialize` takes its settings, since some version by both names.
_SETTINGS = ((8, "config"), (9, "config_params"))
#: The settings of a file that is longer than this are not read.
_LONG = 100_000


def sharding_engine(module: Module, name: str, at: cst.CSTNode) -> Span | None:
    """Where an engine with this name was made, if its settings say that it shards the parameters: in the function
    around, or in all that call it with one."""
    facts, project = module.facts, module.project
    if facts is None or project is None or not name:
        return None
    around = function_at(facts.tree, module.span(at).line)
    made = list(_made_in(facts, around, name))
    if made:
        return _place(project, facts, around, made)
    function = module.function_of(at)
    if function is None or not any(each.name.value == name for each in parameters_of(function)):
        return None
    if module.assignments(name, at):
        return None
    places = []
    for site in call_sites(module, function):
        given = dotted_ast(site.given(function, name))
        engines = list(_made_in(site.facts, site.around, given)) if given else []
        places.append(_place(project, site.facts, site.around, engines))
    return places[0] if places and all(places) else None


def _made_in(facts: ModuleFacts, around: FunctionNode | None, name: str) -> Iterator[ast.Call]:
    """The calls in a function that make an engine of this name: ``engine, *_ = deepspeed.initialize(..)``."""
    for node in walk(around if around is not None else facts.tree):
        if not isinstance(node, ast.Assign) or len(node.targets) != 1:
            continue
        target, value = node.targets[0], node.value
        if isinstance(target, (ast.Tuple, ast.List)) and target.elts:
            target = target.elts[0]
        elif isinstance(value, ast.Subscript) and isinstance(value.slice, ast.Constant) and value.slice.value == 0:
            value = value.value
        if dotted_ast(target) == name and isinstance(value, ast.Call) and facts.qualified(value.func) == _INITIALIZE:
            yield value


def _place(project: Project, facts: ModuleFacts, around: FunctionNode | None, made: list[ast.Call]) -> Span | None:
    shards = bool(made) and all(_stage(project, facts, around, call) == 3 for call in made)
    return facts.file.span_of(made[0]) if shards else None


def _stage(project: Project, facts: ModuleFacts, around: FunctionNode | None, call: ast.Call) -> object:
    """The stage of ZeRO in the settings that a call gets: a dictionary, or the name of a file with JSON."""
    given = next((v for place, name in _SETTINGS if (v := argument_at(call, place, name)) is not None), None)
    if isinstance(given, ast.Name):
        own = assigned_in(around, given.id) if around is not None else []
        values = own or [
            each.value
            for each in facts.tree.body
            if isinstance(each, ast.Assign) and dotted_ast(each.targets[0]) == given.id
        ]
        if len(values) != 1 or _is_changed(facts, given.id):
            return None
        given = values[0]
    if isinstance(given, ast.Constant) and isinstance(given.value, str):
        return _stage_in_file(project, facts, given.value)
    return _constant(_entry(_entry(given, "zero_optimization"), "stage"))


def _is_changed(facts: ModuleFacts, name: str) -> bool:
    """Whether a file sets keys of a dictionary after it was made."""
    stored = (n for n in walk(facts.tree) if isinstance(n, ast.Subscript) and isinstance(n.ctx, ast.Store))
    updated = (dotted_ast(call.func) == f"{name}.update" for call in calls_below(facts.tree))
    return any(name in {dotted_ast(part) for part in walk(each)} for each in stored) or any(updated)


def _entry(settings: ast.expr | None, key: str) -> ast.expr | None:
    if not isinstance(settings, ast.Dict):
        return None
    pairs = zip(settings.keys, settings.values, strict=True)
    return next((value for name, value in pairs if _constant(name) == key), None)


def _constant(value: ast.expr | None) -> object:
    return value.value if isinstance(value, ast.Constant) else None


def _stage_in_file(project: Project, facts: ModuleFacts, name: str) -> object:
    """The stage in a file beside the program, or in its path from the root of the project."""
    beside = pathlib.PurePosixPath(facts.source.inside).parent
    paths = (project.root / beside / name, project.root / name) if name.endswith(".json") else ()
    text = next(filter(None, map(project.contents.text, paths)), None)
    if text is None or len(text) > _LONG:
        return None
    try:
        settings = json.loads(text)
    except ValueError:
        return None
    zero = settings.get("zero_optimization") if isinstance(settings, dict) else None
    return zero.get("stage") if isinstance(zero, dict) else None
