"""Results of earlier runs: used again as long as every file that they rest on is unchanged.

A result rests on questions about the project (`project.Project.recording`), the content of its own file among them;
it is good while each has the same answer. Results lie in JSON files, one per folder of sources, below a folder that is
named after all else that findings depend on: the settings, the tool itself, Python, LibCST. JSON and not pickle,
because the folder may have come with somebody else's repository.

Nothing here ever fails a run: what cannot be read is computed again, what cannot be written is lost.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import functools
import hashlib
import importlib.util
import json
import os
import pathlib
import re
import shutil
import types
import typing
from collections.abc import Iterator
from typing import Any

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None  # type: ignore[assignment]

from ddp_lint import __version__
from ddp_lint.config import Settings
from ddp_lint.derived import installation
from ddp_lint.engine.report import FileResult
from ddp_lint.files import read, remove_leftovers, write
from ddp_lint.findings import Finding, Span
from ddp_lint.project import Project

_KEPT_GENERATIONS = 8
#: Bytes of the results of one folder; what is larger was not written by us.
_LIMIT = 64 * 2**20
#: Lines and columns beyond this are in no file.
_FAR = 2**31
_TAG = (
    "Signature: 8a477f597d28d172789f06886806bc55\n# Results of ddp-lint. It is safe to remove this folder.\n"
    "# https://bford.info/cachedir/\n"
)
#: Settings that decide which files are looked at or how results are printed, not what is found in a file.
_NEUTRAL = {"root", "exclude", "force_exclude", "respect_gitignore", "output_format", "source", "preview", "baseline"}


class Cache:
    """The kept results of one project under one set of settings."""

    def __init__(self, folder: pathlib.Path, settings: Settings, project: Project) -> None:
        self._folder = folder
        self._project = project
        self._generation = folder / _generation(settings, project)
        self._shards: dict[str, dict[str, Any]] = {}
        self._changed: dict[str, set[str]] = {}

    def get(self, path: pathlib.Path) -> FileResult | None:
        """The result for a file from an earlier run, if it would be the same today."""
        inside = self._project.inside(path)
        try:
            shard = self._shard(inside)
            entry = shard["files"].get(inside)
            if entry is None or not self._holds(entry, shard["questions"]):
                return None
            findings = tuple(decode(Finding, item) for item in entry["findings"])
            shown = self._project.shown(path)
            if not all(self._is_sound(finding, shown) for finding in findings):
                return None
        except (TypeError, ValueError, LookupError, OSError, RecursionError):
            return None
        return FileResult(shown, findings, cached=True)

    def _is_sound(self, finding: Finding, shown: str) -> bool:
        """Whether a finding is of this file and points at what lies in the project: what a report quotes is no file
        that the cache of a stranger names."""
        return finding.span.path == shown and all(map(self._is_of_project, set(_paths(finding)) - {shown}))

    def _is_of_project(self, shown: str) -> bool:
        return pathlib.Path(shown).resolve().is_relative_to(self._project.root.resolve())

    def _holds(self, entry: dict[str, Any], questions: list[list[str]]) -> bool:
        asked = (questions[number] for number in entry["asked"])
        return all(self._project.answer(question) == answer for question, answer in asked)

    def put(self, path: pathlib.Path, result: FileResult) -> None:
        """Keep a result, unless it says that something went wrong: that may be different the next time."""
        if result.error or any(finding.code == "DDP001" for finding in result.findings):
            return
        inside = self._project.inside(path)
        name = _shard_name(inside)
        shard = self._shard(inside)
        numbers: dict[tuple[str, str], int] = shard.setdefault(
            "numbers", {(question, answer): number for number, (question, answer) in enumerate(shard["questions"])}
        )
        asked = []
        for pair in result.dependencies:
            if pair not in numbers:
                numbers[pair] = len(shard["questions"])
                shard["questions"].append(list(pair))
            asked.append(numbers[pair])
        shard["files"][inside] = {"asked": asked, "findings": [encode(finding) for finding in result.findings]}
        self._changed.setdefault(name, set()).add(inside)

    def _is_elsewhere(self) -> bool:
        """Is it behind a link, which may lead out of the checkout?"""
        return any(place.is_symlink() for place in (self._folder, self._generation))

    @property
    def folder(self) -> pathlib.Path | None:
        """Where else what depends on the same settings can be kept, None where nothing can."""
        with contextlib.suppress(OSError):
            if not self._is_elsewhere() and not self._generation.is_dir():
                self._create()
        return self._generation if self._generation.is_dir() and not self._is_elsewhere() else None

    def save(self) -> None:
        """Write what is new, beside what other runs have written meanwhile. Each file is replaced as a whole, so that
        runs at the same time do not disturb another."""
        with contextlib.suppress(OSError):
            if self._is_elsewhere():
                return
            if self._changed and not self._generation.is_dir():
                self._create()
            with _alone(self._generation) if self._changed else contextlib.nullcontext():
                for name, new in self._changed.items():
                    shard = _joined(_read_shard(self._generation / name), self._shards[name], new)
                    write(self._generation / name, json.dumps(_without_leftovers(shard)).encode())
            self._changed.clear()
            if self._generation.is_dir():
                remove_leftovers(self._generation)
                os.utime(self._generation)

    def _create(self) -> None:
        self._generation.mkdir(parents=True, exist_ok=True)
        for name, text in (("CACHEDIR.TAG", _TAG), (".gitignore", "*\n")):
            if not os.path.lexists(self._folder / name):
                write(self._folder / name, text.encode())
        generations = [p for p in self._folder.iterdir() if _is_generation(p) and p != self._generation]
        generations.sort(key=lambda p: p.stat().st_mtime, reverse=True)
        for old in generations[_KEPT_GENERATIONS - 1 :]:
            shutil.rmtree(old, ignore_errors=True)

    def _shard(self, inside: str) -> dict[str, Any]:
        name = _shard_name(inside)
        if name not in self._shards:
            self._shards[name] = _read_shard(self._generation / name)
        return self._shards[name]


def _is_generation(path: pathlib.Path) -> bool:
    """Whether a folder is one of ours by its name: nothing else in there is ours to remove."""
    return re.fullmatch(r"[\w.+]+-[0-9a-f]{20}", path.name) is not None and path.is_dir() and not path.is_symlink()


@contextlib.contextmanager
def _alone(folder: pathlib.Path) -> Iterator[None]:
    """One process at a time reads a shard, adds to it and writes it. Where folders cannot be locked, a result may get
    lost, and is made again. Raises OSError."""
    if fcntl is None:
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _shard_name(inside: str) -> str:
    folder = inside.rpartition("/")[0]
    return hashlib.sha256(folder.encode("utf-8", "surrogatepass")).hexdigest()[:20] + ".json"


def _read_shard(path: pathlib.Path) -> dict[str, Any]:
    """What a file holds, as far as it is well formed."""
    try:
        shard = json.loads(read(path, _LIMIT))
        questions = [[str(question), str(answer)] for question, answer in shard["questions"]]
        files = {name: entry for name, entry in shard["files"].items() if _is_entry(entry, len(questions))}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return {"questions": [], "files": {}}
    return {"questions": questions, "files": files}


def _is_entry(entry: object, questions: int) -> bool:
    if not isinstance(entry, dict) or not isinstance(entry.get("findings"), list):
        return False
    asked = entry.get("asked")
    return isinstance(asked, list) and all(isinstance(n, int) and 0 <= n < questions for n in asked)


def _joined(kept: dict[str, Any], own: dict[str, Any], new: set[str]) -> dict[str, Any]:
    """What is kept, with the `new` entries of one's own."""
    first = len(kept["questions"])
    files = {
        name: {**entry, "asked": [first + number for number in entry["asked"]]}
        for name, entry in own["files"].items()
        if name in new
    }
    return {"questions": [*kept["questions"], *own["questions"]], "files": {**kept["files"], **files}}


