"""Loops whose end depends on the time of this rank."""

from __future__ import annotations

import sys
import threading
import time
from types import FrameType
from typing import Any

from ddp_lint.verify import trace
from ddp_lint.verify.child import patching
from ddp_lint.verify.child.loops import asks_to_go_on, asks_to_leave
from ddp_lint.verify.child.observers.base import Observer
from ddp_lint.verify.frames import as_frame, is_user, outwards

_CLOCKS = ("time", "monotonic", "perf_counter", "time_ns", "monotonic_ns", "perf_counter_ns")


class Clocks(Observer):
    """A Clocked for each loop whose test has read the clock, or that an `if` has left which did, at the end of the
    run."""

    def prepare(self) -> None:
        #: By loop the place of its test, and how many events had been written when it read the clock last.
        self._read: dict[tuple[str, int], tuple[trace.Frame, tuple[int, int], int]] = {}

    def install(self) -> None:
        for name in _CLOCKS:
            patching.replace(time, name, self._watched)

    def _watched(self, original: Any) -> Any:
        def replacement() -> Any:
            caller = sys._getframe(1)
            if is_user(caller.f_code.co_filename) and self.recorder.active and _in_main_thread():
                self._look(caller)
            return original()

        return replacement

    def _look(self, caller: Any) -> None:
        for here in outwards(caller):
            lines = asks_to_go_on(here.f_code.co_filename, here.f_lineno)
            if lines is not None:
                self._note(as_frame(here), lines)
                return
            leaves = asks_to_leave(here.f_code.co_filename, here.f_lineno)
            if leaves is not None:
                self._follow(here, as_frame(here), *leaves)
                return

    def _note(self, frame: trace.Frame, body: tuple[int, int]) -> None:
        self._read[frame.path, body[0]] = frame, body, self.recorder.writer.written

    def _follow(self, here: FrameType, asked: trace.Frame, way: range, body: tuple[int, int]) -> None:
        """Look at the next line that this frame runs: it is on the way out of the loop, or not."""
        of_thread, of_frame = sys.gettrace(), here.f_trace

        def on_event(frame: FrameType, event: str, arg: Any) -> Any:
            sys.settrace(of_thread)
            frame.f_trace = of_frame
            if event == "line" and frame.f_lineno in way:
                self._note(asked, body)
            return of_frame(frame, event, arg) if of_frame is not None else None

        here.f_trace = on_event
        if of_thread is None:
            sys.settrace(lambda *_: None)

    def finish(self) -> None:
        for frame, body, since in self._read.values():
            self.recorder.emit(trace.Clocked, frames=(), asked=(frame,), body=body, since=since)


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()
