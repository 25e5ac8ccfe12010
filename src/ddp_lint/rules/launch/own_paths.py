"""Paths with a part that a function of the project makes of its process alone, such as a random identifier."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator

from ddp_lint.project import Project
from ddp_lint.project.facts import ModuleFacts
from ddp_lint.source.imports import dotted_ast
from ddp_lint.source.syntax import FunctionNode, text_of, walk

#: What no two processes have alike, whatever they seed.
_OWN = re.compile(r"\buuid[14]\(|\bgetpid\(|\bmkdtemp\(|\btoken_hex\(")


def are_made_for_process(project: Project, facts: ModuleFacts, names: Iterable[str]) -> bool:
    """Whether a file assigns one of the names, dotted ones too, what such a function returns:
    ``args.run = name_of_run(args)``."""
    made: frozenset[str] = project.remember(
        ("made for a process",), lambda: frozenset(_made(project, facts)), facts.kept
    )
    return not made.isdisjoint(names)


def _made(project: Project, facts: ModuleFacts) -> Iterator[str]:
    for node in walk(facts.tree):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and _is_own(project, facts, node.value):
            yield from filter(None, map(dotted_ast, node.targets))


def _is_own(project: Project, facts: ModuleFacts, call: ast.Call) -> bool:
    found = project.meanings.definition(project.meanings.of(facts, call.func))
    return found is not None and isinstance(found[1], FunctionNode) and _OWN.search(text_of(found[1])) is not None
