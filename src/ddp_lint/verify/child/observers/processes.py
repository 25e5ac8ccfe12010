"""Processes that user code starts, and how they ended when it joins or waits for them.

What each Call's arguments hold: multiprocessing: class, method · subprocess: command · process_exit: status, how
"""

from __future__ import annotations

import multiprocessing.process
import subprocess
from typing import Any

from ddp_lint.verify import trace
from ddp_lint.verify.child import patching
from ddp_lint.verify.child.observers.base import Observer


class Processes(Observer):
    """A Call at each start, join and wait of the user's. It does not need torch."""

    def install(self) -> None:
        patching.before(multiprocessing.process.BaseProcess, "start", self._started)
        patching.after(multiprocessing.process.BaseProcess, "join", self._joined)
        patching.before(subprocess.Popen, "__init__", self._command)
        for name in ("wait", "poll"):
            patching.after(subprocess.Popen, name, self._reaped)

    def _call(self, name: str, /, **arguments: Any) -> None:
        if self.recorder.active and self.recorder.here():
            self.recorder.emit(trace.Call, name=name, arguments=arguments)

    def _started(self, process: Any) -> None:
        method = str(getattr(process, "_start_method", "") or "")
        self._call("multiprocessing", **{"class": type(process).__name__, "method": method})

    def _joined(self, _result: Any, process: Any, *_args: Any, **_kwargs: Any) -> None:
        if process.exitcode is not None:
            self._call("process_exit", how="multiprocessing", status=process.exitcode)

    def _command(self, _self: Any, args: Any, *_args: Any, **_kwargs: Any) -> None:
        words = [args] if isinstance(args, str | bytes) else list(args)
        self._call("subprocess", command=[str(word) for word in words][:8])

    def _reaped(self, status: Any, _process: Any, *_args: Any, **_kwargs: Any) -> None:
        if status is not None:
            self._call("process_exit", how="subprocess", status=status)
