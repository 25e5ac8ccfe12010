"""All observers of one rank, from the first line of the process to its end."""

from __future__ import annotations

import contextlib
import faulthandler
import multiprocessing
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from typing import IO, TYPE_CHECKING, Any

from ddp_lint.verify import trace
from ddp_lint.verify.child import guard, patching
from ddp_lint.verify.child.observers.base import Observer
from ddp_lint.verify.child.observers.environment import EnvironmentWrites
from ddp_lint.verify.child.observers.files import Files
from ddp_lint.verify.child.observers.lines import Lines
from ddp_lint.verify.child.observers.process_exits import Exits
from ddp_lint.verify.child.observers.processes import Processes
from ddp_lint.verify.child.observers.trackers import Trackers
from ddp_lint.verify.child.observers.watchdog import Watchdog
from ddp_lint.verify.child.recorder import Recorder
from ddp_lint.verify.frames import traceback_frames
from ddp_lint.verify.spec import Spec

if TYPE_CHECKING:
    from ddp_lint.verify.child.models import Models
    from ddp_lint.verify.child.observers.skew import Skew


class Session:
    """Observers that need torch are created right after the first import of torch: a script that sets environment
    variables before it imports torch has the same effect as without verify."""

    def __init__(self, spec: Spec, place: tuple[int, int] | None = None) -> None:
        """`place`: rank and number of ranks where the environment has none, all on this machine."""
        self.spec = spec
        self.recorder = Recorder(spec, place)
        self.began = time.monotonic()
        self._faults: IO[str] = self.recorder.marks.path(self.recorder.rank, "fault").open("w", encoding="utf-8")
        self.exits = Exits(self.recorder)
        self.lines = Lines(self.recorder)
        self.environment = EnvironmentWrites(self.recorder)
        self.observers: list[Observer] = []
        self.collectives: Any = None
        self.breaks: Any = None
        self.phases: Any = None
        self.models: Any = None
        self._mode: Any = None
        self.watchdog = Watchdog(self.recorder, self._pending, self.lines.flush)

    def start(self) -> None:
        """Everything that does not need torch."""
        guard.install(self._broken)
        faulthandler.enable(self._faults, all_threads=True)
        faulthandler.register(signal.SIGTERM, self._faults, all_threads=True, chain=True)
        self.exits.before_death = self._before_death  # type: ignore[method-assign]
        self.exits.install()
        self.environment.install()
        Files(self.recorder).install()
        Processes(self.recorder).install()
        Trackers(self.recorder).install()
        self.watchdog.start()
        patching.when_imported("torch", lambda _: self._torch_is_here())

    def watch_lines(self) -> None:
        """From here on lines count."""
        self.lines.install()

    def _torch_is_here(self) -> None:
        from ddp_lint.verify.child.dispatch import Dispatch
        from ddp_lint.verify.child.models import Models
        from ddp_lint.verify.child.observers.skew import Skew

        self._install_groups()
        models = Models()
        skew = Skew(self.recorder, models)
        self.observers = self._make_observers(models, skew)
        for observer in self.observers:
            observer.install()
        self.models = models
        self._mode = Dispatch(self.recorder, self.observers)
        self._mode.__enter__()
        self._emit_start(skew.words())
        self.recorder.marks.set(self.recorder.rank, "ready")

    def _install_groups(self) -> None:
        """What is in for the process groups of the job: a shim around them, or groups of a dry run."""
        if not self.spec.own_ranks:  # there the process that starts the ranks has it, too
            from ddp_lint.verify.child import shim

            shim.install(self._mapped, self.spec, len(self.recorder.local_ranks))
        if self.spec.world:
            from ddp_lint.verify.child import dry

            dry.Groups(self.spec.world).install()

    def _mapped(self, requested: str, actual: str) -> None:
        self.recorder.emit(trace.Mapped, requested=requested, actual=actual)

    def _make_observers(self, models: Models, skew: Skew) -> list[Observer]:
        """All observers, in the order in which they are notified of an operation."""
        from ddp_lint.verify.child.observers.breaks import Breaks
        from ddp_lint.verify.child.observers.collectives import Collectives
        from ddp_lint.verify.child.observers.phases import Phases
        from ddp_lint.verify.child.observers.races import Races
        from ddp_lint.verify.child.observers.sums import Sums
        from ddp_lint.verify.child.observers.threads import Threads

        recorder = self.recorder
        self.environment._models = models
        self.collectives = Collectives(recorder, models)
        self.collectives.before_call_at = self.lines.before_call_at
        self.collectives.before_teardown = self.lines.flush
        self.breaks = Breaks(recorder, models)
        observers: list[Observer] = [
            self.collectives,
            Races(recorder, models, self.collectives),
            Sums(recorder, models),
            Threads(recorder, models, self.collectives),
            *(kind(recorder, models) for kind in _of_models()),
            self.breaks,
            skew,
        ]
        if self.spec.world:
            from ddp_lint.verify.child import dry

            observers.append(dry.Values(recorder, models, self.collectives))
        self.phases = Phases(recorder, models, list(observers))
        return [self.phases, *observers]

    def _emit_start(self, stimuli: tuple[str, ...]) -> None:
        import torch

        recorder = self.recorder
        recorder.emit(
            trace.Start,
            frames=(),
            rank=recorder.rank,
            world=recorder.world,
            pid=recorder.writer.pid,
            wrap=self.spec.wrap,
            model=self.spec.name,
            python=sys.version.split()[0],
            torch=torch.__version__,
            device=self.spec.device,
            backend="nccl" if self.spec.device == "cuda" else "gloo",
            stimuli=stimuli,
            late=self.spec.own_ranks and multiprocessing.parent_process() is not None,
        )

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Operators run without observation."""
        with self.recorder.quieted():
            self._mode.__exit__(None, None, None)
            try:
                yield
            finally:
                self._mode.__enter__()

    def _pending(self) -> tuple[int, ...]:
        return self.collectives.pending() if self.collectives is not None else ()

    def _before_death(self) -> None:
        self.lines.flush()
        self.recorder.marks.set(self.recorder.rank, "over")

    def _broken(self, error: Exception) -> None:
        """An observer failed: this process ends at once, before the program can react to that."""
        recorder = self.recorder
        if recorder.writer.pid != os.getpid():
            return
        recorder.quiet += 1
        frames, inner = traceback_frames(error.__traceback__)
        message = f"{type(error).__name__}: {str(error)[:1000]}"
        recorder.emit(trace.Broken, frames=tuple(frames), message=message, inner=inner)
        traceback.print_exception(error)
        sys.stderr.flush()
        recorder.marks.set(recorder.rank, "dying", "failed")
        os._exit(1)

    def last_words(self, *, failed: bool = False) -> None:
        """What the observers still hold. After a failure one of them may fail too: the others still write theirs."""
        with self.recorder.quieted():
            for observer in (*self.observers, self.environment, self.lines):
                if failed and observer.reads_device:
                    continue
                try:
                    observer.finish()
                except Exception as error:
                    text = f"{type(observer).__name__} could not finish: {type(error).__name__}: {str(error)[:200]}"
                    self.recorder.emit(trace.Note, frames=(), text=text)

    def finish(self) -> None:
        """The rank completed: the last events and the completion marker."""
        recorder = self.recorder
        self.last_words()
        if self.collectives is not None:
            self.collectives.let_peers_join()
        given = tuple(map(str, sys.argv[1:]))
        recorder.emit(trace.End, frames=(), seconds=time.monotonic() - self.began, arguments=given)
        recorder.marks.set(recorder.rank, "over")
        self.close()

    def close(self) -> None:
        """Nothing is observed from here on."""
        self.recorder.quiet += 1
        self.watchdog.stop()
        if self._mode is not None:
            self._mode.__exit__(None, None, None)
            self._mode = None


def _of_models() -> tuple[Callable[[Recorder, Models], Observer], ...]:
    """The observers of what models compute, in the order in which they are notified."""
    from ddp_lint.verify.child.observers.activations import Activations
    from ddp_lint.verify.child.observers.calls import Calls
    from ddp_lint.verify.child.observers.clocks import Clocks
    from ddp_lint.verify.child.observers.hashes import Hashes
    from ddp_lint.verify.child.observers.kept import Kept
    from ddp_lint.verify.child.observers.modes import Modes
    from ddp_lint.verify.child.observers.samples import Samples
    from ddp_lint.verify.child.observers.storage import Storages
    from ddp_lint.verify.child.observers.streams import Streams
    from ddp_lint.verify.child.observers.syncs import Syncs
    from ddp_lint.verify.child.observers.trainable import Trainable
    from ddp_lint.verify.child.observers.unregistered import Unregistered
    from ddp_lint.verify.child.observers.unused import Unused
    from ddp_lint.verify.child.observers.unwrapped import Unwrapped
    from ddp_lint.verify.child.observers.writes import Writes

    return (
        Writes, Storages, Hashes, Unused, Trainable, Modes, Activations, Streams, Syncs, Calls, Kept, Samples,
        Clocks, Unwrapped, Unregistered,
    )  # fmt: skip
