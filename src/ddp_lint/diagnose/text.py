"""Logs as files: found, opened, decoded and handed to the reader line by line, in bounded memory."""

from __future__ import annotations

import errno
import gzip
import io
import json
import os
import pathlib
import re
import sys
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import IO, NamedTuple

from ddp_lint.diagnose.lines import Prefixes, clean, pieces
from ddp_lint.diagnose.reader import Reader
from ddp_lint.files import exists, is_endless, is_file, is_folder

#: Files above this size are not read as closely: only around lines that hold one of the words below.
_CLOSELY = 4 << 20
_CHUNK = 1 << 20
_LONGEST = 1 << 16
_BEFORE, _AFTER, _TAIL = 60, 250, 40
#: A line that was there so often, numbers aside, has nothing new to say; at most so many different ones are counted.
_OFTEN, _COUNTED = 100, 100_000
#: What a line can begin with to name its process, up to a colon at the latest: numbers count in it.
_PREFIX = 32
_ZEROS = bytes.maketrans(b"123456789", b"0" * 9)
_TRIGGERS = (
    b"rror", b"xception", b"Traceback", b"atchdog", b"imed out", b"imeout", b"exit", b"atal", b"illed",
    b"terminate called", b"what()", b"NCCL WARN", b"Xid", b"ECC", b"oom", b"OOM", b"ut of memory", b"monitored",
    b"return code", b"SIG", b"borted", b"fault", b"nan", b"NaN", b"verflow", b"OVERFLOW", b"Ignoring this", b"_limit",
    b"CANCELLED", b"work sequence", b"Assertion", b"No space", b'File "', b"lagging",
)  # fmt: skip
_TRIGGER = re.compile(
    rb"rror|xception|Traceback|atchdog|imed out|imeout|exit|Fatal|[Kk]illed|terminate called|what\(\)|NCCL WARN|Xid|"
    rb"ECC|oom-kill|OOM|ut of memory|monitored|return code|SIG[A-Z]{3}|borted|fault\b|\bnan\b|NaN|verflow|OVERFLOW|"
    rb"Ignoring this|_limit|CANCELLED|work sequence|Assertion|No space|File \"|lagging"
)
_RANK_IN_NAME = (
    re.compile(
        r"(?:^|[_\W])(?:rank|global_rank|proc|procid|task|worker|trainer)[_.=-]?(\d{1,6})(?=\D|$)", re.IGNORECASE
    ),
    re.compile(r"^(?:stdout|stderr|out|err|log)[_.-]?(\d{1,6})(?:\.|$)", re.IGNORECASE),
)
_KEEP_OUT = {".pt", ".pth", ".ckpt", ".safetensors", ".bin", ".png", ".jpg", ".npy", ".npz", ".zip", ".tar", ".so",
             ".pyc"}  # fmt: skip


class Source(NamedTuple):
    """A log: its name for people, where it is (None: standard input), and the rank in its name."""

    name: str
    path: pathlib.Path | None
    rank: int | None = None
    #: A pipe, as `<(kubectl logs job)` gives: it can be read once, from its begin to its end.
    stream: bool = False


class Unreadable(Exception):
    """A file that is not there or cannot be read; the message says why."""


def sources(paths: Sequence[str]) -> Iterator[Source]:
    """The files of the arguments, of folders all that can be logs or dumps. Raises Unreadable."""
    for name in paths:
        if name == "-":
            yield Source("standard input", None)
            continue
        path = pathlib.Path(name)
        if is_folder(path):
            yield from _folder(path)
        elif exists(path):
            yield Source(_shown(path), path, rank_in(path), stream=not is_file(path))
        else:
            raise Unreadable(f"{name}: no such file or folder")


def _folder(folder: pathlib.Path) -> Iterator[Source]:
    files = [
        pathlib.Path(base, name)
        for base, folders, names in os.walk(folder)
        for name in names
        if not name.startswith(".") and pathlib.Path(name).suffix.lower() not in _KEEP_OUT
    ]
    files = sorted(filter(is_file, files), key=lambda path: _natural(str(path)))
    numbered = _numbered(files)
    for path in files:
        yield Source(_shown(path, folder), path, rank_in(path) if path not in numbered else numbered[path])


