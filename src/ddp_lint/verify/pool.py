"""The processes of a launch: torchrun, a supervisor for each rank, and for each of them one rank after the other.

A launch stays up between the runs of a target, and forks a rank for each run from one process that has torch imported,
so that a run costs what it computes. A run that dies takes its own ranks with it; a launch that dies is started again
for the runs that are left. Nothing of a launch stays when it is closed, or when the process that opened it ends.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import getpass
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ddp_lint.lifetime import PREFIX, below, end, end_with_parent, remove_left_behind
from ddp_lint.verify.options import Options
from ddp_lint.verify.spec import CAN_FORK, LOOPBACK, OWN_RANKS, TOKEN, Jobs, Marks, Spec, keep_end, longest_wait

#: Seconds that importing torch and meeting at the rendezvous may take on a cold disk.
_START_LIMIT = 120.0
#: Seconds more that the nodes of a job wait for each other.
_NODES_LIMIT = 600.0
#: Seconds for processes to end after a request.
_GRACE = 10.0
_POLL = 0.05
#: What Python imports at the start of each process of a program that starts its own ranks.
_INJECTED = pathlib.Path(__file__).parent / "child" / "inject"
#: What `accelerate launch --cpu` sets: without it accelerate makes a job of one where there is no GPU.
_ON_CPU = ("ACCELERATE_USE_CPU", "true")
#: Called between two looks at the marks of a run.
Poll = Callable[[], None]


@dataclasses.dataclass(frozen=True)
class Ended:
    """How a run ended: the exit code that torchrun has (or would have) for it, and the ranks of this machine;
    `interrupted`: by Ctrl-C; `given_up`: after the limit of its spec."""

    code: int
    ranks: range
    interrupted: bool = False
    given_up: bool = False


class Pool:
    """Starts launches when they are needed, and keeps the latest one up. A context manager.

    All runs of a pool are of one number of ranks and one device. `folder` gets a folder for each launch. With `fork`
    it keeps a process from which the ranks are forked whose `Spec` allows that. `device` and `fork` need not be known
    before the first run (`settle`).
    """

    def __init__(self, folder: pathlib.Path, options: Options, device: str = "cpu", *, fork: bool = CAN_FORK) -> None:
        self._folder = folder
        self._options = options
        self._device = device
        self._fork = fork
        self._launch: _Launch | None = None
        self._launches = 0

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> None:
        """Let a process import torch, which takes seconds, while the caller finds out what `settle` needs."""
        self._up()

    def settle(self, device: str, *, fork: bool) -> None:
        """Let all processes come up: the first run would begin with that."""
        self._device, self._fork = device, fork
        self._ready()

    def run(self, spec: Spec, poll: Poll = lambda: None) -> Ended:
        """One run; `poll` is called many times a second until all its ranks have ended."""
        directory = pathlib.Path(spec.directory)
        launch = self._ready(directory.name)
        ended = launch.run(spec, poll)
        if launch.ended and launch.proven and not spec.job_alone:  # it died, which is no fault of the target
            self.close()
            shutil.rmtree(directory)
            directory.mkdir()
            launch = self._ready(directory.name)
            ended = launch.run(spec, poll)
        launch.proven = True
        if spec.job_alone or launch.ended:
            self.close()
        return ended

    def run_own(self, spec: Spec, command: Sequence[str], poll: Poll = lambda: None) -> Ended:
        """One run of a program that starts its ranks by itself: it runs as it is, its processes observe themselves.

        The ranks of `Ended` are those that began; there are none when the program made no process group.
        """
        directory = pathlib.Path(spec.directory)
        spec.save(directory / "spec.json")
        printed = directory / "torchrun.log"
        with printed.open("ab") as log, processes(directory) as environment:
            if self._device == "cpu":
                environment["CUDA_VISIBLE_DEVICES"] = ""
                environment.setdefault(*_ON_CPU)
            environment[OWN_RANKS] = str(directory / "spec.json")
            path = [str(_INJECTED), *filter(None, [environment.get("PYTHONPATH")])]
            environment["PYTHONPATH"] = os.pathsep.join(path)
            process = subprocess.Popen(
                command,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                env=environment,
                start_new_session=True,
                preexec_fn=end_with_parent,  # noqa: PLW1509 - one thread runs here
            )
            run = _Run(directory, spec, self._options)
            began = time.monotonic()
            while (code := process.poll()) is None:
                try:
                    time.sleep(_POLL)
                    keep_end(printed)
                    poll()
                except KeyboardInterrupt:
                    run.interrupt()
                    process.terminate()
                if not run.began() and time.monotonic() - began > _START_LIMIT + longest_wait(spec.timeout):
                    process.kill()
        return Ended(code, run.ranks() if run.began() else range(0), run.interrupted)

    def call(self, request: pathlib.Path, answer: pathlib.Path) -> pathlib.Path:
        """Ask the first rank's supervisor to run the probe; the log of it. There is no answer when it died."""
        launch = self._ready()
        log = launch.call(request, answer)
        if log is None:  # there is no launch, which the runs will report: the probe needs none
            log = answer.with_suffix(".log")
            command = [sys.executable, "-m", "ddp_lint.verify.child.probe", str(request), str(answer)]
            with processes(answer.parent) as environment, log.open("wb") as file:
                subprocess.run(command, stdout=file, stderr=file, env=environment, check=False)
        return log

    def close(self) -> None:
        """End the launch that is up, if one is."""
        launch, self._launch = self._launch, None
        if launch is not None:
            launch.close()

    def _ready(self, title: str = "launch") -> _Launch:
        launch = self._up()
        launch.begin(self._device, title, fork=self._fork)
        return launch

    def _up(self) -> _Launch:
        if self._launch is not None and self._launch.ended:
            self.close()
        if self._launch is None:
            folder = self._folder / f".launch{self._launches}"
            self._launches += 1
            self._launch = _Launch(folder, self._options)
        return self._launch


