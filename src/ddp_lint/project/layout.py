"""The files of a project's modules: dotted names to files and back, by the listings of folders only."""

from __future__ import annotations

import fnmatch
import functools
import os
import pathlib
import re
import sys
from collections.abc import Collection, Iterator
from typing import NamedTuple

from ddp_lint.files import inner, lies_in
from ddp_lint.knowledge import frameworks
from ddp_lint.source.imports import absolute_target

_MARKERS = ("pyproject.toml", "setup.py", "setup.cfg", ".git", ".hg")
#: Say so where nothing else does: in a folder of a project they hold the settings of that folder.
_SETTINGS = ("ddp-lint.toml", ".ddp-lint.toml")
_SOURCE_FOLDERS = ("src", "python")
_INIT = "__init__.py"
#: Stands for a dot inside a folder's name (``llama3.1/train.py``): in a module's name a dot parts the folders.
_DOT = "·"


class Roots:
    """The roots of the projects that folders belong to. What is above a folder is looked at once, however deep it
    lies."""

    def __init__(self) -> None:
        self._above: dict[tuple[str, tuple[str, ...]], str] = {}

    def of(self, folder: pathlib.Path, start: pathlib.Path | None = None) -> pathlib.Path:
        """The root of the project that `folder` (absolute) belongs to: the nearest one above it that is marked as one.

        Where none is, the working directory or the folder `start` that a search began at, the one that contains more of
        what lies around; outside of both, the folder that absolute imports of the package in `folder` start from.
        """
        for markers in (_MARKERS, _SETTINGS):
            marked = self._nearest(str(folder), markers)
            if marked:
                return pathlib.Path(marked)
        return _unmarked(folder, start)

    def _nearest(self, folder: str, markers: tuple[str, ...]) -> str:
        """The nearest folder at or above `folder` that holds a marker, '' where none does."""
        asked = []
        while (found := self._above.get((folder, markers))) is None:
            asked.append(folder)
            above = os.path.dirname(folder)
            if any(os.path.exists(os.path.join(folder, marker)) for marker in markers):
                found = folder
                break
            if above == folder:
                found = ""
                break
            folder = above
        self._above.update(((place, markers), found) for place in asked)
        return found


def _unmarked(folder: pathlib.Path, start: pathlib.Path | None) -> pathlib.Path:
    around = [f for f in (start, _workplace()) if f is not None and lies_in(folder, f)]
    return min(around, key=lambda f: len(f.parts)) if around else _above_packages(folder)


def _workplace() -> pathlib.Path | None:
    """The working directory, unless it is a home folder or contains one: no project, and large."""
    here = pathlib.Path.cwd()
    home = pathlib.Path(os.path.expanduser("~"))
    return None if lies_in(home, here) else here


def _above_packages(folder: pathlib.Path) -> pathlib.Path:
    while folder.parent != folder and (folder / _INIT).exists():
        folder = folder.parent
    return folder


#: Folders of other people's or generated code, by name.
NO_SOURCES = frozenset({"build", "dist", "node_modules", "site-packages", "venv", "env", "__pycache__", "_build"})
#: A root with more files than this is no project (a home folder): the rest is left out of project-wide questions.
FILES_LIMIT = 20_000
#: Folders within each other that are searched. What is done for a file takes as long as its path is.
DEPTH_LIMIT = 256


class Entries(NamedTuple):
    """The names of the folders in a folder (no links) and of its other entries, sorted; those of links to folders."""

    folders: tuple[str, ...] = ()
    others: tuple[str, ...] = ()
    links: tuple[str, ...] = ()


