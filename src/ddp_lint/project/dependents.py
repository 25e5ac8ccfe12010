"""Which files of a project depend on others: by their imports, read with a pattern and not parsed."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import pathlib
import re
import time
from collections.abc import Collection, Iterable, Iterator

from ddp_lint.files import read, write
from ddp_lint.project.project import Project
from ddp_lint.project.states import YOUNG, listing_of, state_of

_NAME = "imports.json"
#: Bytes; what is larger was not written by us.
_LIMIT = 256 * 2**20

_FROM = re.compile(rb"^[ \t]*from[ \t]+([.\w]+)[ \t]+import[ \t]*(\([^)]*\)|[^\n#]*)", re.MULTILINE)
_IMPORT = re.compile(rb"^[ \t]*import[ \t]+([^\n#]*)", re.MULTILINE)
_COMMENT = re.compile(r"#[^\n]*")


def dependents(
    files: Iterable[pathlib.Path],
    changed: Collection[pathlib.Path],
    project: Project,
    keep_in: pathlib.Path | None = None,
) -> set[pathlib.Path]:
    """Those of `files` that import one of the `changed` files, directly or through others; not these themselves.

    `changed` files need not exist any more. What is imported by a computed name is not seen. `keep_in`: a folder where
    the imports of files that have not changed are kept from run to run, if there is such a folder.
    """
    imports = _Imports(project, keep_in)
    importers: dict[str, set[pathlib.Path]] = {}
    for path in files:
        for target in imports.of(path):
            importers.setdefault(target, set()).add(path)
    imports.write()
    found: set[pathlib.Path] = set()
    queue = list(changed)
    while queue:
        name = project.module_name(queue.pop())[0]
        new = importers.get(name, set()) - found
        found |= new
        queue += new
    return found - set(changed)


class _Imports:
    """What files import, as far as possible from an earlier run: where the folders of the project list the same."""

    def __init__(self, project: Project, folder: pathlib.Path | None) -> None:
        self._project = project
        self._place = folder / _NAME if folder is not None and folder.is_dir() and not folder.is_symlink() else None
        self._before = time.time_ns() - YOUNG
        self._layout = hashlib.sha256(
            "".join(listing_of(project.layout, f) for f in project.layout.folders()).encode()
        ).hexdigest()
        self._kept = self._read()
        self._found: dict[str, tuple[str, list[str]]] = {}

    def of(self, path: pathlib.Path) -> Collection[str]:
        """The names of the project's modules that a file imports, and of the packages around them."""
        if self._place is None:
            return set(_imported(path, self._project))
        inside = self._project.inside(path)
        state, kept = state_of(path, self._before), self._kept.get(inside)
        if kept is None or not state or kept[0] != state:
            kept = state, sorted(set(_imported(path, self._project)))
        self._found[inside] = kept
        return kept[1]

    def _read(self) -> dict[str, tuple[str, list[str]]]:
        with contextlib.suppress(OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
            if self._place is not None:
                kept = json.loads(read(self._place, _LIMIT))
                names = [str(name) for name in kept["names"]]
                if kept["layout"] == self._layout:
                    return {
                        f: (str(state), [names[n] for n in numbers]) for f, (state, numbers) in kept["files"].items()
                    }
        return {}

    def write(self) -> None:
        """Keep what is new."""
        new = {inside: found for inside, found in self._found.items() if self._kept.get(inside) != found}
        if self._place is None or not new:
            return
        numbers: dict[str, int] = {}
        files = {
            inside: [state, [numbers.setdefault(name, len(numbers)) for name in names]]
            for inside, (state, names) in (self._kept | new).items()
        }
        with contextlib.suppress(OSError):
            kept = {"layout": self._layout, "names": list(numbers), "files": files}
            write(self._place, json.dumps(kept, separators=(",", ":")).encode())


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