class _Launch:
    """One torchrun from its start to the end of its last process. It imports torch, and then waits for `begin`."""

    def __init__(self, folder: pathlib.Path, options: Options) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        self.folder = folder
        self.options = options
        self.jobs = Jobs(folder)
        #: A run has ends in it.
        self.proven = False
        self._number = 0
        self._begun = False
        self._closing = contextlib.ExitStack()
        try:
            log = self._closing.enter_context((folder / "torchrun.log").open("wb"))
            environment = self._closing.enter_context(processes(folder))
            self._token = environment[TOKEN]
            if options.nproc > 1:  # as torchrun does, which is too late for a process that has torch imported
                environment.setdefault("OMP_NUM_THREADS", "1")
            self._process = subprocess.Popen(
                [sys.executable, "-m", "ddp_lint.verify.torchrun"],
                stdout=log,
                stderr=log,
                stdin=subprocess.PIPE,
                env=environment,
                cwd=folder,
                start_new_session=True,
                # Told to, torchrun ends its ranks: nothing stays when this process is killed.
                preexec_fn=functools.partial(end_with_parent, signal.SIGTERM),  # noqa: PLW1509 - one thread runs here
            )
        except BaseException:
            self._closing.close()
            raise

    def begin(self, device: str, title: str, *, fork: bool) -> None:
        """Tell torchrun what to start, once."""
        if self._begun:
            return
        self._begun = True
        hidden = {"CUDA_VISIBLE_DEVICES": "", _ON_CPU[0]: os.environ.get(*_ON_CPU)} if device == "cpu" else {}
        request = {"fork": fork, "arguments": self._torchrun(title), "environment": hidden}
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError), self._process.stdin as pipe:  # it died: the first run finds that out
            pipe.write(json.dumps(request).encode() + b"\n")

    @property
    def ended(self) -> bool:
        return self._process.poll() is not None

    def _torchrun(self, title: str) -> list[str]:
        """torchrun's arguments; where all ranks are on this machine, for stores that no other one reaches."""
        given = list(self.options.launcher)
        names = {option.partition("=")[0].replace("_", "-") for option in given}
        alone = not names & {"--nnodes", "--node-rank", "--rdzv-backend", "--rdzv-endpoint", "--master-port"}
        if self.options.several_nodes:
            # A node that has finished one launch must not meet one that is still in it.
            identity = next((option.partition("=")[2] for option in given if option.startswith("--rdzv-id=")), "verify")
            given.append(f"--rdzv-id={identity}-{title}")
        if alone:
            given = ["--standalone", f"--local-addr={LOOPBACK}", *given]
        return [f"--nproc-per-node={self.options.nproc}", *given, "-m", "ddp_lint.verify.child", str(self.folder)]

    # ---- jobs

    def run(self, spec: Spec, poll: Poll) -> Ended:
        """Until every rank of this machine has ended, or torchrun has."""
        directory = pathlib.Path(spec.directory)
        spec = dataclasses.replace(spec, job=self._number)
        spec.save(directory / "spec.json")
        self._submit({"spec": str(directory / "spec.json")})
        run = _Run(directory, spec, self.options)
        try:
            run.wait(self, poll)
        finally:
            run.end_all()
            end(below(self._process.pid).difference(_carriers(self._token)))  # daemons with an environment of their own
            shutil.copyfile(self.folder / "torchrun.log", directory / "torchrun.log")
        return Ended(self._code(run), run.ranks(), run.interrupted, run.given_up)

    def call(self, request: pathlib.Path, answer: pathlib.Path) -> pathlib.Path | None:
        """The log of the probe, None when the launch ended before there was one."""
        log = answer.with_suffix(".log")
        done = answer.with_suffix(".done")
        self._submit({"probe": [str(request), str(answer), str(log), str(done)], "cwd": str(pathlib.Path.cwd())})
        while not done.exists() and not self.ended:
            time.sleep(_POLL)
        return log if log.exists() else None

    def _submit(self, job: dict[str, Any]) -> None:
        self.jobs.put(self._number, job)
        self._number += 1

    def _code(self, run: _Run) -> int:
        """What torchrun reports of a run that it has seen, or would have reported."""
        code = self._process.poll()
        if code is not None:
            return code
        return int(any(run.code(rank) != 0 for rank in run.ranks()))

    # ---- the end

    def close(self) -> None:
        """End it at once: no run is in it any more, and what its processes would do at their end is not needed."""
        self._process.kill()
        self._process.wait()
        if self._process.stdin is not None and not self._begun:
            self._process.stdin.close()
        self._closing.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def wait(self, seconds: float) -> None:
        """For torchrun to end by itself, for this long at most."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)

    def stop(self) -> None:
        """End torchrun and all processes that it started."""
        if self.ended:
            return
        self._process.terminate()
        self.wait(_GRACE)
        if not self.ended:
            self._process.kill()
            self._process.wait()


class _Run:
    """The ranks of one run, by the marks that they set."""

    def __init__(self, directory: pathlib.Path, spec: Spec, options: Options) -> None:
        self.marks = Marks(directory)
        self._directory = directory
        self._spec = spec
        self._options = options
        self.interrupted = False
        self.given_up = False

    def ranks(self) -> range:
        """The ranks of this machine: those that torchrun numbered, else (none came up) the requested number."""
        numbers = self.began()
        if self._spec.own_ranks:
            return range(max(numbers, default=-1) + 1)
        first = min(numbers, default=0)
        first -= first % self._options.nproc
        return range(first, first + self._options.nproc)

    def began(self) -> list[int]:
        """The ranks whose process was started."""
        return [int(path.name.removeprefix("rank").partition(".")[0]) for path in self._directory.glob("rank*.pid")]

    def code(self, rank: int) -> int | None:
        return self.marks.content(rank, "exit").get("code")

    def wait(self, launch: _Launch, poll: Poll) -> None:
        """Until all ranks have ended. torchrun is ended when its ranks never start; ranks are that hang where their
        watchdog cannot end them."""
        began = 0.0
        limit = time.monotonic() + _START_LIMIT + (_NODES_LIMIT if self._options.several_nodes else 0)
        while not self._over():
            if launch.ended:
                return
            try:
                time.sleep(_POLL)
                poll()
            except KeyboardInterrupt:
                self.interrupt()
                return
            if not began and self.began():
                began = time.monotonic()
            if self._spec.limit and began and time.monotonic() > began + self._spec.limit:
                self.given_up = True
                self._stop()
                return
            if time.monotonic() > limit and self._never_begins():
                launch.stop()
            if self._beyond_rescue():
                self._end(signal.SIGTERM)
                self._wait_for_exits()
                self._end(signal.SIGKILL)
        if self._spec.job_alone:
            launch.wait(_GRACE)

    def _never_begins(self) -> bool:
        """No rank has torch, or one was not even started."""
        ranks = self.ranks()
        return not any(self.marks.has(rank, "ready") for rank in ranks) or not all(
            self.marks.has(rank, "pid") for rank in ranks
        )

    def interrupt(self) -> None:
        """End the ranks: what they have written until now is the run."""
        self.interrupted = True
        self._stop()

    def _stop(self) -> None:
        if self.began():
            self._end(signal.SIGTERM)
            self._wait_for_exits()

    def _over(self) -> bool:
        return all(self.marks.has(rank, "exit") for rank in self.ranks())

    def _wait_for_exits(self) -> None:
        until = time.monotonic() + _GRACE
        while time.monotonic() < until and not self._over():
            time.sleep(_POLL)

    def _beyond_rescue(self) -> bool:
        """Every rank that is left hangs where no Python runs: in the teardown of CUDA, or in C with the GIL held."""
        left = [rank for rank in self.ranks() if self.marks.has(rank, "pid") and not self.marks.has(rank, "exit")]
        if not left or not all(map(self._overdue, left)):
            return False
        for rank in left:
            self.marks.set(rank, "overdue")
        return True

    def _overdue(self, rank: int) -> bool:
        diverged = self.marks.time(rank, "diverged")
        if diverged:  # it has to end
            return time.time() - diverged > _GRACE
        ending = max(self.marks.time(rank, mark) for mark in ("leaving", "dumped", "over"))
        moved = max(ending, self.marks.moved(rank), self.marks.time(rank, "pid"))
        patience = self._spec.timeout if ending else longest_wait(self._spec.timeout)
        return time.time() - moved > patience + _GRACE

    def _pids(self) -> Iterator[tuple[int, int]]:
        for rank in self.ranks():
            if pids := self.marks.content(rank, "pid"):
                yield rank, pids["rank"]

    def _end(self, number: signal.Signals) -> None:
        """Send a signal to the ranks that are left."""
        end((pid for rank, pid in self._pids() if not self.marks.has(rank, "exit")), number)

    def end_all(self) -> None:
        """End the ranks that are left, and what ranks started and left behind: each of them leads a process group."""
        for _, pid in self._pids():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)


@contextlib.contextmanager
def workspace(kept: pathlib.Path | None) -> Iterator[pathlib.Path]:
    """The folder for traces: the user's, or one that goes away."""
    if kept is not None:
        kept.mkdir(parents=True, exist_ok=True)
        yield kept.resolve()
        return
    remove_left_behind(pathlib.Path(tempfile.gettempdir()))
    prefix = f"{PREFIX}{os.getpid()}-"
    with tempfile.TemporaryDirectory(prefix=prefix, ignore_cleanup_errors=True) as folder:
        yield pathlib.Path(folder)