class Layout:
    """The Python files below one root. Each folder is listed once, when it is first needed.

    Every file has one name. It is the dotted path below `src` or `python` where absolute imports find the file there,
    else the dotted path below the root: packages of a monorepo and scripts in one folder keep distinct names.
    """

    def __init__(self, root: pathlib.Path) -> None:
        self.root = os.path.normpath(root)
        self._entries: dict[str, Entries] = {}
        self._listings: dict[str, frozenset[str]] = {}
        self._found: dict[str, str | None] = {}
        self._above: dict[tuple[str, str], str | None] = {}
        self._files: list[str] | None = None
        self._searched: list[str] = []
        below = (os.path.join(self.root, name) for name in _SOURCE_FOLDERS)
        self.source_roots = (self.root, *(f for f in below if self._listing(f) and not self._is_package(f)))

    # ---- files

    def _listing(self, folder: str) -> frozenset[str]:
        names = self._listings.get(folder)
        if names is None:
            names = self._listings[folder] = frozenset().union(*self.entries(folder))
        return names

    def entries(self, folder: str) -> Entries:
        """What lies in a folder."""
        if folder not in self._entries:
            self._entries[folder] = _entries(folder)
        return self._entries[folder]

    def _is_package(self, folder: str) -> bool:
        return _INIT in self._listing(folder)

    def _module_below(self, folder: str, parts: list[str]) -> str | None:
        """The file of the module `parts` below `folder`: a file of that name, or a package's `__init__.py`."""
        for part in parts[:-1]:
            if part not in self._listing(folder):
                return None
            folder = f"{inner(folder)}{part}"
        last = parts[-1]
        names = self._listing(folder)
        # As the import system has it, a package goes before a module of the same name.
        if last in names and self._is_package(f"{inner(folder)}{last}"):
            return os.path.join(folder, last, _INIT)
        return f"{inner(folder)}{last}.py" if f"{last}.py" in names else None

    def files(self) -> list[str]:
        """The Python files below the root, sorted; folders that hold no sources of the project are left out."""
        if self._files is None:
            found: list[str] = []
            stack = [(self.root, 0)]
            while stack and len(found) < FILES_LIMIT:
                folder, depth = stack.pop()
                if depth > DEPTH_LIMIT:
                    continue
                folders, names, _ = self.entries(folder)
                self._searched.append(folder)
                found += [os.path.join(folder, name) for name in names if name.endswith(".py")]
                below = (n for n in reversed(folders) if not n.startswith(".") and n not in NO_SOURCES)
                stack += [(os.path.join(folder, name), depth + 1) for name in below]
            self._files = found[:FILES_LIMIT]
        return self._files

    def folders(self) -> list[str]:
        """The folders that `files` were searched in."""
        self.files()
        return self._searched

    def named(self, patterns: str) -> tuple[str, ...]:
        """The files in these folders that have a name like one of the patterns (between spaces, in lower case),
        sorted."""
        is_one = re.compile("|".join(map(fnmatch.translate, patterns.split()))).match
        places = ((folder, name) for folder in self.folders() for name in self.entries(folder).others)
        return tuple(sorted(os.path.join(folder, name) for folder, name in places if is_one(name.lower())))

    def has_links(self) -> bool:
        """Whether one of these folders holds a link to a folder: what lies behind it was not searched."""
        return any(self.entries(folder).links for folder in self.folders())

    # ---- names

    def holds(self, first: str) -> bool:
        """Whether a source root has anything that a name starting with `first` could mean."""
        part = first.replace(_DOT, ".")
        return any(part in self._listing(base) or f"{part}.py" in self._listing(base) for base in self.source_roots)

    def find(self, name: str) -> str | None:
        """The file of a module by its name; None when the project has no such module."""
        if name not in self._found:
            parts = [part.replace(_DOT, ".") for part in name.split(".")]
            hits = (self._module_below(base, parts) for base in self.source_roots) if all(parts) else iter(())
            self._found[name] = next((hit for hit in hits if hit), None)
        return self._found[name]

    def name_of(self, path: str) -> tuple[str, bool]:
        """The name of the module in a file, and whether the file is a package's `__init__`."""
        base = os.path.basename(path)
        is_package = base == _INIT
        for root in reversed(self.source_roots):
            name = _dotted_path(root, path)
            if name and (root == self.root or self.find(name) == path):
                return name, is_package
        return ("" if is_package else base.rpartition(".")[0]), is_package

    def locate(self, name: str, folder: str, script: bool, below: Collection[str] = ()) -> str:
        """The name inside the project of what an absolute import in a file of `folder` names; `name` if not found.

        As the interpreter would look: in the folder of a script (a file in a folder that is no package, or one that is
        started itself, `script`), in the folders above that are no packages, in the source roots. The folder of a
        script and those above it are in `sys.path` only when someone put them there, yet training recipes do. A package
        that was copied into another one still imports itself by its old name. `below`: what the file puts on the path
        (`folders_put_on_path`).
        """
        parts = name.split(".")
        found, most = "", 0
        for base in dict.fromkeys((*self._import_folders(folder, parts[0], script), *self.source_roots)):
            # A file has no modules: beside `pkg.py`, ``pkg.models.head`` is of the package `pkg` further above.
            if (length := self._length_below(base, parts, most)) > most:
                found, most = self._named_below(base, parts, length), length
            if found and most >= len(parts) - 1:
                break
        if found:
            return found
        return self._in_copied(folder, parts) or (self._put_on_path(folder, parts, below) if below else "") or name

    def _length_below(self, folder: str, parts: list[str], most: int) -> int:
        """How many of some parts name a module below a folder; `most` where not more than so many do."""
        lengths = range(len(parts), most, -1)
        return next((length for length in lengths if self._module_below(folder, parts[:length])), most)

    def _named_below(self, folder: str, parts: list[str], least: int = 1) -> str:
        """The name inside the project of what `parts` name below a folder, by the longest name of a module, of at least
        so many parts; '' where there is no such module."""
        for length in range(len(parts), least - 1, -1):
            path = self._module_below(folder, parts[:length])
            if path:
                return ".".join([self.name_of(path)[0], *parts[length:]])
        return ""

    def _put_on_path(self, folder: str, parts: list[str], below: Collection[str]) -> str:
        """The name of what `parts` name in one of the folders `below` this one or one around it: from where a program
        is started is not seen, so the nearest counts. '' where it has no such module, or the name is another one's."""
        if parts[0] in frameworks.all_packages() or parts[0] in sys.stdlib_module_names:
            return ""
        bases = (f"{inner(each)}{name}" if name else each for each in self._upwards(folder) for name in below)
        return next(filter(None, (self._named_below(base, parts) for base in bases)), "")

    def _in_copied(self, folder: str, parts: list[str]) -> str:
        """The name of what `parts` name in a package around `folder` that has their first name: in a file of
        ``tools/vendor/cosyvoice``, ``cosyvoice.utils`` is the one there. '' where it has no such module, and where a
        framework has the name: what ``pkg/torch`` imports from ``torch`` is PyTorch's."""
        first = parts[0]
        if f"{os.sep}{first}{os.sep}" not in f"{folder}{os.sep}" or first in frameworks.all_packages():
            return ""
        around = (os.path.split(each) for each in self._upwards(folder))
        found = (self._named_below(above, parts, least=2) for above, base in around if base == first)
        return next(filter(None, found), "")

    def imported(self, target: str, path: str, script: bool, below: Collection[str] = ()) -> Iterator[str]:
        """The names inside the project of all that an import of `target` (as `imports_in` gives it) in a file may run:
        the name itself, should it be a module, the module that it comes from, and the packages around that. `below`:
        what the file puts on the path."""
        if target.startswith("."):
            name = absolute_target(target, *self.name_of(path))
        else:
            name = self.locate(target, os.path.dirname(path), script, below)
        while name:
            yield name
            name = name.rpartition(".")[0]

    def _import_folders(self, folder: str, first: str, script: bool) -> Iterator[str]:
        """The folders that an import of `first` is looked for in, of those at and above the folder of a file."""
        if script and self._is_inside(folder):
            yield folder
        nearest = self._nearest(folder, first)
        while nearest is not None:
            yield nearest
            above = os.path.dirname(nearest)
            nearest = self._nearest(above, first) if above != nearest else None

    def _is_inside(self, folder: str) -> bool:
        return folder == self.root or folder.startswith(inner(self.root))

    def _upwards(self, folder: str) -> Iterator[str]:
        """A folder of the project and those around it, up to the project's root."""
        while self._is_inside(folder):
            yield folder
            above = os.path.dirname(folder)
            if above == folder:  # the root of all files, where a container may have its script
                return
            folder = above

    def _nearest(self, folder: str, first: str) -> str | None:
        """The nearest folder, at or above this one and below the root, that is no package and holds `first`. Found
        once for all folders on the way: trees can be deep."""
        passed: list[tuple[str, str]] = []
        nearest = None
        for each in self._upwards(folder):
            if (each, first) in self._above:
                nearest = self._above[each, first]
                break
            passed.append((each, first))
            listing = self._listing(each)
            if (first in listing or f"{first}.py" in listing) and not self._is_package(each):
                nearest = each
                break
        self._above.update(dict.fromkeys(passed, nearest))
        return nearest


def _entries(folder: str) -> Entries:
    folders: list[str] = []
    others: list[str] = []
    links: list[str] = []
    try:
        with os.scandir(folder) as listing:
            for entry in listing:
                (folders if entry.is_dir(follow_symlinks=False) else others).append(entry.name)
                if entry.is_symlink() and entry.is_dir():
                    links.append(entry.name)
    except OSError:
        pass
    return Entries(tuple(sorted(folders)), tuple(sorted(others)), tuple(sorted(links)))


@functools.lru_cache(maxsize=4096)
def _dotted_path(root: str, path: str) -> str:
    """`path` below `root` as a dotted name; '' when it is not below it."""
    if not path.startswith(inner(root)):
        return ""
    folder, base = os.path.split(path[len(inner(root)) :])
    parts = folder.split(os.sep) if folder else []
    if base != _INIT:
        parts.append(base.rpartition(".")[0] or base)
    return ".".join(part.replace(".", _DOT) for part in parts)
