"""A place in the target for discoveries that a run shows without one."""

from __future__ import annotations

import ast
import dataclasses
import pathlib
from collections.abc import Iterator, Sequence

from ddp_lint.source.imports import last_part
from ddp_lint.verify.damage import Cause
from ddp_lint.verify.oracles.case import shown
from ddp_lint.verify.results import Discovery
from ddp_lint.verify.sources import tree_of


def placed(discoveries: Sequence[Discovery], path: pathlib.Path) -> list[Discovery]:
    """The discoveries, each with a place: where a run shows none, the line of the target that creates the parameter
    or defines the model."""
    return [_placed(discovery, path) for discovery in discoveries]


def _placed(discovery: Discovery, path: pathlib.Path) -> Discovery:
    if discovery.line or not discovery.evidence:
        return discovery
    first, *rest = discovery.evidence
    tree = tree_of(str(path))
    line = _defined(tree, discovery.names, first.model) or 1
    if discovery.kind == "reference" and first.wrap.startswith("fsdp"):
        for function, node in _data_assigned(tree):
            cause = Cause.of("written-copy", how=f"the assignment to `.data` in {function}")
            discovery, line = dataclasses.replace(discovery, cause=cause.text, fix=cause.fix), node.lineno
            break
    first = dataclasses.replace(first, path=shown(str(path)), line=line)
    return dataclasses.replace(discovery, evidence=(first, *rest))


def _data_assigned(tree: ast.Module) -> Iterator[tuple[str, ast.Assign]]:
    """Where methods other than the constructors give a tensor another `.data`: no operator shows that in a run."""
    classes = (node for node in tree.body if isinstance(node, ast.ClassDef))
    for method in (node for cls in classes for node in cls.body if isinstance(node, ast.FunctionDef)):
        for node in ast.walk(method) if method.name != "__init__" else ():
            if isinstance(node, ast.Assign) and any(last_part(target) == "data" for target in _attributes(node)):
                yield method.name, node


def _attributes(node: ast.Assign) -> list[ast.expr]:
    return [target for target in node.targets if isinstance(target, ast.Attribute)]


def _defined(tree: ast.Module, names: Sequence[str], model: str) -> int:
    """The line that assigns `self.NAME` for one of the parameters, which is called NAME.weight, else the class's."""
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef) and model in ("", node.name)]
    modules = {module for module, dot, _ in (name.partition(".") for name in names) if dot}
    for node in (inner for cls in classes for inner in ast.walk(cls)):
        if isinstance(node, ast.Assign) and any(
            isinstance(t, ast.Attribute) and t.attr in modules for t in node.targets
        ):
            return node.lineno
    return classes[0].lineno if classes else 0
