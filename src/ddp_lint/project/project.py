"""Modules of the project by name, parsed on demand and kept for the life of the process."""

from __future__ import annotations

import ast
import dataclasses
import functools
import pathlib
import warnings

from ddp_lint.source.file import SourceFile, Unreadable
from ddp_lint.source.imports import ImportTable

_MARKERS = ("pyproject.toml", "ddp-lint.toml", "setup.py", "setup.cfg", ".git", ".hg")
_REEXPORT_LIMIT = 16


@dataclasses.dataclass(frozen=True)
class ModuleFacts:
    """A project module for whoever asks from another file: its `ast`, its imports, its definitions by name."""

    name: str
    file: SourceFile
    tree: ast.Module
    imports: ImportTable
    is_package: bool

    @functools.cached_property
    def definitions(self) -> dict[str, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef]:
        """Top-level functions and classes, also those under a top-level `if` or `try`."""
        found: dict[str, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef] = {}
        stack: list[ast.stmt] = list(self.tree.body)[::-1]
        while stack:
            node = stack.pop()
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                found.setdefault(node.name, node)
            elif isinstance(node, (ast.If, ast.Try)):
                stack.extend([*node.body, *node.orelse][::-1])
        return found


class Project:
    """The Python modules below one root. Nothing is read before it is asked for."""

    def __init__(self, root: pathlib.Path, cwd: pathlib.Path | None = None) -> None:
        self.root = root
        self._cwd = cwd or pathlib.Path.cwd()
        self._facts: dict[pathlib.Path, ModuleFacts | None] = {}

    @staticmethod
    def root_of(path: pathlib.Path) -> pathlib.Path:
        """The nearest folder above `path` that is marked as a project's root; the folder of `path` if none is."""
        start = path if path.is_dir() else path.parent
        for folder in (start, *start.parents):
            if any((folder / marker).exists() for marker in _MARKERS):
                return folder
        return start

    # ---- names of modules

    @functools.cached_property
    def source_roots(self) -> tuple[pathlib.Path, ...]:
        """Folders that absolute imports are looked up in: the root, and `src` or `python` below it."""
        return tuple(p for p in (self.root, self.root / "src", self.root / "python") if p.is_dir())

    def module_name(self, path: pathlib.Path) -> tuple[str, bool]:
        """The dotted name that the file is imported by, and whether it is a package's `__init__`.

        The package is as far up as `__init__.py` files go; folders without one are namespace packages only below a
        source root.
        """
        is_package = path.name == "__init__.py"
        folder, parts = path.parent, [] if is_package else [path.stem]
        while folder not in self.source_roots and folder != folder.parent:
            parts.append(folder.name)
            folder = folder.parent
            if folder in self.source_roots:
                break
        return ".".join(reversed(parts)), is_package

    @functools.cache
    def find(self, name: str) -> pathlib.Path | None:
        """The file of a project module by its absolute dotted name."""
        parts = name.split(".")
        for root in self.source_roots:
            base = root.joinpath(*parts)
            for candidate in (base.with_name(base.name + ".py"), base / "__init__.py"):
                if candidate.is_file():
                    return candidate
        return None

    # ---- facts

    def facts(self, name: str) -> ModuleFacts | None:
        """The facts of a project module by name; None when it is no project module or cannot be read."""
        path = self.find(name)
        return self.facts_of(path) if path else None

    def facts_of(self, path: pathlib.Path) -> ModuleFacts | None:
        if path not in self._facts:
            self._facts[path] = self._read(path)
        return self._facts[path]

    def _read(self, path: pathlib.Path) -> ModuleFacts | None:
        try:
            file = SourceFile.read(path, self.shown(path))
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                tree = ast.parse(file.text)
        except (Unreadable, SyntaxError, ValueError, RecursionError, MemoryError):
            return None
        name, is_package = self.module_name(path)
        return ModuleFacts(name, file, tree, ImportTable.of(tree, name, is_package), is_package)

    def shown(self, path: pathlib.Path) -> str:
        """The path as findings show it: relative to the working directory when below it."""
        try:
            return path.relative_to(self._cwd).as_posix()
        except ValueError:
            return path.as_posix()

    def inside(self, path: pathlib.Path) -> str:
        """The path relative to the project's root: what settings and fingerprints go by, wherever one runs from."""
        try:
            return path.relative_to(self.root).as_posix()
        except ValueError:
            return path.as_posix()

    # ---- names of things

    def split(self, name: str) -> tuple[ModuleFacts, str] | None:
        """The project module that a dotted name starts with, and the rest of the name inside it."""
        head, rest = name, ""
        while head:
            facts = self.facts(head)
            if facts is not None:
                return facts, rest
            head, _, last = head.rpartition(".")
            rest = f"{last}.{rest}" if rest else last
        return None

    def canonical(self, name: str) -> str:
        """Follow re-exports: `pkg.all_reduce` -> `torch.distributed.all_reduce` where pkg/__init__ imports it.

        A name that the project defines itself, or does not know, is returned as it is.
        """
        for _ in range(_REEXPORT_LIMIT):
            found = self.split(name)
            if found is None or not found[1]:
                return name
            facts, rest = found
            first = rest.partition(".")[0]
            if first in facts.definitions:
                return f"{facts.name}.{rest}"
            target = facts.imports.resolve(rest)
            if target is None:
                target = next((f"{star}.{rest}" for star in facts.imports.stars if self._has(star, first)), None)
            if target is None or target == name:
                return name
            name = target
        return name

    def _has(self, module: str, name: str) -> bool:
        facts = self.facts(module)
        if facts is None:
            return not self.find(module)
        return name in facts.definitions or name in facts.imports.names
