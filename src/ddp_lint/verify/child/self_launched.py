"""Observes the processes of a program that starts its own ranks: by mp.spawn, by Process, or by calling torchrun.

Each process of the program begins here (`inject/sitecustomize.py`). It becomes a rank, with observers, as soon as it is
known which: by torchrun's environment, as the process that `mp.spawn` numbers, or by those of init_process_group.
"""

from __future__ import annotations

import contextlib
import functools
import json
import multiprocessing.popen_fork
import multiprocessing.process
import multiprocessing.util
import os
import pathlib
import signal
import sys
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from ddp_lint.verify import trace
from ddp_lint.verify.child import patching
from ddp_lint.verify.frames import add_target, in_an_import, traceback_frames
from ddp_lint.verify.spec import OWN_RANKS, OWN_WORLD, Marks, Spec


class _Rank:
    """What this process is, once it is known."""

    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        self.session: Any = None
        self._status: int | None = None
        #: What was mapped before it was known that this process is a rank.
        self._mapped: list[tuple[str, str]] = []

    # ---- the beginning

    def install(self) -> None:
        if self.spec.shim or self.spec.shared_gpus:
            patching.when_imported("torch", lambda _: self._map_devices())
        if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
            self.begin(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
        elif self._is_target():
            self._hook(self._lacks)
        patching.around(multiprocessing.process.BaseProcess, "run", self._observed)
        patching.around(multiprocessing.popen_fork.Popen, "poll", self._polled)
        patching.when_imported("torch.distributed.distributed_c10d", self._watch_groups)
        patching.when_imported("torch.multiprocessing.spawn", self._watch_spawn)

    def _is_target(self) -> bool:
        """This process runs the target itself, and is none that it has started."""
        return multiprocessing.process.parent_process() is None and os.getppid() == self.spec.launcher

    def _lacks(self, error: BaseException) -> None:
        """The target cannot import something, and no rank has begun: it would not come further in any other way."""
        marks = Marks(pathlib.Path(self.spec.directory))
        if self.session is not None or not isinstance(error, ImportError) or marks.has(0, "world"):
            return
        add_target(self.spec.path)
        marks.began(0, os.getpid())
        frames, inner = traceback_frames(error.__traceback__)
        trace.Writer(marks.directory / "rank0.jsonl").write(
            trace.Raised(
                frames=tuple(frames),
                type=type(error).__name__,
                message=str(error)[:4000],
                inner=inner,
                importing=in_an_import(error.__traceback__),
            )
        )
        marks.ended(0, 1)

    def _hook(self, notice: Callable[[BaseException], None]) -> None:
        """Call `notice` with an exception that ends the process, after it was printed."""
        hook = sys.excepthook

        def excepthook(kind: Any, error: BaseException, stack: Any) -> None:
            hook(kind, error, stack)
            notice(error)

        sys.excepthook = excepthook

    def _map_devices(self) -> None:
        """Also in the process that starts the ranks: it derives their number from the number of GPUs."""
        from ddp_lint.verify.child import shim

        shim.install(self._map, self.spec, self.spec.local_world)

    def _map(self, requested: str, actual: str) -> None:
        if self.session is None:
            self._mapped.append((requested, actual))
        else:
            self.session.recorder.emit(trace.Mapped, requested=requested, actual=actual)

    def begin(self, rank: int, world: int) -> None:
        """From here on this process is observed; the first one of its rank, and not what that starts in turn."""
        marks = Marks(pathlib.Path(self.spec.directory))
        if self.session is not None:
            return
        try:
            with marks.path(rank, "pid").open("x", encoding="utf-8") as file:
                json.dump({"supervisor": os.getpid(), "rank": os.getpid()}, file)
        except FileExistsError:
            return
        marks.path(0, "world").write_text(str(world), encoding="utf-8")
        from ddp_lint.verify.child.session import Session

        add_target(self.spec.path)
        self.session = Session(self.spec, place=(rank, world))
        self.session.start()
        self.session.watch_lines()
        for requested, actual in self._mapped:
            self.session.recorder.emit(trace.Mapped, frames=(), requested=requested, actual=actual)
        patching.before(sys, "exit", self._leaves)
        self._hook(self._failed)
        multiprocessing.util.Finalize(None, self._finished, exitpriority=100)

    # ---- who starts ranks

    def _watch_groups(self, module: ModuleType) -> None:
        def init(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            rank, world = _place(kwargs)
            if self.session is None and rank >= 0:
                self.begin(rank, world)
                if self.session is not None:
                    return module.init_process_group(*args, **kwargs)  # the one that observers have put there
            return original(*args, **kwargs)

        patching.around(module, "init_process_group", init)

    def _watch_spawn(self, module: ModuleType) -> None:
        def started(_fn: Any, _args: Any = (), nprocs: int = 1, *_: Any, **__: Any) -> None:
            os.environ[OWN_WORLD] = str(nprocs)

        def wrap(original: Callable[..., Any], fn: Callable[..., Any], i: int, *rest: Any) -> Any:
            self.begin(i, int(os.environ.get(OWN_WORLD, "1")))
            return original(functools.partial(self._observed, fn), i, *rest)

        patching.before(module, "start_processes", started)
        patching.around(module, "_wrap", wrap)

    def _observed(self, fn: Callable[..., Any], *args: Any) -> Any:
        """An exception in `fn` is that of the rank: multiprocessing swallows it."""
        try:
            return fn(*args)
        except Exception as error:
            self._failed(error)
            raise

    # ---- the end

    def _polled(self, original: Callable[..., int | None], process: Any, *args: Any, **kwargs: Any) -> int | None:
        """A rank that a signal ended could not note that itself: who has started it learns of it."""
        code = original(process, *args, **kwargs)
        if code is not None and code < 0:
            marks = Marks(pathlib.Path(self.spec.directory))
            for rank in range(int(marks.text(0, "world") or 0)):
                if marks.content(rank, "pid").get("rank") == process.pid and not marks.has(rank, "exit"):
                    marks.ended(rank, code, stopped=code == -signal.SIGTERM)
        return code

    def _leaves(self, status: Any = None) -> None:
        """`sys.exit`: what the launcher will see."""
        self._status = status if isinstance(status, int) else int(status is not None)

    def _taken(self) -> Any:
        """The session, for its end; None in another process than its own."""
        session, self.session = self.session, None
        return session if session is not None and session.recorder.writer.pid == os.getpid() else None

    def _failed(self, error: BaseException) -> None:
        session = self._taken()
        if session is None:
            return
        session.exits.raised(error, "main")
        session.last_words(failed=True)
        self._note_end(session, 1)
        session.watchdog.die()
        session.close()

    def _finished(self) -> None:
        """The process ends by itself."""
        session = self._taken()
        if session is None:
            return
        if self._status:
            session.recorder.emit(trace.Exit, how="sys.exit", status=self._status)
            session.lines.flush()
            session.close()
        else:
            session.finish()
        self._note_end(session, self._status or 0)

    def _note_end(self, session: Any, code: int) -> None:
        with contextlib.suppress(OSError):
            session.recorder.marks.ended(session.recorder.rank, code)


def _place(given: Mapping[str, Any]) -> tuple[int, int]:
    """The rank and the size that a group is made with: the arguments, else what the program has set as variables."""
    found = []
    for argument, variable in (("rank", "RANK"), ("world_size", "WORLD_SIZE")):
        number = given.get(argument, -1)
        found.append(int(number if number >= 0 else os.environ.get(variable, "-1")))
    return found[0], found[1]


def begin() -> None:
    """At the start of each process of the program."""
    path = os.environ.get(OWN_RANKS)
    if path and pathlib.Path(path).is_file():
        _Rank(Spec.load(pathlib.Path(path))).install()
