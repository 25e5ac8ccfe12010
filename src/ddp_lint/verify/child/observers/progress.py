"""Whether a rank that records nothing is slow or stuck: what it computes, reads, compiles or sleeps through."""

from __future__ import annotations

import os
import pathlib
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from types import FrameType
from typing import Any

from ddp_lint.verify.child import patching
from ddp_lint.verify.child.recorder import Recorder
from ddp_lint.verify.frames import is_user, outwards
from ddp_lint.verify.scheduling import busy, cpu_of_threads, listed, starved_seconds
from ddp_lint.verify.spec import Marks

#: A look at a peer is compared with the one before, unless that was this many times longer ago than it should be.
_OUTDATED = 3.0
#: Bytes a second that a rank must read or write to count as busy.
_BUSY_BYTES = 64 << 10
#: Functions of torch that compile. The wrappers of torch._dynamo around code that is not to be compiled, and what runs
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
    """What a rank does without recording anything, from one query to the next: what it did long ago is no sign."""

    def __init__(self, main: int) -> None:
        """`main`: the number of the main thread."""
        self._main = main
        self._cpu = cpu_seconds()
        self._bytes = bytes_moved()
        self._starved = starved_seconds(os.getpid(), threading.get_native_id())
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
        starved = starved_seconds(os.getpid(), threading.get_native_id())
        computes = busy(computed, starved - self._starved, seconds)
        self._starved = starved
        runs = self._moves > self._looks / 2
        self._cpu, self._bytes, self._looks, self._moves = cpu, moved, 0, 0
        if any(_compiles(here) for here in outwards(sys._current_frames().get(self._main))):
            return "compiles"
        if computing_counts and computes:
            return "computes"
        if transferred > _BUSY_BYTES * seconds:
            return "reads or writes"
        return "runs Python" if runs else ""


class Peers:
    """What the peers of a rank do, by the CPU time that the system reports: that needs no thread of theirs."""

    def __init__(self, marks: Marks) -> None:
        self._marks = marks
        #: When each was queried last, and its seconds of CPU and of waiting for it then; when it was seen to work.
        self._seen: dict[int, tuple[float, float, float]] = {}
        self._worked: dict[int, float] = {}

    def register(self, rank: int) -> None:
        """Let the peers know this rank's process, and its thread that only watches: the caller's."""
        self._marks.set(rank, "watch", f"{os.getpid()} {threading.get_native_id()}")

    def worked(self, rank: int) -> float:
        """When the rank was last seen to work, long ago when it was not."""
        return self._worked.get(rank, float("-inf"))

    def ask(self, ranks: Iterable[int], now: float, often: float) -> None:
        """Note which of them have worked since the last question, unless that was less than `often` seconds ago."""
        for rank in ranks:
            pid, _, watching = self._marks.text(rank, "watch").partition(" ")
            before = self._seen.get(rank)
            if not watching or (before is not None and now - before[0] < often):
                continue
            if before is not None and now - before[0] > _OUTDATED * often:
                before = None  # what it did long ago is no sign
            thread = int(watching)
            cpu = sum(cpu_of_threads(int(pid), thread)) + sum(map(_cpu_of, descendants(int(pid))))
            starved = starved_seconds(int(pid), thread)
            self._seen[rank] = (now, cpu, starved)
            if before is not None and busy(cpu - before[1], starved - before[2], now - before[0]):
                self._worked[rank] = now


def _compiles(frame: FrameType) -> bool:
    code = frame.f_code
    for path, functions in _COMPILERS.items():
        if code.co_filename.endswith(path):
            return functions is None or code.co_name in functions
    return False


def cpu_seconds() -> float:
    """CPU time of this process, without the calling thread, and of the processes below it."""
    return time.process_time() - time.thread_time() + sum(map(_cpu_of, descendants(os.getpid())))


def bytes_moved() -> int:
    """Bytes that this process and those below it have read and written, from caches too, if it is reported."""
    return sum(map(_bytes_of, (os.getpid(), *descendants(os.getpid()))))


def descendants(pid: int) -> Iterator[int]:
    """The processes below one, where there is a /proc."""
    for task in listed(pathlib.Path(f"/proc/{pid}/task")):
        try:
            children = (task / "children").read_text(encoding="ascii").split()
        except OSError:
            continue
        for child in map(int, children):
            yield child
            yield from descendants(child)


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
