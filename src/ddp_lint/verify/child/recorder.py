"""What every observer writes through: it knows where the rank is (phase, step, module) and stamps events with it."""

from __future__ import annotations

import contextlib
import mmap
import os
import pathlib
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

from ddp_lint.verify import trace
from ddp_lint.verify.frames import user_frames
from ddp_lint.verify.spec import Marks, Spec

_POSITION_SIZE = 256


class Recorder:
    """The trace of this rank and its position in the training.

    `ticks` grows with everything that moves; `quiet` is above 0 while the observers or the reference run, so that
    they do not observe themselves. In a forked child (a DataLoader's worker) the recorder is dead.
    """

    def __init__(self, spec: Spec, place: tuple[int, int] | None = None) -> None:
        self.spec = spec
        self.rank = int(os.environ.get("RANK", "0"))
        self.local_rank = int(os.environ.get("LOCAL_RANK", "0"))
        self.world = int(os.environ.get("WORLD_SIZE", "1"))
        self._local_world = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        if place is not None:
            self.rank, self.world = place
            self.local_rank, self._local_world = place
        self.marks = Marks(pathlib.Path(spec.directory))
        self.writer = trace.Writer(pathlib.Path(spec.directory) / f"rank{self.rank}.jsonl")
        self.phase = trace.SCRIPT_PHASE if spec.kind == "script" else "build"
        self.step = 0
        self.ticks = 0
        self.quiet = 0
        self.backward_frames: tuple[trace.Frame, ...] = ()
        #: Parameters that have no gradient in the single-process reference either.
        self.reference_without_gradient: tuple[str, ...] = ()
        #: The operator that a DTensor was given last: the same on its local tensor belongs to it.
        self.of_dtensor = ""
        #: A parameter was written outside forward and optimizer since the last look at the parameters.
        self.parameters_written = False
        self._local = threading.local()
        self._position = self._open_position()
        #: The process that has made the default group.
        self.group_of = 0
        self._forked = False
        os.register_at_fork(after_in_child=self._die)

    @property
    def local_ranks(self) -> range:
        """The ranks of this machine."""
        first = self.rank - self.local_rank
        return range(first, first + self._local_world)

    @property
    def modules(self) -> list[str]:
        """The names of the modules whose forward runs on this thread, the innermost last."""
        if not hasattr(self._local, "modules"):
            self._local.modules = []
        stack: list[str] = self._local.modules
        return stack

    @property
    def active(self) -> bool:
        return not self.quiet

    def _open_position(self) -> mmap.mmap:
        """A page of a file that holds the running module's name: it survives any death and costs no system call."""
        path = self.marks.path(self.rank, "module")
        path.write_bytes(bytes(_POSITION_SIZE))
        with path.open("r+b") as file:
            return mmap.mmap(file.fileno(), _POSITION_SIZE)

    def enter_module(self, name: str) -> None:
        self.modules.append(name)
        self._note_position(name or "(root)")

    def leave_module(self) -> None:
        if self.modules:
            self.modules.pop()
        self._note_position((self.modules[-1] or "(root)") if self.modules else "")

    def _note_position(self, name: str) -> None:
        self._position[:] = name.encode()[-_POSITION_SIZE:].ljust(_POSITION_SIZE, b"\0")

    @contextlib.contextmanager
    def quieted(self) -> Iterator[None]:
        """Nothing inside is observed."""
        self.quiet += 1
        try:
            yield
        finally:
            self.quiet -= 1

    def enter(self, phase: str) -> None:
        """The phase changes."""
        if phase != self.phase:
            self.phase = phase
            self.emit(trace.Phase, frames=self.backward_frames if phase == "backward" else ())

    def emit(self, cls: type[trace.Event], *, frames: tuple[trace.Frame, ...] | None = None, **fields: Any) -> int:
        """Write an event; its number. `frames` are looked up on the stack unless given."""
        self.ticks += 1
        attributed = False
        if frames is None:
            frames, attributed = self.frames(sys._getframe(1))
        thread = threading.current_thread()
        fields.setdefault("module", self.modules[-1] if self.modules else "")
        fields.setdefault("step", self.step)
        return self.writer.write(
            cls(
                thread="main" if thread is threading.main_thread() else thread.name,
                phase=self.phase,
                frames=frames,
                attributed=attributed,
                **fields,
            )
        )

    def frames(self, frame: FrameType | None) -> tuple[tuple[trace.Frame, ...], bool]:
        """The user's frames; those of the latest backward (True) on an autograd thread, which has none."""
        found = user_frames(frame)
        if not found and self.phase == "backward":
            return self.backward_frames, True
        return found, False

    def here(self) -> tuple[trace.Frame, ...]:
        """The user's frames of the caller."""
        return self.frames(sys._getframe(1))[0]

    def orphaned(self, op: str) -> None:
        """Called of each collective while nothing is observed: in a forked process, with a group of its parent, the
        first one is recorded in the parent's trace."""
        if self._forked and self.group_of not in (0, os.getpid()):
            self._forked = False
            writer = trace.Writer(pathlib.Path(self.spec.directory) / f"rank{self.rank}.jsonl")
            frames = user_frames(sys._getframe(1))
            writer.write(trace.Orphaned(frames=frames, attributed=True, op=op))

    def _die(self) -> None:
        self._forked = True
        self.quiet = 1 << 30
        self.writer = trace.Writer(pathlib.Path(os.devnull))
