"""Processes that user code starts, and how they ended when it joins or waits for them.

An exception in a forked child is a Raised (`where` process) once its parent joins it: fork hands the hooks down, spawn
does not.

What each Call's arguments hold: multiprocessing: class, method · subprocess: command · process_exit: status, how
"""

from __future__ import annotations

import json
import multiprocessing.process
import os
import pathlib
import subprocess
import tempfile
import traceback
import weakref
from typing import Any

from ddp_lint.verify import trace
from ddp_lint.verify.child import patching
from ddp_lint.verify.child.observers.base import Observer
from ddp_lint.verify.frames import frames_in_text, message_of


class Processes(Observer):
    """A Call at each start, join and wait of the user's. It does not need torch."""

    def prepare(self) -> None:
        #: Where each child writes the exception that ended it.
        self._written: weakref.WeakKeyDictionary[Any, pathlib.Path] = weakref.WeakKeyDictionary()

    def install(self) -> None:
        patching.before(multiprocessing.process.BaseProcess, "start", self._started)
        patching.around(multiprocessing.process.BaseProcess, "run", self._run)
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
        handle, name = tempfile.mkstemp(prefix="ddp-lint-child-")
        os.close(handle)
        self._written[process] = pathlib.Path(name)

    def _run(self, original: Any, process: Any) -> None:
        """In the child: write an exception for the parent."""
        try:
            original(process)
        except Exception as error:
            path = self._written.get(process)
            if path is not None:
                raised = {"type": type(error).__name__, "message": message_of(error)}
                path.write_text(json.dumps({**raised, "traceback": traceback.format_exc()}), encoding="utf-8")
            raise

    def _report(self, process: Any) -> None:
        path = self._written.pop(process, None)
        text = path.read_text(encoding="utf-8") if path is not None else ""
        if path is not None:
            path.unlink()
        if text and self.recorder.active:
            raised = json.loads(text)
            frames = tuple(frames_in_text(raised["traceback"]))
            self.recorder.emit(
                trace.Raised, frames=frames, type=raised["type"], message=raised["message"][:4000], where="process"
            )

    def _joined(self, _result: Any, process: Any, *_args: Any, **_kwargs: Any) -> None:
        if process.exitcode is not None:
            self._report(process)
            self._call("process_exit", how="multiprocessing", status=process.exitcode)

    def _command(self, _self: Any, args: Any, *_args: Any, **_kwargs: Any) -> None:
        words = [args] if isinstance(args, str | bytes) else list(args)
        self._call("subprocess", command=[str(word) for word in words][:8])

    def _reaped(self, status: Any, _process: Any, *_args: Any, **_kwargs: Any) -> None:
        if status is not None:
            self._call("process_exit", how="subprocess", status=status)