def _natural(text: str) -> list[tuple[int, int | str]]:
    return [(0, int(part)) if part.isdigit() else (1, part) for part in re.split(r"(\d+)", text) if part]


def _numbered(files: Sequence[pathlib.Path]) -> dict[pathlib.Path, int]:
    """Files whose names differ in one number alone, from 0 on: SLURM's %t."""
    found: dict[tuple[str, int], dict[int, pathlib.Path]] = {}
    for path in files:
        for match in re.finditer(r"\d{1,6}", path.name):
            shape = f"{path.parent}/{path.name[: match.start()]}*{path.name[match.end() :]}"
            found.setdefault((shape, match.start()), {})[int(match[0])] = path
    sets = [ranks for ranks in found.values() if len(ranks) > 1 and set(ranks) == set(range(len(ranks)))]
    return {path: rank for ranks in sets for rank, path in ranks.items()}


def _shown(path: pathlib.Path, folder: pathlib.Path | None = None) -> str:
    return str(path.relative_to(folder)) if folder else str(path)


def rank_in(path: pathlib.Path) -> int | None:
    """The rank in a name: rank3.log, and torchrun's <run>/attempt_0/3/stderr.log."""
    for pattern in _RANK_IN_NAME:
        if match := pattern.search(path.name):
            return int(match[1])
    if path.name in ("stdout.log", "stderr.log", "error.json") and path.parent.name.isdigit():
        return int(path.parent.name)
    return None


def head(source: Source, size: int = 4096) -> bytes:
    """The first bytes of a file, for telling what it is; none of a pipe, which gives them once. Raises Unreadable."""
    if source.path is None or source.stream:
        return b""
    try:
        with _opened(source.path) as file:
            return file.read(size)
    except (OSError, EOFError, zlib.error) as e:
        raise Unreadable(f"{source.name}: {_reason(e)}") from e


def read(source: Source, reader: Reader, progress: Callable[[int], None] = lambda n: None) -> None:
    """Hand a whole log to the reader. Raises Unreadable; what was read before the damage stays."""
    reader.reading.sources.append(source.name)
    try:
        with _opened(source.path) as file:
            if source.path is not None and source.path.name == "error.json":
                _read_error_file(file.read(_CLOSELY), source, reader)
            else:
                _read_lines(_decoded(file), source, reader, progress)
    except (OSError, EOFError, zlib.error) as e:
        raise Unreadable(f"{source.name}: {_reason(e)}") from e


def _reason(e: BaseException) -> str:
    if isinstance(e, OSError) and e.strerror:
        return e.strerror.lower()
    return f"the compressed file is damaged ({e})"


def _opened(path: pathlib.Path | None) -> IO[bytes]:
    file = path.open("rb") if path is not None else io.BufferedReader(_Standard())
    if path is not None and is_endless(file):
        raise OSError(errno.EINVAL, "it is a device, not a file")
    if file.peek(2)[:2] == b"\x1f\x8b":
        return gzip.open(file)  # type: ignore[return-value]
    return file


class _Standard(io.RawIOBase):
    """Standard input, never closed: a pipe is read as it comes."""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: object) -> int:
        view = memoryview(buffer)  # type: ignore[arg-type]
        if sys.stdin is None:
            raise OSError(errno.EBADF, "it is closed")
        data = os.read(sys.stdin.fileno(), len(view))
        view[: len(data)] = data
        return len(data)


def _decoded(file: IO[bytes]) -> IO[bytes]:
    """UTF-16, as PowerShell writes it, in UTF-8."""
    start = file.peek(2)[:2] if hasattr(file, "peek") else b""
    if start in (b"\xff\xfe", b"\xfe\xff"):
        return io.BytesIO(file.read().decode("utf-16", "replace").encode("utf-8", "replace"))
    return file


def _read_error_file(data: bytes, source: Source, reader: Reader) -> None:
    """The file that @record writes: the traceback of a rank as JSON."""
    try:
        message = json.loads(data)["message"]
        text = message if isinstance(message, str) else message["extraInfo"]["py_callstack"]
    except (ValueError, KeyError, TypeError, RecursionError):
        text = data.decode("utf-8", "replace")
    for number, line in enumerate(str(text).splitlines(), 1):
        for piece in pieces(clean(line), Prefixes(), source.rank, ""):
            reader.take(piece, source.name, number)


