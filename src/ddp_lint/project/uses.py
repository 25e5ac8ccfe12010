"""Uses of a name: the expressions that may refer to a function of a project, called or passed on."""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ddp_lint.project.facts import FunctionNode, ModuleFacts
from ddp_lint.project.parts import kept_by_node
from ddp_lint.source.imports import last_part
from ddp_lint.source.syntax import below

if TYPE_CHECKING:
    from ddp_lint.project.project import Project


@dataclasses.dataclass(frozen=True)
class Use:
    """An expression by a name (``f``, ``x.f``). `call`: the call of it, if it is called; `given`: the call that it
    is an argument of; `around` and `owner`: the function and the class that it is in."""

    node: ast.Name | ast.Attribute
    call: ast.Call | None
    given: ast.Call | None
    around: FunctionNode | None
    owner: ast.ClassDef | None


def uses(tree: ast.AST, name: str) -> Iterator[Use]:
    """The uses of a name in a tree, by the last part of dotted names."""
    for node, around, owner, above in _by_name(tree).get(name, ()):
        call = above if isinstance(above, ast.Call) else None
        called = call is not None and call.func is node
        yield Use(node, call if called else None, None if called else call, around, owner)


_Place = tuple[ast.Name | ast.Attribute, FunctionNode | None, ast.ClassDef | None, ast.AST | None]


# One name after the other is looked up in a tree, each tree while its file is checked.
@kept_by_node(32)
def _by_name(tree: ast.AST) -> dict[str, list[_Place]]:
    """All names in a tree: the function and the class that each is in, and the call around it."""
    found: dict[str, list[_Place]] = {}
    stack: list[tuple[ast.AST, FunctionNode | None, ast.ClassDef | None, ast.AST | None]] = [(tree, None, None, None)]
    while stack:
        node, around, owner, above = stack.pop()
        if isinstance(node, (ast.Attribute, ast.Name)):
            found.setdefault(last_part(node), []).append((node, around, owner, above))
            if isinstance(node, ast.Name):
                continue
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            around = node
        elif isinstance(node, ast.ClassDef):
            around, owner = None, node
        of_child = above if isinstance(node, ast.keyword) else node
        stack += [(child, around, owner, of_child) for child in below(node)]
    return found


def constructions(project: Project, name: str, most: int) -> Iterator[tuple[ModuleFacts, Use, ast.Call]]:
    """The calls that make objects of a class, by its canonical name, without those of tests; none where its name is
    called in more than `most` files."""
    word = name.rpartition(".")[2]
    paths = project.holding(f"{word}(")
    for path in paths if len(paths) <= most else ():
        facts = project.facts_of(path)
        for use in uses(facts.tree, word) if facts is not None and not facts.source.is_test else ():
            if facts is not None and use.call is not None and project.meaning(facts, use.node) == name:
                yield facts, use, use.call
