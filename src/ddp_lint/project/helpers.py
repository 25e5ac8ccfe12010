"""Functions of the project that give back what they are given, wrapped for several ranks: ``wrap_model(model)``."""

from __future__ import annotations

import ast
import dataclasses
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from ddp_lint.knowledge.frameworks import Wrapper, wrappers
from ddp_lint.knowledge.project_names import Names, last
from ddp_lint.project.facts import ModuleFacts
from ddp_lint.source.imports import dotted_ast
from ddp_lint.source.syntax import statements_in_order

if TYPE_CHECKING:
    from ddp_lint.project.project import Project

#: The wrappers whose use in a function is looked for: words to search for, and how a file may call them.
_WORDS = ("DistributedDataParallel", "FullyShardedDataParallel")
_USED = re.compile(r"(?:return|=) +[\w.]*(?:DistributedDataParallel|DDP|FullyShardedDataParallel|FSDP)\(")
_MAY_WRAP = re.compile("wrap|ddp|parallel|fsdp|distrib", re.IGNORECASE)
_MOVES = frozenset({"to", "cuda"})


@dataclasses.dataclass(frozen=True)
class Helper:
    """How a function wraps its parameter at `position`; `given`: the keywords that the wrapper may get."""

    kind: str
    parameter: str
    position: int
    given: frozenset[str] | None


def helpers(project: Project) -> Mapping[str, Helper]:
    """The functions of the project that wrap what they give back, on every path or where there are several ranks."""
    return project.remember(("helpers that wrap",), lambda: dict(_helpers(project)))


def with_helpers(project: Project, text: str) -> Names:
    """The project's own names, with these functions among its wrappers: files that call one are looked at. Most files
    wrap nothing by any word, and ask nothing of the others."""
    names, found = project.own.names, helpers(project) if _MAY_WRAP.search(text) else {}
    return dataclasses.replace(names, wrappers=(*names.wrappers, *found)) if found else names


def _helpers(project: Project) -> Iterator[tuple[str, Helper]]:
    for path in sorted({path for word in _WORDS for path in project.holding(word)}):
        text = project.text(path)
        facts = project.facts_of(path) if text is not None and _USED.search(text) else None
        for definition in facts.definitions.values() if facts is not None and not facts.file.is_test else ():
            if facts is not None and isinstance(definition, ast.FunctionDef) and facts.name:
                found = _helper(project, facts, definition)
                if found is not None:
                    yield f"{facts.name}.{definition.name}", found


def _helper(project: Project, facts: ModuleFacts, function: ast.FunctionDef) -> Helper | None:
    taken = [parameter.arg for parameter in (*function.args.posonlyargs, *function.args.args)]
    body = list(statements_in_order(function))
    assigned: dict[str, list[ast.expr]] = {}
    for statement in body:
        if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
            assigned.setdefault(statement.targets[0].id, []).append(statement.value)
    wraps: list[tuple[Wrapper, ast.Call, str]] = []
    for statement in body:
        if not isinstance(statement, ast.Return):
            continue
        value = statement.value
        options = assigned.get(value.id, []) if isinstance(value, ast.Name) else [value]
        found = [wrap for option in options if (wrap := _wrap(project, facts, option, taken)) is not None]
        if not found and not (isinstance(value, ast.Name) and value.id in taken):
            return None
        wraps += found
    if len({(entry.kind, inner) for entry, _, inner in wraps}) != 1:
        return None
    entry, _, inner = wraps[0]
    keywords = [keyword.arg for _, call, _ in wraps for keyword in call.keywords]
    given = None if None in keywords else frozenset(filter(None, keywords))
    return Helper(entry.kind, inner, taken.index(inner), given)


def _wrap(
    project: Project, facts: ModuleFacts, value: ast.expr | None, taken: list[str]
) -> tuple[Wrapper, ast.Call, str] | None:
    """The wrapper that a call is, and the parameter that it wraps; None for anything else."""
    entry = wrappers().get(project.meaning(facts, value.func)) if isinstance(value, ast.Call) else None
    if entry is None or not isinstance(value, ast.Call) or last(entry.names[0]) not in _WORDS:
        return None
    inner = next((k.value for k in value.keywords if k.arg == entry.module), value.args[0] if value.args else None)
    while isinstance(inner, ast.Call) and isinstance(inner.func, ast.Attribute) and inner.func.attr in _MOVES:
        inner = inner.func.value
    name = dotted_ast(inner) if inner is not None else ""
    return (entry, value, name) if name in taken else None