def _read_lines(file: IO[bytes], source: Source, reader: Reader, progress: Callable[[int], None]) -> None:
    number, done, rest, prefixes, left = 0, 0, b"", None, 0
    repetitions = _Repetitions()
    while chunk := file.read(_CHUNK) if source.path else _some(file):
        progress(len(chunk))
        lines = (rest + chunk).split(b"\n")
        rest = lines.pop()
        if len(rest) > 4 * _LONGEST:
            rest = rest[:_LONGEST] + rest[-_LONGEST:]
        if prefixes is None and lines:
            prefixes = Prefixes.of(clean(_text(line)) for line in lines[:400])
        done += len(chunk)
        if done <= _CLOSELY:
            for line in lines:
                number += 1
                _feed(line, source, reader, number, prefixes or Prefixes())
        else:
            number, left = _skim(lines, source, reader, number, prefixes or Prefixes(), left, repetitions)
    if rest:
        prefixes = prefixes or Prefixes.of([clean(_text(rest))])
        number += 1
        _feed(rest, source, reader, number, prefixes)
    reader.reading.lines += number


def _some(file: IO[bytes]) -> bytes:
    return file.read1(_CHUNK) if hasattr(file, "read1") else file.read(_CHUNK)


def _skim(
    lines: list[bytes],
    source: Source,
    reader: Reader,
    number: int,
    prefixes: Prefixes,
    left: int,
    repetitions: _Repetitions,
) -> tuple[int, int]:
    """A stretch of a large log: only what is near a telling word and near a line that does not repeat itself, and its
    last lines. Returns the number of the last line, and how many lines after it are still near."""
    if not left and not _holds_a_trigger(lines):
        start = number + max(0, len(lines) - _TAIL)
        for offset, line in enumerate(lines[-_TAIL:], 1):
            _feed(line, source, reader, start + offset, prefixes)
        return number + len(lines), 0
    near = repetitions.near_others(lines)
    for offset, line in enumerate(lines):
        if not near[offset]:
            continue
        if _TRIGGER.search(line):
            left = _AFTER
        if left:
            left -= 1
            _feed(line, source, reader, number + offset + 1, prefixes)
    return number + len(lines), left


class _Repetitions:
    """How often the lines of a log were there, numbers aside: a job that logs the same traceback in each step says
    nothing new with it. Numbers count in lines that name ranks, and where a line names its process."""

    def __init__(self) -> None:
        self._seen: dict[int, int] = {}

    def near_others(self, lines: list[bytes]) -> bytearray:
        """For each line of a stretch, whether it is near one that was not there often, or near the end."""
        near = bytearray(len(lines))
        end = 0  # all before is decided
        for number, line in enumerate(lines):
            if self._is_often(line):
                continue
            start, stop = max(end, number - _BEFORE), min(len(lines), number + _AFTER)
            near[start:stop] = b"\1" * (stop - start)
            end = stop
        start = max(end, len(lines) - _TAIL)
        near[start:] = b"\1" * (len(lines) - start)
        return near

    def _is_often(self, line: bytes) -> bool:
        colon = line.find(b":", 0, _PREFIX)
        start = colon if colon >= 0 else _PREFIX
        rest = line[start:]
        key = hash((line[:start], rest if b"ank" in rest else rest.translate(_ZEROS)))
        seen = self._seen.get(key, 0) + 1
        if seen > 1 or len(self._seen) < _COUNTED:
            self._seen[key] = seen
        return seen > _OFTEN


def _holds_a_trigger(lines: list[bytes]) -> bool:
    """Searching a stretch for one word after another is several times as fast as one pattern for all of them."""
    stretch = b"\n".join(lines)
    return any(word in stretch for word in _TRIGGERS)


def _feed(line: bytes, source: Source, reader: Reader, number: int, prefixes: Prefixes) -> None:
    text = clean(_text(line))
    for piece in pieces(text, prefixes, source.rank, ""):
        reader.take(piece, source.name, number)


def _text(line: bytes) -> str:
    if len(line) > _LONGEST:
        line = line[: _LONGEST // 2] + b" ... " + line[-_LONGEST // 2 :]
    return line.rstrip(b"\r").decode("utf-8", "replace")