def _without_leftovers(shard: dict[str, Any]) -> dict[str, Any]:
    """The shard with each question once, without those that no result rests on any more."""
    every = [tuple(question) for question in shard["questions"]]
    asked = {every[number]: None for entry in shard["files"].values() for number in entry["asked"]}
    place = {question: number for number, question in enumerate(asked)}
    number_of = {old: place[question] for old, question in enumerate(every) if question in place}
    files = {
        path: {"asked": sorted({number_of[n] for n in entry["asked"]}), "findings": entry["findings"]}
        for path, entry in shard["files"].items()
    }
    return {"questions": [list(question) for question in asked], "files": files}


# ---- what all results depend on


def _generation(settings: Settings, project: Project) -> str:
    fields = [f.name for f in dataclasses.fields(settings) if f.name not in _NEUTRAL]
    told = {name: _plain(getattr(settings, name)) for name in fields}
    # Findings show paths relative to the working directory.
    place = project.shown(settings.root)
    key = json.dumps([told, place, _tool()], sort_keys=True)
    return f"{__version__}-{hashlib.sha256(key.encode()).hexdigest()[:20]}"


@functools.cache
def _tool() -> tuple[str, ...]:
    """What findings depend on besides files and settings: Python, LibCST, and our own code and knowledge."""
    spec = importlib.util.find_spec("libcst")
    libcst = pathlib.Path(spec.origin).with_name("_version.py") if spec and spec.origin else pathlib.Path("-")
    state = libcst.stat().st_mtime_ns if libcst.exists() else 0
    return (installation(), f"{libcst}:{state}")


def _plain(value: object) -> object:
    """A value of the settings as JSON that is the same in each run."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, (set, frozenset)):
        return sorted(map(str, value))
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value if isinstance(value, (str, int, float, bool, type(None))) else str(value)


# ---- findings as JSON


def _paths(finding: Finding) -> Iterator[str]:
    """The files that a finding points into."""
    yield from (label.span.path for label in finding.labels)
    yield from (step.span.path for trace in finding.witness for step in trace.steps)
    yield from (edit.span.path for edit in (finding.fix.edits if finding.fix else ()))


def encode(value: object) -> Any:
    """A frozen dataclass, down to strings, numbers and lists; the place of a field says which it is."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [encode(getattr(value, f.name)) for f in dataclasses.fields(value)]
    if isinstance(value, enum.Enum):
        return value.value
    return [encode(item) for item in value] if isinstance(value, tuple) else value


def decode(kind: Any, value: Any) -> Any:
    """The inverse of `encode` for a type of `ddp_lint.findings`. Raises TypeError or ValueError for anything else."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        return None if value is None else decode(arguments[0], value)
    if origin is tuple:
        return tuple(decode(arguments[0], item) for item in _list(value))
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        hints = _hints(kind)
        made = kind(*(decode(hint, item) for hint, item in zip(hints, _list(value), strict=True)))
        if isinstance(made, Span) and not _is_possible(made):
            raise ValueError(value)
        return made
    if issubclass(kind, enum.Enum):
        return kind(value)
    if not isinstance(value, kind):
        raise TypeError(value)
    return value


def _is_possible(span: Span) -> bool:
    places = (span.line, span.column, span.end_line, span.end_column)
    return all(0 < place < _FAR for place in places) and 0 <= span.cell < _FAR


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError(value)
    return value


@functools.cache
def _hints(kind: type) -> list[Any]:
    hints = typing.get_type_hints(kind)
    return [hints[f.name] for f in dataclasses.fields(kind)]
