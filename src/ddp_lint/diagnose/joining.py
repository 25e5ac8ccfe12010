"""The join with `check`: the frames of the log in the working tree, and what the analysis says of their functions."""

from __future__ import annotations

import ast
import dataclasses
import functools
import os
import pathlib
from collections.abc import Iterable, Sequence

from ddp_lint.files import is_file
from ddp_lint.findings import Finding
from ddp_lint.source.file import SourceFile, Unreadable
from ddp_lint.source.parsing import CannotParse, parse
from ddp_lint.source.syntax import function_at, last_line
from ddp_lint.verify.trace import Frame

_SKIPPED = {"node_modules", "__pycache__", "site-packages", "venv", "build", "dist"}
_MOST_FILES, _MOST_FOLDERS = 50_000, 20_000


@dataclasses.dataclass(frozen=True)
class Local:
    """A frame of the job in the working tree."""

    frame: Frame
    path: pathlib.Path
    #: First and last line of the function around it (of the whole file at module level).
    region: tuple[int, int]


@dataclasses.dataclass(frozen=True)
class Joined:
    """What `check` says where the job failed. `finding` is None where no rule fires there."""

    local: Local
    finding: Finding | None = None


class Tree:
    """The Python files below a folder, by the paths that another machine knows them under."""

    def __init__(self, root: pathlib.Path) -> None:
        self.root = root
        self._by_name: dict[str, list[pathlib.Path]] | None = None

    def find(self, path: str) -> pathlib.Path | None:
        """The file with the longest common suffix; None where none has the name, or two fit equally well."""
        here = pathlib.Path(path)
        if here.is_absolute() and is_file(here) and self._below(here):
            return here
        parts = path.replace("\\", "/").strip("/").split("/")
        ranked = sorted(
            ((_common(parts, found.relative_to(self.root).parts), found) for found in self._named(parts[-1])),
            key=lambda item: -item[0],
        )
        if not ranked or (len(ranked) > 1 and ranked[0][0] == ranked[1][0]):
            return None
        return ranked[0][1]

    def _below(self, path: pathlib.Path) -> bool:
        return path.resolve().is_relative_to(self.root.resolve())

    def _named(self, name: str) -> Sequence[pathlib.Path]:
        if self._by_name is None:
            self._by_name = {}
            count = 0
            for number, (base, folders, names) in enumerate(os.walk(self.root)):
                folders[:] = [f for f in folders if f not in _SKIPPED and not f.startswith(".")]
                for file in names:
                    if file.endswith(".py"):
                        self._by_name.setdefault(file, []).append(pathlib.Path(base, file))
                        count += 1
                if count > _MOST_FILES or number > _MOST_FOLDERS:
                    break
        return self._by_name.get(name, ())


def _common(one: Sequence[str], other: Sequence[str]) -> int:
    count = 0
    for a, b in zip(reversed(one), reversed(other), strict=False):
        if a != b:
            break
        count += 1
    return count


def locate(frames: Iterable[Frame], tree: Tree) -> list[Local]:
    """The frames that the tree holds, in their order."""
    found, parsed = [], functools.cache(_parsed)
    for frame in frames:
        path = tree.find(frame.path)
        region = _around(frame.line, *parsed(path)) if path is not None else None
        if path is not None and region is not None:
            found.append(Local(frame, path, region))
    return found


def _parsed(path: pathlib.Path) -> tuple[ast.Module, int]:
    """A file and how many lines it has, none where it cannot be parsed."""
    try:
        text = SourceFile.read(path, str(path)).text
        return parse(text), text.count("\n") + 1
    except (Unreadable, CannotParse):
        return ast.Module([], []), 0


def _around(line: int, tree: ast.Module, lines: int) -> tuple[int, int] | None:
    """The innermost function, else the file; None for a line that the file does not have: another version of it."""
    function = function_at(tree, line)
    if function is not None:
        return function.lineno, last_line(function)
    return (1, lines) if line <= lines else None


def join(frames: Sequence[Frame], root: pathlib.Path, codes: Sequence[str], *, diverged: bool) -> Joined | None:
    """What `check` says of the first of the frames that the tree holds; None where it holds none.

    `codes` are the rules that look for the cause. `diverged`: the ranks went different ways, so the rules about
    divergence are used too. Raises ConfigError for a configuration that is wrong.
    """
    places = locate(frames, Tree(root))
    if not places:
        return None
    findings = _findings(dict.fromkeys(local.path for local in places))
    fits = [
        (score, index, finding)
        for index, local in enumerate(places)
        for finding in findings
        if (diverged and finding.code.startswith("DDP1")) or finding.code in codes
        if (score := _fit(local, finding)) > 0
    ]
    if not fits:
        return Joined(places[0])
    score, index, finding = max(fits, key=lambda fit: (fit[0], -fit[1]))
    return Joined(places[index], finding)


def _findings(paths: Iterable[pathlib.Path]) -> list[Finding]:
    from ddp_lint.config import Configuration, Overrides
    from ddp_lint.engine.runner import check_paths

    configuration = Configuration(Overrides())
    found: list[Finding] = []
    for path in paths:
        found += check_paths([path], configuration.of(path.parent)).findings
    return found


def _fit(local: Local, finding: Finding) -> int:
    """3: the finding names the line; 2: something of it lies on the line; 1: it is about the function; 0: elsewhere."""
    low, high = local.region
    spans = [finding.span, *(label.span for label in finding.labels)]
    spans += [step.span for trace in finding.witness for step in trace.steps]
    here = [s for s in spans if (pathlib.Path.cwd() / s.path).resolve() == local.path.resolve()]
    line = local.frame.line
    if any(s is finding.span and s.line <= line <= s.end_line for s in here):
        return 3
    if any(s.line <= line <= s.end_line for s in here):
        return 2
    return int(any(low <= s.line <= high for s in here) and low > 1)
