"""Many files on several processes. A worker that dies costs the one file that it was at, never the run."""

from __future__ import annotations

import contextlib
import dataclasses
import multiprocessing
import multiprocessing.connection
import pathlib
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING

from ddp_lint.config import Settings
from ddp_lint.engine.checking import Checker, preload
from ddp_lint.engine.report import FileResult
from ddp_lint.engine.scheduling import chunks_of
from ddp_lint.files import shown_from
from ddp_lint.gc_tuning import rare_collections
from ddp_lint.lifetime import end_with_parent
from ddp_lint.project import Project

if TYPE_CHECKING:
    from multiprocessing.context import ForkContext, SpawnContext

    from ddp_lint.project.communication import Reach


def run(
    paths: Sequence[pathlib.Path], jobs: int, checked: Checked, started: Callable[[], None]
) -> Iterator[FileResult]:
    """The results for `paths`, in any order, from `jobs` processes. `started` is called for each file that a worker
    begins with."""
    if _context().get_start_method() == "fork":
        preload(checked.settings)
    else:  # each reads for itself: it would have to be sent
        checked = dataclasses.replace(checked, project=None)
    chunks = deque(chunks_of(paths, jobs))
    workers: list[_Worker] = []
    try:
        while chunks or workers:
            while chunks and len(workers) < jobs:
                workers.append(_Worker(checked, started))
                workers[-1].give(chunks.popleft())
            for ready in multiprocessing.connection.wait([w.connection for w in workers]):
                worker = next(w for w in workers if w.connection is ready)
                yield from worker.receive()
                if worker.dead:
                    workers.remove(worker)
                    if worker.chunk:
                        chunks.appendleft(worker.chunk)
                elif worker.idle and chunks:
                    worker.give(chunks.popleft())
                elif worker.idle:
                    worker.dismiss()
                    workers.remove(worker)
    finally:  # also on Ctrl-C, which the workers do not see
        for worker in workers:
            worker.kill()


@dataclasses.dataclass(frozen=True)
class Checked:
    """What all workers check, and what they know of it: the arguments of a `Checker`."""

    settings: Settings
    for_cache: bool
    reach: Reach | None
    project: Project | None

    def checker(self) -> Checker:
        return Checker(self.settings, for_cache=self.for_cache, reach=self.reach, project=self.project)


class _Worker:
    """A process and what it was last given. It says which file it starts on, and sends a chunk's results at the end."""

    def __init__(self, checked: Checked, started: Callable[[], None]) -> None:
        self._started = started
        context = _context()
        self.connection, theirs = context.Pipe()
        arguments = (theirs, self.connection, checked)
        self._process = context.Process(target=_work, args=arguments, daemon=True)
        with _interrupts_held():
            self._process.start()
        theirs.close()
        self.chunk: list[pathlib.Path] = []
        self.dead = False
        self.idle = True
        self._at = 0

    def give(self, chunk: list[pathlib.Path]) -> None:
        self.chunk, self.idle, self._at = chunk, False, 0
        with contextlib.suppress(ConnectionError):  # it died: `receive` finds out
            self.connection.send(chunk)

    def receive(self) -> list[FileResult]:
        """The results at the end of a chunk; when the worker has died, an error for the file that it was at."""
        try:
            message = self.connection.recv()
        except (EOFError, ConnectionError):
            return [self._lost()]
        if isinstance(message, int):
            self._at = message
            self._started()
            return []
        self.idle, self.chunk = True, []
        results: list[FileResult] = message
        return results

    def _lost(self) -> FileResult:
        self._process.join()
        self.dead = True
        path = self.chunk.pop(self._at)
        status = self._process.exitcode or 0
        reason = f"signal {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"
        message = f"the process that checked it died ({reason}); please report it. The other files were checked"
        return FileResult(shown_from(pathlib.Path.cwd(), path), error=message)

    def dismiss(self) -> None:
        # Closing our end would not do: workers that were forked later hold copies of it.
        with contextlib.suppress(ConnectionError):
            self.connection.send(None)
        self._process.join()
        self.connection.close()

    def kill(self) -> None:
        self._process.terminate()
        self._process.join()
        self.connection.close()


def _context() -> ForkContext | SpawnContext:
    """Forked workers share what is imported; where threads run (or there is no fork), they must start afresh."""
    if sys.platform == "linux" and threading.active_count() == 1:
        return multiprocessing.get_context("fork")
    return multiprocessing.get_context("spawn")


@contextlib.contextmanager
def _interrupts_held() -> Iterator[None]:
    """A Ctrl-C that comes while a worker starts waits until the worker can see that it is not meant."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _work(connection: Connection, other_end: Connection, checked: Checked) -> None:
    """The life of a worker: chunks in, results out, until there is None or the other end is closed."""
    end_with_parent()  # also while it checks a long file
    other_end.close()  # a copy of the parent's: with it here, the parent's death would go unnoticed
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # blocked since before the start
    with rare_collections(), contextlib.suppress(EOFError, ConnectionError):
        _serve(connection, checked.checker())


def _serve(connection: Connection, checker: Checker) -> None:
    while True:
        chunk: list[pathlib.Path] | None = connection.recv()
        if chunk is None:
            return
        results = []
        for number, path in enumerate(chunk):
            connection.send(number)
            results.append(checker.check(path))
        connection.send(results)
