"""The supervisor of a rank, started by torchrun: `python -m ddp_lint.verify.child LAUNCH`.

It runs one rank after the other, each as a process of its own, and notes how that process really ended (torchrun
reports the first failure only). Where a peer's rank failed it ends its own, as torchrun would. It imports no torch: the
zygote of the launch forks the ranks where there is one and a job allows that.
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Protocol

from ddp_lint.lifetime import end_with_parent
from ddp_lint.verify.child.zygote import Forked
from ddp_lint.verify.spec import Jobs, Marks, Spec, keep_end

_POLL = 0.02
#: Seconds that a rank may take to end after SIGTERM.
_GRACE = 10.0


class Supervisor:
    """Does the jobs of a launch in order."""

    def __init__(self, directory: pathlib.Path) -> None:
        self._jobs = Jobs(directory)
        self._rank = int(os.environ.get("RANK", "0"))
        self._local_rank = int(os.environ.get("LOCAL_RANK", "0"))
        self._local_ranks = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        self._child: _Process | None = None
        self._signals: list[int] = []

    def run(self) -> int:
        """The exit code of the last rank; a signal that ended it ends this process too."""
        end_with_parent()
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
        for one in (signal.SIGTERM, signal.SIGINT):
            signal.signal(one, self._forward)
        number, code = 0, 0
        while not self._signals:
            job = self._jobs.get(number)
            if job is None:
                time.sleep(_POLL)
                continue
            number += 1
            if "probe" in job:
                self._probe(job["probe"], job["cwd"])
                continue
            spec = Spec.load(pathlib.Path(job["spec"]))
            code = self._run_rank(spec, job["spec"])
            if spec.job_alone:
                break
        return _end_as(code)

    def _forward(self, number: int, _frame: object) -> None:
        self._signals.append(number)
        if self._child is not None:
            self._child.send(number)

    # ---- jobs

    def _run_rank(self, spec: Spec, spec_path: str) -> int:
        marks = Marks(pathlib.Path(spec.directory))
        oom_before = _oom_kills()
        log = marks.path(self._rank, "log")
        child = self._process(spec.fork, ("rank", spec_path), log, spec.cwd, compiles=spec.compiles)
        self._child = child
        if self._signals:  # while it started
            child.send(self._signals[0])
        marks.began(self._rank, child.pid)
        code, stopped = self._watch(child, marks, log)
        self._child = None
        marks.ended(self._rank, code, stopped=stopped, oom=_oom_kills() > oom_before)
        return code

    def _watch(self, child: _Process, marks: Marks, log: pathlib.Path) -> tuple[int, bool]:
        """The exit code, and whether it was stopped: by torchrun, or because a peer failed."""
        kill_at = float("inf")
        stopped = False
        while (code := child.poll()) is None:
            time.sleep(_POLL)
            keep_end(log)
            if time.monotonic() > kill_at:
                child.send(signal.SIGKILL)
            if not stopped and not self._signals and self._a_peer_failed(marks):
                stopped = True
                kill_at = time.monotonic() + _GRACE
                child.send(signal.SIGTERM)
        return code, stopped or bool(self._signals)

    def _a_peer_failed(self, marks: Marks) -> bool:
        first = self._rank - self._local_rank
        peers = (rank for rank in range(first, first + self._local_ranks) if rank != self._rank)
        return any(marks.content(rank, "exit").get("code", 0) != 0 for rank in peers)

    def _probe(self, paths: list[str], cwd: str) -> None:
        """Only the first of the ranks of this machine starts the probe; the others wait for the next job."""
        if self._local_rank:
            return
        request, answer, log, done = map(pathlib.Path, paths)
        compiles = json.loads(request.read_text(encoding="utf-8"))["compiles"]
        child = self._process(True, ("probe", str(request), str(answer)), log, cwd, compiles=compiles)
        self._child = child
        while child.poll() is None:
            time.sleep(_POLL)
            keep_end(log)
        self._child = None
        done.touch()

    def _process(
        self, fork: bool, run: Sequence[str], log: pathlib.Path, cwd: str, *, compiles: bool = False
    ) -> _Process:
        """Forked from the zygote where that may be and can be, else a Python of its own."""
        if fork:
            with contextlib.suppress(OSError):
                return _Process(Forked(run, log, cwd, compiles))
        name, *arguments = run
        with log.open("ab") as file:
            command = [sys.executable, "-m", f"ddp_lint.verify.child.{name}", *arguments]
            return _Process(subprocess.Popen(command, stdout=file, stderr=file, cwd=cwd, start_new_session=True))


class _Child(Protocol):
    pid: int

    def poll(self) -> int | None:
        """Its exit code (negative: the signal that ended it), None while it runs."""


class _Process:
    """A rank or probe that runs."""

    def __init__(self, child: _Child) -> None:
        self.pid = child.pid
        self.poll = child.poll

    def send(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)


def _end_as(code: int) -> int:
    """A rank's exit code; where a signal ended it, the same signal ends this process."""
    if code < 0:
        signal.signal(-code, signal.SIG_DFL) if -code != signal.SIGKILL else None
        os.kill(os.getpid(), -code)
        time.sleep(1)
    return code


def _oom_kills() -> int:
    """How often the kernel's OOM killer has struck in this control group (or machine), 0 where that is unknown."""
    for path, key in (("/sys/fs/cgroup/memory.events", "oom_kill"), ("/proc/vmstat", "oom_kill")):
        with contextlib.suppress(OSError, ValueError):
            for line in pathlib.Path(path).read_text(encoding="ascii").splitlines():
                name, _, count = line.partition(" ")
                if name == key:
                    return int(count)
    return 0


if __name__ == "__main__":
    sys.exit(Supervisor(pathlib.Path(sys.argv[1])).run())
