"""The supervisor of a rank, started by torchrun: `python -m ddp_lint.verify.child LAUNCH`.

It runs one rank after the other, each as a process of its own, and notes how that process really ended (torchrun
reports the first failure only). Where a peer's rank failed it ends its own, as torchrun would. It imports torch when a
job allows that, so that ranks can be forked from it.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import pathlib
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

from ddp_lint.verify.lifetime import end_with_parent
from ddp_lint.verify.preload import MODULES
from ddp_lint.verify.spec import Jobs, Marks, Spec

_POLL = 0.02
_NVML = "PYTORCH_NVML_BASED_CUDA_CHECK"
#: Seconds that a rank may take to end after it was told to.
_GRACE = 10.0


class Supervisor:
    """Does the jobs of a launch in order."""

    def __init__(self, directory: pathlib.Path) -> None:
        self._jobs = Jobs(directory)
        self._rank = int(os.environ.get("RANK", "0"))
        self._local_rank = int(os.environ.get("LOCAL_RANK", "0"))
        self._local_ranks = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        self._preloaded = ""
        self._child: _Process | None = None
        self._told: list[int] = []

    def run(self) -> int:
        """The exit code of the last rank; a signal that ended it ends this process too."""
        end_with_parent()
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
        for one in (signal.SIGTERM, signal.SIGINT):
            signal.signal(one, self._forward)
        number, code = 0, 0
        while not self._told:
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
        self._told.append(number)
        if self._child is not None:
            self._child.send(number)

    # ---- jobs

    def _run_rank(self, spec: Spec, spec_path: str) -> int:
        marks = Marks(pathlib.Path(spec.directory))
        oom_before = _oom_kills()
        log = marks.path(self._rank, "log")
        forks = self._can_fork(spec.preload)
        if self._told:  # while torch was imported
            return 0
        if forks:
            self._child = _Forked(lambda: _rank_main(spec_path), log, spec.cwd)
        else:
            self._child = _Started([sys.executable, "-m", "ddp_lint.verify.child.rank", spec_path], log, spec.cwd)
        pids = {"supervisor": os.getpid(), "rank": self._child.pid, "group": self._child.pid}
        marks.set(self._rank, "pid", json.dumps(pids))
        code, stopped = self._watch(self._child, marks)
        self._child = None
        end = {"code": code, "stopped": stopped, "oom": _oom_kills() > oom_before, "time": time.time()}
        marks.set(self._rank, "exit", json.dumps(end))
        return code

    def _watch(self, child: _Process, marks: Marks) -> tuple[int, bool]:
        """The exit code, and whether it was told to end: by torchrun, or because a peer failed."""
        kill_at = float("inf")
        stopped = False
        while (code := child.poll()) is None:
            time.sleep(_POLL)
            if time.monotonic() > kill_at:
                child.send(signal.SIGKILL)
            if not stopped and not self._told and self._a_peer_failed(marks):
                stopped = True
                kill_at = time.monotonic() + _GRACE
                child.send(signal.SIGTERM)
        return code, stopped or bool(self._told)

    def _a_peer_failed(self, marks: Marks) -> bool:
        first = self._rank - self._local_rank
        for rank in range(first, first + self._local_ranks):
            if rank != self._rank and marks.has(rank, "exit"):
                with contextlib.suppress(ValueError):
                    if json.loads(marks.path(rank, "exit").read_text(encoding="utf-8"))["code"] != 0:
                        return True
        return False

    def _probe(self, paths: list[str], cwd: str) -> None:
        """Only the first of the ranks of this machine asks; the others wait for the next job."""
        if self._local_rank:
            return
        request, answer, log, done = map(pathlib.Path, paths)
        if self._can_fork(self._preloaded or "torch"):
            child: _Process = _Forked(lambda: _probe_main(request, answer), log, cwd)
        else:
            child = _Started([sys.executable, "-m", "ddp_lint.verify.child.probe", str(request), str(answer)], log, cwd)
        self._child = child
        while child.poll() is None:
            time.sleep(_POLL)
        self._child = None
        done.touch()

    # ---- forking

    def _can_fork(self, preload: str) -> bool:
        """torch is (or can be) imported here to the extent that the job allows, and no more."""
        if preload not in MODULES or (self._preloaded == "all" and preload != "all"):
            return False
        if self._preloaded != preload:
            with _without_driver():
                for name in MODULES[preload]:
                    with contextlib.suppress(ImportError):
                        importlib.import_module(name)
            self._preloaded = preload
            gc.collect()
            gc.freeze()
        return not _has_cuda()


class _Process:
    """A rank or probe that runs."""

    pid: int

    def poll(self) -> int | None:
        """Its exit code (negative: the signal that ended it), None while it runs."""
        raise NotImplementedError

    def send(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)


class _Started(_Process):
    """A Python of its own."""

    def __init__(self, command: list[str], log: pathlib.Path, cwd: str) -> None:
        with log.open("ab") as file:
            self._process = subprocess.Popen(command, stdout=file, stderr=file, cwd=cwd, start_new_session=True)
        self.pid = self._process.pid

    def poll(self) -> int | None:
        return self._process.poll()


class _Forked(_Process):
    """A copy of this process, which runs `main` and never comes back."""

    def __init__(self, main: Callable[[], None], log: pathlib.Path, cwd: str) -> None:
        self._code: int | None = None
        self.pid = os.fork()
        if self.pid == 0:
            try:
                os.setsid()
                for number in (signal.SIGTERM, signal.SIGINT):
                    signal.signal(number, signal.SIG_DFL if number == signal.SIGTERM else signal.default_int_handler)
                descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
                for standard in (1, 2):
                    os.dup2(descriptor, standard)
                os.close(descriptor)
                os.chdir(cwd)
                sys.path[0] = cwd  # as in a Python that was started there with -m
                main()
            finally:
                os._exit(1)

    def poll(self) -> int | None:
        if self._code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self._code = os.waitstatus_to_exitcode(status)
        return self._code


def _rank_main(spec_path: str) -> None:
    from ddp_lint.verify.child import rank

    sys.argv = [rank.__file__, spec_path]
    rank.leave(rank.main(spec_path))


def _probe_main(request: pathlib.Path, answer: pathlib.Path) -> None:
    from ddp_lint.verify.child import probe

    probe.main(str(request), str(answer))
    sys.stdout.flush()
    os._exit(0)


@contextlib.contextmanager
def _without_driver() -> Iterator[None]:
    """Whether there is a GPU is asked of NVML inside, which leaves the CUDA driver alone."""
    asked = os.environ.get(_NVML)
    os.environ[_NVML] = "1"
    try:
        yield
    finally:
        if asked is None:
            del os.environ[_NVML]
        else:
            os.environ[_NVML] = asked


def _has_cuda() -> bool:
    """The CUDA driver is in use here, which no child could use any more."""
    with contextlib.suppress(OSError):
        for link in pathlib.Path("/proc/self/fd").iterdir():
            with contextlib.suppress(OSError):
                if "nvidia-uvm" in str(link.readlink()):
                    return True
    return False


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
