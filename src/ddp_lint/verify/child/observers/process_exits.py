"""How user code ends the process, and exceptions: uncaught, in threads, and swallowed."""

from __future__ import annotations

import os
import signal
import sys
import threading
from typing import Any

from ddp_lint.verify import trace
from ddp_lint.verify.child import patching
from ddp_lint.verify.child.observers.base import Observer
from ddp_lint.verify.frames import absolute, frames_in_text, in_an_import, message_of, none_at, traceback_frames

#: Signals that end no process by default.
_HARMLESS = frozenset({signal.SIGCHLD, signal.SIGCONT, signal.SIGURG, signal.SIGWINCH})


class Exits(Observer):
    """An Exit before `os._exit`, before `os.exec*` and for SystemExit, a Raised for exceptions of the main code and of
    threads."""

    def install(self) -> None:
        patching.before(os, "_exit", self._exit)
        for name in ("execv", "execve"):  # the others call these
            patching.before(os, name, lambda *_: self._exit(how="os.exec"))
        patching.before(os, "kill", self._killed)
        patching.before(signal, "raise_signal", lambda number: self._killed(os.getpid(), number))
        patching.before(os, "abort", lambda: self._killed(os.getpid(), signal.SIGABRT))
        hook = threading.excepthook

        def excepthook(args: Any) -> None:
            if args.exc_value is not None and self.recorder.active:
                self.raised(args.exc_value, "thread")
            hook(args)

        threading.excepthook = excepthook

    def _exit(self, status: int = 0, how: str = "os._exit") -> None:
        if not self.recorder.quiet and self.recorder.here():
            pending = sys.exc_info()[0]
            self.recorder.emit(trace.Exit, how=how, status=int(status), pending=pending.__name__ if pending else "")
            self.before_death()

    def _killed(self, process: int, number: int) -> None:
        """The process sends itself a signal that nothing handles: the last that it does."""
        if process != os.getpid() or number == 0 or signal.getsignal(number) is not signal.SIG_DFL:
            return
        if number not in _HARMLESS:
            self._exit(-int(number), how=f"a signal that it sends itself: {signal.Signals(number).name}")

    def before_death(self) -> None:
        """Set by the session: writes what other observers still hold."""

    def left(self, error: SystemExit) -> int:
        """The user's code raised SystemExit; the status of the process."""
        status = error.code if isinstance(error.code, int) else 0 if error.code is None else 1
        pending = error.__context__
        frames, _ = traceback_frames(error.__traceback__)
        name = type(pending).__name__ if pending is not None else ""
        self.recorder.emit(trace.Exit, frames=tuple(frames), how="sys.exit", status=status, pending=name)
        return status

    def raised(self, error: BaseException, where: str) -> None:
        frames, inner = traceback_frames(error.__traceback__)
        message = message_of(error)
        self.recorder.emit(
            trace.Raised,
            # A worker's exception is raised again here, with its own traceback as text.
            frames=tuple(frames_in_text(message) + frames),
            type=type(error).__name__,
            message=message[:4000],
            where="worker" if "DataLoader worker" in message else where,
            inner=inner,
            importing=not isinstance(error, SyntaxError) and in_an_import(error.__traceback__),
            none=tuple(none_at(error.__traceback__)),
            file=_file(error),
        )


def _file(error: BaseException) -> str:
    name = error.filename if isinstance(error, OSError) else None
    return absolute(os.fsdecode(name)) if isinstance(name, str | bytes) else ""
