"""Whether a rank that records nothing is slow or stuck: what it computes, reads, compiles or sleeps through."""

from __future__ import annotations

import os
import pathlib
import sys
import threading
import time
from collections.abc import Iterator
from types import FrameType
from typing import Any

from ddp_lint.verify.child import patching
from ddp_lint.verify.child.recorder import Recorder
from ddp_lint.verify.frames import is_user, outwards

#: Share of the time that a rank must compute to count as busy: it may have to share the machine with many.
_BUSY_SHARE = 0.02
#: Bytes a second that a rank must read or write to count as busy.
_BUSY_BYTES = 64 << 10
#: Functions of torch that compile. The wrappers of torch._dynamo around code that shall not be compiled, and what runs
#: compiled code, are no sign of it: a rank may wait below them.
_COMPILERS = {
    "torch/_dynamo/convert_frame.py": None,
    "torch/_inductor/compile_fx.py": ("compile_fx", "_compile_fx_inner", "compile_fx_inner", "codegen_and_compile"),
}


class Sleeps:
    """`time.sleep` of the user's code: one whose end is known is no hang. A loop that polls for something that never
    comes sleeps at one place again and again: for `patience` seconds in a time without progress that may be waiting
    for something that does come. No place is excused for longer than `longest` seconds."""

    def __init__(self, recorder: Recorder, longest: float, patience: float = 0.0) -> None:
        self._recorder = recorder
        self._longest = longest
        self._patience = patience
        self._seen: dict[tuple[str, int], float] = {}
        self._ticks = -1
        self.until = 0.0

    def install(self) -> None:
        patching.before(time, "sleep", self._sleeps)

    def _sleeps(self, seconds: Any = 0.0) -> None:
        if threading.current_thread() is not threading.main_thread() or not isinstance(seconds, int | float):
            return
        site = next((here for here in outwards(sys._getframe(2)) if is_user(here.f_code.co_filename)), None)
        if site is None or seconds > self._longest:
            return
        if self._recorder.ticks != self._ticks:
            self._ticks = self._recorder.ticks
            self._seen.clear()
        key = (site.f_code.co_filename, site.f_lineno)
        now = time.monotonic()
        first = self._seen.setdefault(key, now + seconds)
        self.until = max(self.until, first, min(now + seconds, first + self._patience))


class Activity:
    """What a rank does without recording anything, from one question to the next: what it did long ago is no sign."""

    def __init__(self, main: int) -> None:
        """`main`: the number of the main thread."""
        self._main = main
        self._cpu = cpu_seconds()
        self._bytes = bytes_moved()
        self._looks = 0
        self._moves = 0
        self._position: tuple[int, int] | None = None

    def look(self) -> None:
        """Note whether the main thread is at another instruction than at the last look."""
        frame = sys._current_frames().get(self._main)
        position = (id(frame), frame.f_lasti) if frame is not None else None
        self._looks += 1
        self._moves += position != self._position
        self._position = position

    def ask(self, seconds: float, *, computing_counts: bool) -> str:
        """What kept the rank busy in the `seconds` since the last question, in words: "" when nothing did."""
        cpu, moved = cpu_seconds(), bytes_moved()
        computed, transferred = cpu - self._cpu, moved - self._bytes
        runs = self._moves > self._looks / 2
        self._cpu, self._bytes, self._looks, self._moves = cpu, moved, 0, 0
        if any(_compiles(here) for here in outwards(sys._current_frames().get(self._main))):
            return "compiles"
        if computing_counts and computed > _BUSY_SHARE * seconds:
            return "computes"
        if transferred > _BUSY_BYTES * seconds:
            return "reads or writes"
        return "runs Python" if runs else ""


def _compiles(frame: FrameType) -> bool:
    code = frame.f_code
    for path, functions in _COMPILERS.items():
        if code.co_filename.endswith(path):
            return functions is None or code.co_name in functions
    return False


def cpu_seconds() -> float:
    """CPU time of this process, but for the thread that asks, and of the processes below it."""
    return time.process_time() - time.thread_time() + sum(map(_cpu_of, descendants(os.getpid())))


def bytes_moved() -> int:
    """Bytes that this process and those below it have read and written, from caches too, where the system tells."""
    return sum(map(_bytes_of, (os.getpid(), *descendants(os.getpid()))))


def descendants(pid: int) -> Iterator[int]:
    """The processes below one, where there is a /proc."""
    for task in _list(pathlib.Path(f"/proc/{pid}/task")):
        try:
            children = (task / "children").read_text(encoding="ascii").split()
        except OSError:
            continue
        for child in map(int, children):
            yield child
            yield from descendants(child)


def _list(path: pathlib.Path) -> list[pathlib.Path]:
    try:
        return list(path.iterdir())
    except OSError:
        return []


def _cpu_of(pid: int) -> float:
    try:
        text = pathlib.Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return 0.0
    fields = text.rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _bytes_of(pid: int) -> int:
    try:
        lines = pathlib.Path(f"/proc/{pid}/io").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) for line in lines if line.startswith(("rchar", "wchar")))
