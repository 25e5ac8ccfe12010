"""Checkpoints that the files of a project load into models that nothing wraps: by `ast`."""

from __future__ import annotations

import ast
import dataclasses
import re
from collections.abc import Iterator

from ddp_lint.launch.callers import sites_in_project
from ddp_lint.launch.options import default_of
from ddp_lint.project import Project
from ddp_lint.project.facts import ModuleFacts, assigned_in
from ddp_lint.source.imports import dotted_ast, last_part
from ddp_lint.source.syntax import FunctionNode, argument_at, calls_below, function_at
from ddp_lint.tensors.classes import is_module_class

#: What a file has that wraps models, or copes with the prefix that a wrapper puts before the names of parameters.
WRAPS_OR_COPES = re.compile(
    r"""["']module\.|consume_prefix|remove_prefix|removeprefix|strip_prefix|DataParallel|\bDDP\b|\bprepare\("""
    r"""|\.replace\(|\.module\b|unwrap"""
)
_DEPTH = 3


@dataclasses.dataclass(frozen=True)
class PlainLoad:
    """A call that loads an entry of a checkpoint (`key`, '' for all of it) into a plain model of a class. `path`: of
    the file, '' where the code does not show it. `lenient`: keys that do not match raise nothing."""

    facts: ModuleFacts
    call: ast.Call
    kind: str
    key: str
    path: str
    lenient: bool


def plain_loads(project: Project) -> tuple[PlainLoad, ...]:
    """The loads of a project, without those of tests."""
    return project.remember(("plain loads",), lambda: tuple(_plain_loads(project)))


def _plain_loads(project: Project) -> Iterator[PlainLoad]:
    for facts in project.modules.but_tests(project.contents.holding("load_state_dict(")):
        if facts.file.shows(WRAPS_OR_COPES) or not facts.file.holds("torch.load("):
            continue
        for call in calls_below(facts.tree):
            if last_part(call.func) == "load_state_dict" and isinstance(call.func, ast.Attribute):
                yield from _load(project, facts, call, call.func.value)


def _load(project: Project, facts: ModuleFacts, call: ast.Call, model: ast.expr) -> Iterator[PlainLoad]:
    around = function_at(facts.tree, call.lineno)
    given, strict = argument_at(call, 0, "state_dict"), argument_at(call, 1, "strict")
    if around is None or given is None or not isinstance(model, ast.Name):
        return
    key, checkpoint = "", given
    if isinstance(given, ast.Subscript) and isinstance(given.slice, ast.Constant):
        key, checkpoint = str(given.slice.value), given.value
    made = assigned_in(around, dotted_ast(checkpoint)) if dotted_ast(checkpoint) else [checkpoint]
    loaded = made[0] if len(made) == 1 else None
    if not isinstance(loaded, ast.Call) or facts.qualified(loaded.func) != "torch.load" or not loaded.args:
        return
    held = assigned_in(around, model.id)
    kind = project.types.of(held[0], facts, around, None, _DEPTH) if len(held) == 1 else ""
    if kind and is_module_class(project, kind) and project.classes.find(kind) is not None:
        path = path_of(project, facts, around, loaded.args[0])
        lenient = isinstance(strict, ast.Constant) and strict.value is False
        yield PlainLoad(facts, call, kind, key, path, lenient)


def path_of(
    project: Project, facts: ModuleFacts, around: FunctionNode | None, path: ast.expr, depth: int = _DEPTH
) -> str:
    """The text of a path, by the code or by the default of the option that has it; '' where it is computed."""
    if isinstance(path, ast.Constant):
        return path.value if isinstance(path.value, str) else ""
    if isinstance(path, ast.Attribute) and isinstance(path.value, ast.Name):
        default = default_of(project, facts, around, path)
        return default.value if isinstance(default, ast.Constant) and isinstance(default.value, str) else ""
    if not isinstance(path, ast.Name) or around is None or not depth:
        return ""
    if assigned := assigned_in(around, path.id):
        return path_of(project, facts, around, assigned[0], depth - 1) if len(assigned) == 1 else ""
    texts = {
        path_of(project, site.facts, site.around, given, depth - 1) if given is not None else ""
        for site in sites_in_project(project, facts, around)
        for given in (site.given(around, path.id),)
    }
    return texts.pop() if len(texts) == 1 else ""
