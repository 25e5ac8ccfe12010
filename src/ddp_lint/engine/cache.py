"""Results of earlier runs: used again as long as every file that they depend on is unchanged.

A result depends on questions about the project (`project.results`), the content of its own file among them;
it is good while each has the same answer. Where nothing in the project has changed, none is evaluated (`snapshot`).
Results lie in files of two lines of JSON, findings and questions, one per folder of sources, below a folder that is
named after all else that findings depend on: the settings, the tool itself, Python, LibCST. JSON and not pickle,
because the folder may be part of a foreign repository.

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
from collections.abc import Callable, Iterator
from typing import Any

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None  # type: ignore[assignment]

from ddp_lint import __version__
from ddp_lint.config import Settings
from ddp_lint.derived import installation
from ddp_lint.engine.report import FileResult
from ddp_lint.engine.snapshot import Snapshot
from ddp_lint.files import MALFORMED, read, remove_leftovers, write
from ddp_lint.findings import Finding, Span
from ddp_lint.project import Project
from ddp_lint.project.answers import digest_in
from ddp_lint.project.outcomes import NO_OUTCOMES, Earlier, Outcome
from ddp_lint.project.parts import file_of

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
        self._shards: dict[str, _Shard] = {}
        self._changed: dict[str, set[str]] = {}
        self._sound: dict[str, bool] = {}
        self._snapshot = Snapshot(project, self._generation)

    def get(self, path: pathlib.Path) -> FileResult | None:
        """The result for a file from an earlier run, if it would be the same today."""
        inside = self._project.paths.inside(path)
        try:
            shard = self._shard(inside)
            kept = shard.findings.get(inside)
            if kept is None or not self._holds(inside, shard):
                return None
            findings = tuple(decode(Finding, item) for item in kept)
            shown = self._project.paths.shown(path)
            if not all(self._is_sound(finding, shown) for finding in findings):
                return None
        except MALFORMED:
            return None
        return FileResult(shown, findings, cached=True)

    def _is_sound(self, finding: Finding, shown: str) -> bool:
        """Whether a finding is of this file and points at what lies in the project: what a report quotes is no file
        that the cache of a stranger names."""
        return finding.span.path == shown and all(map(self._is_of_project, set(_paths(finding)) - {shown}))

    def _is_of_project(self, shown: str) -> bool:
        if shown not in self._sound:
            self._sound[shown] = pathlib.Path(shown).resolve().is_relative_to(self._project.root.resolve())
        return self._sound[shown]

    def outcomes(self, inside: str) -> Earlier:
        """What an earlier run knows of the functions of a file, by its path below the root, that would be the same
        today."""
        with contextlib.suppress(*MALFORMED):
            shard = self._shard(inside)
            elsewhere = [d for d in shard.dependencies(inside) or () if file_of(d[0]) != inside]
            if elsewhere and all(self._project.answers.holds(*dependency) for dependency in elsewhere):
                known = {
                    name: Outcome(value, tuple(question for question, _ in depends))
                    for name, value, depends in shard.outcomes(inside)
                    if all(file_of(d[0]) == inside and self._project.answers.holds(*d) for d in depends)
                }
                return Earlier(known, tuple(question for question, _ in elsewhere))
        return NO_OUTCOMES

    def _holds(self, inside: str, shard: _Shard) -> bool:
        if self._snapshot.holds(inside):
            return True
        found = shard.state_of(inside, self._state_of)
        if found is State.KNOWN:
            self._snapshot.keep(inside)
        return found is not State.GONE

    def _state_of(self, question: str, answer: str) -> State:
        """What is known of a question that results depend on."""
        if not self._project.answers.holds(question, answer):
            return State.GONE
        return State.KNOWN if self._snapshot.note(question) else State.HOLDS

    def put(self, path: pathlib.Path, result: FileResult) -> None:
        """Keep a result, unless it says that something went wrong: that may be different the next time."""
        self._snapshot.add_words(result.searched)
        if result.error or any(finding.code == "DDP001" for finding in result.findings):
            return
        inside = self._project.paths.inside(path)
        self._shard(inside).put(inside, result)
        self._changed.setdefault(_shard_name(inside), set()).add(inside)
        known = [self._snapshot.note(question, digest_in(answer)) for question, answer in result.dependencies]
        if all(known):
            self._snapshot.keep(inside)

    def _is_elsewhere(self) -> bool:
        """Is it behind a link, which may lead out of the checkout?"""
        return any(place.is_symlink() for place in (self._folder, self._generation))

    @property
    def folder(self) -> pathlib.Path | None:
        """Where else what depends on the same settings can be kept, None where nothing can."""
        with contextlib.suppress(OSError):
            if not self._is_elsewhere() and not self._generation.is_dir():
                self._create()
        return self.kept_in

    @property
    def kept_in(self) -> pathlib.Path | None:
        """Where earlier runs have kept what depends on the same settings, None where none has."""
        with contextlib.suppress(OSError):
            return self._generation if self._generation.is_dir() and not self._is_elsewhere() else None
        return None

    def save(self) -> None:
        """Write what is new, in addition to what other runs have written meanwhile. Each file is replaced as a whole,
        so that runs at the same time do not disturb another."""
        with contextlib.suppress(OSError):
            if self._is_elsewhere():
                return
            if self._changed and not self._generation.is_dir():
                self._create()
            if not self._generation.is_dir():
                return
            self._snapshot.add_words(self._project.contents.searched())
            with _alone(self._generation):
                for name, new in self._changed.items():
                    write(self._generation / name, _read_shard(self._generation / name).joined(self._shards[name], new))
                self._snapshot.write()
            self._changed.clear()
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

    def _shard(self, inside: str) -> _Shard:
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


class State(enum.IntEnum):
    """Of a question: whether it has another answer than it had; and if not, whether that will be so as long as the
    files are what they are now. Of a result: the least of its questions."""

    GONE = 0
    HOLDS = 1
    KNOWN = 2


class _Shard:
    """The results of one folder of sources: the findings of each file, and the questions that they depend on."""

    def __init__(self, findings: dict[str, list[Any]], questions: bytes) -> None:
        self.findings = findings
        self._encoded = questions
        self._numbers: dict[tuple[str, str], int] | None = None
        #: By number, of the questions that were looked at: most results of a folder depend on the same ones.
        self._states: dict[int, State] = {}

    def put(self, inside: str, result: FileResult) -> None:
        """A new result for a file."""
        if self._numbers is None:
            self._numbers = {question: number for number, question in enumerate(self._questions)}
        self.findings[inside] = [encode(finding) for finding in result.findings]
        self._asked[inside] = [self._number(dependency) for dependency in result.dependencies]
        self._outcomes[inside] = {name: [value, list(map(self._number, d))] for name, value, d in result.outcomes}

    def _number(self, dependency: tuple[str, str]) -> int:
        assert self._numbers is not None
        number = self._numbers.setdefault(dependency, len(self._questions))
        if number == len(self._questions):
            self._questions.append(dependency)
        return number

    def dependencies(self, inside: str) -> list[tuple[str, str]] | None:
        """The questions that the result for a file depends on, with their answers; None where they are not known."""
        asked = self._asked.get(inside)
        return None if asked is None else [self._questions[number] for number in asked]

    def outcomes(self, inside: str) -> Iterator[tuple[str, bool, list[tuple[str, str]]]]:
        """The outcomes of the functions of a file, each with the questions that it depends on and their answers."""
        for name, (value, numbers) in self._outcomes.get(inside, {}).items():
            yield name, value, [self._questions[number] for number in numbers]

    def state_of(self, inside: str, state_of: Callable[[str, str], State]) -> State:
        """Whether the result for a file holds; `state_of` is called once for each question."""
        numbers = self._asked.get(inside)
        if numbers is None:
            return State.GONE
        least = State.KNOWN
        for number in numbers:
            state = self._states.get(number)
            if state is None:
                state = self._states[number] = state_of(*self._questions[number])
            if state is State.GONE:
                return state
            least = min(least, state)
        return least

    def joined(self, own: _Shard, new: set[str]) -> bytes:
        """What is kept, with the `new` results of one's own, each question once, without those that no result depends
        on any more."""
        results = {inside: (self, found) for inside, found in self.findings.items() if inside not in new}
        results |= {inside: (own, own.findings[inside]) for inside in new}
        numbers: dict[tuple[str, str], int] = {}
        asked, outcomes = {}, {}

        def numbered(dependencies: list[tuple[str, str]]) -> list[int]:
            return [numbers.setdefault(dependency, len(numbers)) for dependency in dependencies]

        for inside, (shard, _) in results.items():
            dependencies = shard.dependencies(inside)
            if dependencies is not None:
                asked[inside] = numbered(dependencies)
                outcomes[inside] = {name: [value, numbered(asks)] for name, value, asks in shard.outcomes(inside)}
        findings = {inside: results[inside][1] for inside in asked}
        return b"\n".join(json.dumps(part).encode() for part in (findings, [list(numbers), asked, outcomes]))

    @functools.cached_property
    def _decoded(self) -> tuple[list[tuple[str, str]], dict[str, list[int]], dict[str, dict[str, Any]]]:
        with contextlib.suppress(*MALFORMED):
            questions, asked, outcomes = json.loads(self._encoded)
            known = [(str(question), str(answer)) for question, answer in questions]
            sound = {inside: numbers for inside, numbers in asked.items() if _are_numbers(numbers, len(known))}
            return known, sound, {inside: _sound_outcomes(of, len(known)) for inside, of in outcomes.items()}
        return [], {}, {}

    @property
    def _questions(self) -> list[tuple[str, str]]:
        return self._decoded[0]

    @property
    def _asked(self) -> dict[str, list[int]]:
        return self._decoded[1]

    @property
    def _outcomes(self) -> dict[str, dict[str, Any]]:
        return self._decoded[2]


def _sound_outcomes(of: dict[str, Any], end: int) -> dict[str, Any]:
    """The outcomes that are well formed: a truth value, and the numbers of questions. Raises what `_decoded` takes."""
    return {name: [value is True, numbers] for name, (value, numbers) in of.items() if _are_numbers(numbers, end)}


def _are_numbers(value: object, end: int) -> bool:
    return isinstance(value, list) and all(isinstance(number, int) and 0 <= number < end for number in value)


def _read_shard(path: pathlib.Path) -> _Shard:
    """What a file holds, as far as it is well formed."""
    with contextlib.suppress(*MALFORMED):
        head, _, questions = read(path, _LIMIT).partition(b"\n")
        findings = {inside: found for inside, found in json.loads(head).items() if isinstance(found, list)}
        return _Shard(findings, questions)
    return _Shard({}, b"")


# ---- what all results depend on


def _generation(settings: Settings, project: Project) -> str:
    fields = [f.name for f in dataclasses.fields(settings) if f.name not in _NEUTRAL]
    values = {name: _plain(getattr(settings, name)) for name in fields}
    # Findings show paths relative to the working directory.
    place = project.paths.shown(settings.root)
    key = json.dumps([values, place, _tool()], sort_keys=True)
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
