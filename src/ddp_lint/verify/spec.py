"""What the launcher passes to the processes that it starts: one JSON file. Nothing here imports torch."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import pathlib
import socket
import sys
import time
from collections.abc import Mapping
from typing import Any

#: In the environment of every process of a run: what carries it belongs to the run and is ended with it.
TOKEN = "DDP_LINT_RUN"
#: In the environment of a program that starts its own ranks: the path of its spec, and how many ranks it starts.
OWN_RANKS, OWN_WORLD = "DDP_LINT_OWN_RANKS", "DDP_LINT_OWN_WORLD"
#: Ranks can be forked from a process that has torch imported, on this system.
CAN_FORK = sys.platform == "linux" and hasattr(sys, "getdlopenflags")
#: The address at which the processes of a launch meet, where all are on this machine.
LOOPBACK = "127.0.0.1"
#: Exit code of a rank that its watchdog ended.
STALLED = 86
#: How a pass can differ from a plain one, and what that does, in words for the evidence.
STIMULI: Mapping[str, str] = {
    "seeds": "each rank has another random seed",
    "short": "the last rank's data loader has one batch fewer",
    "nan": "the last rank's loss is NaN in the second step",
    "large": "inputs are 100 times as large",
}


#: Bytes of what a process has printed of which all is kept: it may print without end. Of more there is the end.
_MOST_PRINTED, _END = 1 << 24, 1 << 20
#: A rank that is busy is waited for this many timeouts, and for this many seconds at least.
_BUSY_FACTOR, _BUSY_LIMIT = 6, 90.0


def loopback_interface() -> str:
    """What this system calls the interface of `LOOPBACK`, where it does as Linux does."""
    return next((name for _, name in socket.if_nameindex() if name == "lo"), "")


def keep_end(log: pathlib.Path) -> None:
    """Shorten what a process prints to, at the end of the file, where it has become too much."""
    with contextlib.suppress(OSError):
        if log.stat().st_size <= _MOST_PRINTED:
            return
        with log.open("rb") as file:
            file.seek(-_END, os.SEEK_END)
            end = file.read(_END)
        with log.open("ab") as file:
            file.truncate(0)
            file.write(end)


def longest_wait(timeout: float) -> float:
    """The longest time in seconds to wait for a rank that records nothing, regardless of what it does."""
    return max(_BUSY_FACTOR * timeout, _BUSY_LIMIT)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Spec:
    """One run.

    `kind` is model or script; `path` the file; `name` its class; `recipe` how the model gets its arguments and inputs
    (of `child/inputs.py`, found by the probe); `lines` and `guards` map absolute paths to line numbers.
    """

    directory: str
    kind: str
    path: str
    root: str
    name: str = ""
    entry: str = ""
    arguments: tuple[str, ...] = ()
    wrap: str = "none"
    device: str = "cpu"
    steps: int = 0
    timeout: float = 20.0
    stimuli: tuple[str, ...] = ()
    recipe: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    lines: Mapping[str, tuple[int, ...]] = dataclasses.field(default_factory=dict)
    guards: Mapping[str, tuple[int, ...]] = dataclasses.field(default_factory=dict)
    graph_breaks: bool = False
    streams: bool = False
    files: bool = False
    #: The rank may be forked from a process that has torch imported (`verify/preload.py`); else it is a Python of its
    #: own, which imports torch when the target does.
    fork: bool = False
    #: The process that it is forked from imports first what a compilation needs.
    compiles: bool = False
    #: The working directory of the ranks.
    cwd: str = ""
    #: The number of the run in its launch.
    job: int = 0
    #: The target is a script that starts its ranks by itself.
    own_ranks: bool = False
    #: The process that starts such a script.
    launcher: int = 0
    #: The run has a launch to itself, whose supervisors end as their ranks do.
    job_alone: bool = False
    #: The dotted name to run as `python -m` does, "" for the file itself.
    module: str = ""
    #: Map what the target says of CUDA to what the machine has (`child/shim.py`).
    shim: bool = True
    #: How many GPUs the ranks of this machine share (`child/sharing.py`); 0: each has its own, or there is none.
    shared_gpus: int = 0
    #: A dry run as `ranks` of a job of this size; 0: a real run.
    world: int = 0
    ranks: tuple[int, ...] = ()
    #: Ranks per machine, of a dry run, and (as requested) of a program that starts its ranks by itself.
    local_world: int = 1
    #: Seconds after which the launcher gives the run up, even if it moves; 0: never.
    limit: float = 0.0

    def save(self, path: pathlib.Path) -> None:
        path.write_text(json.dumps(dataclasses.asdict(self)), encoding="utf-8")

    @classmethod
    def load(cls, path: pathlib.Path) -> Spec:
        return cls(**json.loads(path.read_text(encoding="utf-8")))


@dataclasses.dataclass(frozen=True)
class Jobs:
    """The jobs of the supervisors of a launch, one file for each job, numbered from 0: {"spec": path} runs a
    rank, {"probe": [request, answer, log, done], "cwd": path} the probe on the first one."""

    directory: pathlib.Path

    def put(self, number: int, job: Mapping[str, Any]) -> None:
        """Hand out a job; no supervisor sees half of it."""
        path = self.directory / f"job{number}"
        path.with_suffix(".part").write_text(json.dumps(job), encoding="utf-8")
        path.with_suffix(".part").rename(path)

    def get(self, number: int) -> dict[str, Any] | None:
        """The job with this number, None while there is none."""
        try:
            job: dict[str, Any] = json.loads((self.directory / f"job{number}").read_text(encoding="utf-8"))
        except OSError:
            return None
        return job


@dataclasses.dataclass(frozen=True)
class Marks:
    """Files by which the ranks of one machine show each other and the launcher where they are.

    pid (the supervisor started) · ready (torch is imported) · incomplete (it waits for a group of more ranks than there
    are) · joined (the default group is made) · left (it is destroyed) · watch (its process, and the thread in it that
    watches) · beat (its time: when it recorded something) · busy (its time: when it did what is not recorded) · locked
    (it waits for a lock for ever) · waits (each of its threads waits in a collective) ·
    trained · leaving (its last line has run) · diverged (the launcher saw that its calls
    meet no others, and that nothing moves) · dying (with
    the reason) · dumped · over · overdue (the launcher gave it up) · exit.
    """

    directory: pathlib.Path

    def path(self, rank: int, mark: str) -> pathlib.Path:
        return self.directory / f"rank{rank}.{mark}"

    def set(self, rank: int, mark: str, text: str = "") -> None:
        self.path(rank, mark).write_text(text, encoding="utf-8")

    def has(self, rank: int, mark: str) -> bool:
        return self.path(rank, mark).exists()

    def text(self, rank: int, mark: str) -> str:
        """What it says, "" when it is not set."""
        try:
            return self.path(rank, mark).read_text(encoding="utf-8", errors="replace")
        except OSError:
            return ""

    def content(self, rank: int, mark: str) -> dict[str, Any]:
        """What `began` or `ended` have noted, {} when it is not there or cut off."""
        try:
            content = json.loads(self.text(rank, mark))
        except ValueError:
            return {}
        return content if isinstance(content, dict) else {}

    def began(self, rank: int, pid: int) -> None:
        """The process of a rank was started by this one."""
        self.set(rank, "pid", json.dumps({"supervisor": os.getpid(), "rank": pid}))

    def ended(self, rank: int, code: int, *, stopped: bool = False, oom: bool = False) -> None:
        """How it ended: `stopped` by torchrun or because a peer failed, `oom`: the OOM killer has struck meanwhile."""
        self.set(rank, "exit", json.dumps({"code": code, "stopped": stopped, "oom": oom, "time": time.time()}))

    def moved(self, rank: int) -> float:
        """When the rank was last seen to move, in seconds since the epoch."""
        return max(self.time(rank, "beat"), self.time(rank, "busy"))

    def time(self, rank: int, mark: str) -> float:
        """When it was set last, in seconds since the epoch; 0 when it is not."""
        try:
            return self.path(rank, mark).stat().st_mtime
        except OSError:
            return 0.0
