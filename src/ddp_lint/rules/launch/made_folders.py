"""Folders that one rank makes and into which others write, as DDP810 asks for them."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ddp_lint.launch.one_rank import on_one_rank
from ddp_lint.launch.written_paths import FOLDER_MAKERS
from ddp_lint.source.tree import called
from ddp_lint.view import Module
from ddp_lint.view.wraps import argument


def made_on_one_rank(module: Module, calls: list[cst.Call]) -> dict[str, cst.Call]:
    """The folders, as they are written, that one rank alone makes in some calls, each with the first call."""
    found: dict[str, cst.Call] = {}
    of_all: set[str] = set()
    for call in calls:
        folder = _made(module, call)
        if folder and on_one_rank(module, call):
            found.setdefault(folder, call)
        elif folder:
            of_all.add(folder)
    return {folder: call for folder, call in found.items() if folder not in of_all}


def _made(module: Module, call: cst.Call) -> str:
    if module.qualified(call.func) in FOLDER_MAKERS:
        given = argument(call, 0, "name") or argument(call, 0, "path")
        return module.code(given) if given is not None else ""
    return module.code(call.func.value) if called(call) == "mkdir" and isinstance(call.func, cst.Attribute) else ""


def folders_of(module: Module, path: cst.BaseExpression) -> Iterator[str]:
    """The folders that a path is put together from, as they are written."""
    made = module.assignments(path) if isinstance(path, cst.Name) else []
    for value in made if len(made) == 1 else [path]:
        if isinstance(value, cst.Call) and called(value) in ("join", "Path", "joinpath") and value.args:
            yield module.code(value.args[0].value)
        elif isinstance(value, cst.BinaryOperation) and isinstance(value.operator, cst.Divide):
            yield module.code(value.left)
        elif isinstance(value, cst.FormattedString) and isinstance(value.parts[0], cst.FormattedStringExpression):
            yield module.code(value.parts[0].expression)
