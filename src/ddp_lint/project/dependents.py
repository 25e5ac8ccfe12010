"""Which files of a project depend on others, and on which: by their imports, read with a pattern and not parsed."""

from __future__ import annotations

import collections
import contextlib
import hashlib
import json
import os
import pathlib
import time
from collections.abc import Collection, Iterable, Iterator

from ddp_lint.files import MALFORMED, read, write
from ddp_lint.project.project import Project
from ddp_lint.project.states import YOUNG, listing_of, state_of
from ddp_lint.source.imports import folders_put_on_path, imports_in

_NAME = "imports.json"
#: Bytes; what is larger was not written by us.
_LIMIT = 256 * 2**20

#: Files that are followed from one: more are another program.
_MOST_FILES = 2000


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
        name = project.modules.name_of(queue.pop())[0]
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
        inside = self._project.paths.inside(path)
        state, kept = state_of(path, self._before), self._kept.get(inside)
        if kept is None or not state or kept[0] != state:
            kept = state, sorted(set(_imported(path, self._project)))
        self._found[inside] = kept
        return kept[1]

    def _read(self) -> dict[str, tuple[str, list[str]]]:
        with contextlib.suppress(*MALFORMED):
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


def imported_files(path: pathlib.Path, project: Project) -> list[pathlib.Path]:
    """A file and the project's files that it imports, directly or not, the nearest first."""
    found = {path: None}
    queue = collections.deque([path])
    while queue and len(found) < _MOST_FILES:
        new = [
            file
            for file in map(project.modules.find, _imported(queue.popleft(), project))
            if file and file not in found
        ]
        found |= dict.fromkeys(new)
        queue += dict.fromkeys(new)
    return list(found)


def _imported(path: pathlib.Path, project: Project) -> Iterator[str]:
    """The names of the project's modules that a file imports, and of the packages around them."""
    try:
        text = os.fsdecode(path.read_bytes())
    except OSError:
        return
    below = folders_put_on_path(text)
    for target in dict.fromkeys(target for target, _ in imports_in(text)):
        yield from project.layout.imported(target, os.path.normpath(path), script=True, below=below)
