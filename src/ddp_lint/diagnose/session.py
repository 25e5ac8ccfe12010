"""A whole diagnosis: read every file, align the dumps, judge, and run `check` on the lines."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Callable, Sequence

from ddp_lint.diagnose import flight, text
from ddp_lint.diagnose.flight import BadDump, Flight
from ddp_lint.diagnose.joining import Joined, join
from ddp_lint.diagnose.judge import judge
from ddp_lint.diagnose.reader import Reader
from ddp_lint.diagnose.records import Diagnosis, Reading, is_library
from ddp_lint.verify.trace import Frame

#: Kinds for which the ranks went different ways, so that the analysis of divergence has something to say.
_DIVERGED = {"HANG", "DIVERGENCE", "VANISHED"}
#: What a log says loses against dumps that show where the ranks diverge, unless a rank failed by itself.
_OF_ITS_OWN = {"ROOT", "KILLED", "LAUNCH"}


@dataclasses.dataclass(frozen=True)
class Answer:
    """What is printed. `problems` are files that could not be read, and why."""

    diagnosis: Diagnosis
    reading: Reading
    flight: Flight | None = None
    joined: Joined | None = None
    #: Whether the working tree was used at all.
    asked: bool = False
    problems: tuple[str, ...] = ()


def diagnose(
    paths: Sequence[str],
    source: pathlib.Path | None,
    progress: Callable[[int], None] = lambda n: None,
) -> Answer:
    """The answer for what the paths hold. `source` is the working tree, None to leave it alone.

    Raises text.Unreadable where nothing can be read, ConfigError for a configuration of the tree that is wrong.
    """
    reader, dumps, problems, read = Reader(), [], [], 0
    for log in text.sources(paths):
        try:
            if log.path is not None and flight.looks_like_dump(text.head(log, 1 << 16)):
                dumps.append(flight.load(log.path, log.name))
            else:
                text.read(log, reader, progress)
            read += 1
        except (BadDump, text.Unreadable) as e:
            problems.append(str(e))
        except OSError as e:
            problems.append(f"{log.name}: {(e.strerror or str(e)).lower()}")
    if not read:
        raise text.Unreadable("; ".join(problems) or f"{', '.join(paths)}: contains no log or dump")
    return _answer(reader.finish(), flight.align(dumps) if dumps else None, source, problems)


def _answer(reading: Reading, dumps: Flight | None, source: pathlib.Path | None, problems: list[str]) -> Answer:
    found = judge(reading)
    if dumps is not None and found.verdict not in _OF_ITS_OWN:
        seen = flight.diagnosis(dumps)
        if seen is not None:
            secondary = (*found.root, *found.secondary) if found.kind != "unknown" else ()
            found = dataclasses.replace(seen, secondary=secondary[:12], launcher=found.launcher)
    joined = None
    if source is not None:
        codes = found.known.codes if found.known else ()
        joined = join(_frames(found, reading, dumps), source, codes, diverged=found.verdict in _DIVERGED)
    return Answer(found, reading, dumps, joined, source is not None, tuple(problems))


def _frames(found: Diagnosis, reading: Reading, dumps: Flight | None) -> list[Frame]:
    """The user's frames to check: the blamed line first, then those of what led to it, then the other ranks'."""
    frames: list[Frame] = [found.place] if found.place else []
    if found.event is not None:
        frames += found.event.frames
    for event in reading.events:
        frames += event.frames
    for mismatch in dumps.mismatches[:1] if dumps else ():
        frames += [frame for call in mismatch.calls.values() if call for frame in call.frames]
    return [frame for frame in dict.fromkeys(frames) if not is_library(frame.path)][:60]
