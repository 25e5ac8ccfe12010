"""No import circles: what a module imports, for types too, never leads back to it through more than two others.
Packages import one way."""

from __future__ import annotations

import ast
import pathlib
from collections.abc import Iterator

import pytest

import ddp_lint

SOURCE = pathlib.Path(ddp_lint.__file__).parent
#: Files in the largest circle.
LARGEST = 3
#: Packages each of which imports only those before it, and none of the others but `findings`, `files` and `derived`.
LAYERS = ("source", "knowledge", "project", "program", "view")
BELOW = {"ddp_lint.findings", "ddp_lint.files", "ddp_lint.derived"}


def test_no_circle_of_imports_has_more_than_three_files() -> None:
    circles = [sorted(circle) for circle in strongly_connected(imports()) if len(circle) > LARGEST]
    assert circles == []


def test_packages_import_one_way() -> None:
    graph: dict[str, set[str]] = {}
    for module, targets in imports().items():
        graph.setdefault(_package(module), set()).update(_package(target) for target in targets)
    packages = {package: targets - {package, ""} for package, targets in graph.items() if package}
    assert [sorted(circle) for circle in strongly_connected(packages) if len(circle) > 1] == []


@pytest.mark.parametrize("layer", LAYERS)
def test_what_all_stand_on_imports_one_way(layer: str) -> None:
    allowed = LAYERS[: LAYERS.index(layer) + 1]
    upwards = {
        (module, target)
        for module, targets in imports().items()
        for target in targets - BELOW
        if _package(module) == layer and _package(target) not in allowed
    }
    assert upwards == set()


def _package(module: str) -> str:
    return module.split(".")[1] if "." in module else ""


def imports(source: pathlib.Path = SOURCE) -> dict[str, set[str]]:
    """Module of the package to the modules of the package that it imports, anywhere in its file."""
    files = {_name(path, source): path for path in source.rglob("*.py")}
    found: dict[str, set[str]] = {}
    for name, path in files.items():
        tree = ast.parse(path.read_text(encoding="utf-8"))
        found[name] = {target for node in ast.walk(tree) for target in _targets(node, files)} - {name}
    return found


def _name(path: pathlib.Path, source: pathlib.Path) -> str:
    parts = path.relative_to(source.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _targets(node: ast.AST, files: dict[str, pathlib.Path]) -> Iterator[str]:
    """The modules that an import names: of ``from package import name`` the module `name`, where there is one."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names if alias.name in files)
    elif isinstance(node, ast.ImportFrom) and node.module in files:
        for alias in node.names:
            below = f"{node.module}.{alias.name}"
            yield below if below in files else node.module


def strongly_connected(graph: dict[str, set[str]]) -> Iterator[set[str]]:
    """The sets of nodes each of which leads to all others."""
    reached = {node: _from(node, graph) for node in graph}
    left = set(graph)
    while left:
        node = min(left)
        circle = {other for other in reached[node] if node in reached[other]} | {node}
        left -= circle
        yield circle


def _from(node: str, graph: dict[str, set[str]]) -> set[str]:
    """What a node leads to, itself among it where it is on a circle."""
    found: set[str] = set()
    stack = [*graph[node]]
    while stack:
        current = stack.pop()
        if current not in found:
            found.add(current)
            stack += graph[current]
    return found
