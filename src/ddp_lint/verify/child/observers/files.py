"""Which files and folders the lines of findings use, and for what."""

from __future__ import annotations

import collections
import os
import sys
from collections.abc import Callable
from typing import Any

from ddp_lint.verify import trace
from ddp_lint.verify.child import guard, patching
from ddp_lint.verify.child.observers.base import Observer
from ddp_lint.verify.frames import absolute

#: By audit event of Python (https://docs.python.org/3/library/audit_events.html): what it does with which argument.
_USES = {
    "os.mkdir": (("make", 0),),
    "os.remove": (("remove", 0),),
    "os.rmdir": (("remove", 0),),
    "os.rename": (("remove", 0), ("write", 1)),
    "shutil.rmtree": (("remove", 0),),
}
_WRITING = os.O_WRONLY | os.O_RDWR
#: What an import reads, and writes beside it.
_OF_MODULES = (".py", ".pyc", ".so")
#: Of each path and use so many are recorded: a loop may use one for ever.
_MOST = 4


class Files(Observer):
    """A FileAccess for each use of a file by a watched line, in whatever module of Python. `torch.save` and safetensors
    open files in C++, unseen by Python."""

    def install(self) -> None:
        spec = self.recorder.spec
        if not spec.files:
            return
        self._lines = {absolute(path): frozenset(lines) for path, lines in spec.lines.items()}
        self._count: collections.Counter[tuple[str, str]] = collections.Counter()
        notice = guard.guarded(self._audited)
        sys.addaudithook(lambda event, args: notice(event, args) if event in _USES or event == "open" else None)
        patching.when_imported("torch", lambda torch: patching.before(torch, "save", self._written_by("f", 1)))
        patching.when_imported(
            "safetensors.torch", lambda module: patching.before(module, "save_file", self._written_by("filename", 1))
        )

    def _written_by(self, name: str, position: int) -> Callable[..., None]:
        def notice(*args: Any, **kwargs: Any) -> None:
            self._use("write", args[position] if len(args) > position else kwargs.get(name))

        return notice

    def _audited(self, event: str, args: tuple[Any, ...]) -> None:
        if event == "open":
            path, _, flags = args
            self._use("write" if flags & _WRITING else "read", path)
            return
        if isinstance(args[-1], int) and args[-1] >= 0 and event in ("os.remove", "os.rmdir", "os.mkdir"):
            return  # below an open folder: a part of what `shutil.rmtree` does
        for what, number in _USES[event]:
            self._use(what, args[number])

    def _use(self, what: str, path: Any) -> None:
        if self.recorder.quiet or not isinstance(path, str | bytes | os.PathLike):
            return
        with self.recorder.quieted():
            frames = self.recorder.here()
            if not any(frame.line in self._lines.get(frame.path, ()) for frame in frames):
                return
            place = os.path.realpath(os.fsdecode(path))
            if place.endswith(_OF_MODULES) or "__pycache__" in place:
                return
            self._count[what, place] += 1
            if self._count[what, place] <= _MOST:
                self.recorder.emit(trace.FileAccess, frames=frames, what=what, path=place)
