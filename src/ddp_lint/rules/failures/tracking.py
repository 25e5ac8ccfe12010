"""Runs of an experiment tracker that other files of a project start, and on which ranks they do."""

from __future__ import annotations

import ast

from ddp_lint.knowledge.trackers import switched_off
from ddp_lint.launch.one_rank import calls_of, is_on_first
from ddp_lint.project import Project
from ddp_lint.project.facts import ModuleFacts
from ddp_lint.source.imports import dotted_ast, last_part
from ddp_lint.source.syntax import calls_below, function_at, statements, walk
from ddp_lint.view import Module

_STARTS = "wandb.init"
#: Files that hold the name of a function, and functions above a place, which are looked at.
_FILES, _ABOVE = 25, 3


def started_on_first(module: Module) -> tuple[ModuleFacts, ast.Call, frozenset[str]] | None:
    """A call of the project that starts a run of wandb, where all of them are kept to the first rank, with the names
    that the tests around it mention."""
    project = module.project
    if project is None:
        return None
    found: list[tuple[ModuleFacts, ast.Call]] = []
    for path in project.contents.holding("wandb"):
        facts = project.modules.facts_of(path) if _STARTS in (project.contents.text(path) or "") else None
        if facts is None or facts.file.is_test:
            continue
        starts = [call for call in calls_below(facts.tree) if dotted_ast(call.func) == _STARTS]
        chosen = any(keyword.arg == "mode" for call in starts for keyword in call.keywords)
        if starts and (chosen or switched_off().search(facts.file.text)):
            return None
        found += ((facts, call) for call in starts)
    if not found or not all(is_on_first(module, facts, call) for facts, call in found):
        return None
    facts, call = found[0]
    return facts, call, frozenset(name for f, c in found for name in _asked(f, c))


def _asked(facts: ModuleFacts, call: ast.Call) -> set[str]:
    """The last parts of all names in the tests around a call."""
    around = [s for s in statements(facts.tree) if isinstance(s, ast.If) and any(n is call for n in walk(s))]
    return {last_part(node) for s in around for node in walk(s.test) if isinstance(node, (ast.Name, ast.Attribute))}


def is_kept_above(module: Module, project: Project, name: str) -> bool:
    """Whether a call of a function, or of one of those that call it, is kept to one rank anywhere in the project; or it
    is not known who calls it."""
    names, seen = [name], {name}
    for _ in range(_ABOVE):
        above: list[str] = []
        for each in names:
            paths = project.contents.holding(each) if not each.startswith("__") else ()
            if len(paths) > _FILES:
                return True
            for facts in filter(None, map(project.modules.facts_of, paths)):
                if any(calls_of(module, facts, each)):
                    return True
                lines = (c.lineno for c in calls_below(facts.tree) if last_part(c.func) == each)
                around = (function_at(facts.tree, line) for line in lines)
                above += (f.name for f in around if f is not None and f.name not in seen)
        names = list(dict.fromkeys(above))
        seen.update(names)
    return False
