"""Which files of a project depend on others: by their imports, read with a pattern and not parsed."""

from __future__ import annotations

import os
import pathlib
import re
from collections.abc import Collection, Iterable, Iterator

from ddp_lint.project.project import Project

_FROM = re.compile(rb"^[ \t]*from[ \t]+([.\w]+)[ \t]+import[ \t]*(\([^)]*\)|[^\n#]*)", re.MULTILINE)
_IMPORT = re.compile(rb"^[ \t]*import[ \t]+([^\n#]*)", re.MULTILINE)
_COMMENT = re.compile(r"#[^\n]*")


def dependents(files: Iterable[pathlib.Path], changed: Collection[pathlib.Path], project: Project) -> set[pathlib.Path]:
    """Those of `files` that import one of the `changed` files, directly or through others; not these themselves.

    `changed` files need not exist any more. What is imported by a computed name is not seen.
    """
    importers: dict[str, set[pathlib.Path]] = {}
    for path in files:
        for target in _imported(path, project):
            importers.setdefault(target, set()).add(path)
    found: set[pathlib.Path] = set()
    queue = list(changed)
    while queue:
        name = project.module_name(queue.pop())[0]
        new = importers.get(name, set()) - found
        found |= new
        queue += new
    return found - set(changed)


def _imported(path: pathlib.Path, project: Project) -> Iterator[str]:
    """The names of the project's modules that a file imports, and of the packages around them."""
    try:
        text = path.read_bytes()
    except OSError:
        return
    name, is_package = project.module_name(path)
    folder = name if is_package else name.rpartition(".")[0]
    for target in set(_names(text, folder)):
        located = project.locate(target, path, script=True)
        parts = located.split(".")
        yield from (".".join(parts[:length]) for length in range(1, len(parts) + 1))


def _names(text: bytes, package: str) -> Iterator[str]:
    """The dotted names that import statements name: ``from a import b`` names `a` and `a.b`."""
    for match in _IMPORT.finditer(text):
        for part in _decoded(match[1]).split(","):
            yield part.partition(" as ")[0].strip()
    for match in _FROM.finditer(text):
        module = _decoded(match[1])
        level = len(module) - len(module.lstrip("."))
        if level:
            above = package.split(".")[: len(package.split(".")) - level + 1]
            module = ".".join(filter(None, (*above, module.lstrip("."))))
        yield module
        for part in _COMMENT.sub("", _decoded(match[2])).strip("() \t\r\n").split(","):
            if imported := part.partition(" as ")[0].strip():
                yield f"{module}.{imported}"


def _decoded(text: bytes) -> str:
    return os.fsdecode(text)