def _user() -> str:
    """What torch calls the user: what is compiled here is in its own cache, where the next training looks, too."""
    try:
        return re.sub(r'[\\/:*?"<>|]', "_", getpass.getuser())
    except (KeyError, OSError):  # a container's user that has no name
        return f"uid_{os.getuid()}"


@contextlib.contextmanager
def processes(folder: pathlib.Path) -> Iterator[dict[str, str]]:
    """The environment for the processes of a launch; processes that still carry its token afterwards are ended.

    Each rank has a session of its own, so that no process group holds them all: the token does.
    """
    token = uuid.uuid4().hex
    temporary = folder / "tmp"
    temporary.mkdir(exist_ok=True)
    environment = dict(os.environ)
    environment.setdefault("TORCHINDUCTOR_CACHE_DIR", f"{tempfile.gettempdir()}/torchinductor_{_user()}")
    environment.update({TOKEN: token, "TMPDIR": str(temporary), "PYTHONUNBUFFERED": "1"})
    try:
        yield environment
    finally:
        _end_all(token, folder)
        shutil.rmtree(temporary, ignore_errors=True)


def _end_all(token: str, folder: pathlib.Path) -> None:
    """SIGKILL every process that carries the token, until none is left (each may have started others meanwhile)."""
    until = time.monotonic() + _GRACE
    while time.monotonic() < until:
        alive = _carriers(token) if pathlib.Path("/proc/self/environ").exists() else _recorded(folder.parent)
        if not alive:
            return
        end(alive)
        for pid in alive:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        time.sleep(0.02)


def _carriers(token: str) -> list[int]:
    """Processes with the token in their environment (Linux); zombies have none."""
    mark = f"{TOKEN}={token}".encode()
    found = []
    for path in pathlib.Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if mark in path.read_bytes():
                found.append(int(path.parent.name))
    return found


def _recorded(folder: pathlib.Path) -> list[int]:
    """Where there is no /proc: the processes of the ranks' own process groups that still exist."""
    found = []
    for path in folder.glob("*/rank*.pid"):
        pids = json.loads(path.read_text(encoding="utf-8"))
        for pid in (pids["rank"], pids["supervisor"]):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, 0)
                found.append(pid)
    return found


def tail(path: pathlib.Path, lines: int = 3) -> str:
    """The last lines of a log, on one line."""
    text = path.read_text(encoding="utf-8", errors="replace").strip().splitlines() if path.exists() else []
    return " | ".join(line.strip() for line in text[-lines:]) or "no message"
