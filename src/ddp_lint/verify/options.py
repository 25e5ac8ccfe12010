"""The options of `ddp-lint verify`, and the result of one run."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the command line needs only a few of these names, at once
    from ddp_lint.verify.trace import Frame, Trace

WRAPS = ("ddp", "fsdp2", "fsdp1", "none")


class UsageError(Exception):
    """The target cannot be run: the message says what to do (exit code 2)."""


class InternalError(UsageError):
    """What observes the target failed, which says nothing of the target."""


@dataclasses.dataclass(frozen=True)
class Options:
    """The command line. `timeout` is the seconds without progress after which a rank counts as stuck; `launcher` are
    torchrun's own options as given ("--nnodes=2", "--rdzv-endpoint=host:29500", ...); `traces` keeps the traces there
    (a temporary folder otherwise)."""

    nproc: int = 2
    wraps: tuple[str, ...] = ("ddp", "fsdp2")
    device: str = "auto"
    steps: int = 0
    timeout: float = 20.0
    entry: str = ""
    arguments: tuple[str, ...] = ()
    launcher: tuple[str, ...] = ()
    traces: pathlib.Path | None = None
    #: TARGET is a dotted name, to be run as `python -m` does.
    module: bool = False
    shim: bool = True
    #: A file with arguments and inputs for the model, written by the pytest plugin ("" for none).
    given: str = ""
    #: Only findings on lines that changed since this git revision, "" for all.
    since: str = ""
    #: A dry run as `ranks` of a job of this size, without communication; 0: a real run.
    world: int = 0
    ranks: tuple[int, ...] = ()
    #: Seconds after which a run is given up, even if it moves; 0: never.
    limit: float = 0.0

    @property
    def several_nodes(self) -> bool:
        """The job spans machines, each with a `ddp-lint verify` of its own."""
        return any(option.startswith("--nnodes=") and option != "--nnodes=1" for option in self.launcher)


def ranks_of(text: str | None, world: int) -> tuple[int, ...]:
    """The ranks that `0,1,8-15,63`, `all` or (without a text) the ends and the middle name. Raises UsageError."""
    if text is None:
        ends = {0, 1 % world, max(world - 2, 0), world - 1}  # with their neighbours: stages of a pipeline, rings
        return tuple(sorted({*ends, world // 2}))
    if text.strip() == "all":
        return tuple(range(world))
    found: set[int] = set()
    for part in filter(None, (part.strip() for part in text.split(","))):
        first, dash, last = part.partition("-")
        if not first.isdigit() or (dash and not last.isdigit()):
            raise UsageError(f"--ranks {text}: {part!r} is not a rank; write ranks as 0,1,8-15,63 or all")
        found |= set(range(int(first), int(last or first) + 1))
    beyond = sorted(rank for rank in found if rank >= world)
    if beyond or not found:
        raise UsageError(f"--ranks {text}: a job of --world-size {world} has ranks 0 to {world - 1}")
    return tuple(sorted(found))


@dataclasses.dataclass(frozen=True)
class Watch:
    """What the observers look at besides what they always record.

    `lines` are the lines to count and `guards` the lines of `if`/`while` tests whose outcome to record, by absolute
    path; `graph_breaks`: run `torch._dynamo.explain` on the model; `streams`: follow what orders CUDA's streams;
    `files`: record which files the lines use.
    """

    lines: Mapping[str, frozenset[int]] = dataclasses.field(default_factory=dict)
    guards: Mapping[str, frozenset[int]] = dataclasses.field(default_factory=dict)
    graph_breaks: bool = False
    streams: bool = False
    files: bool = False


@dataclasses.dataclass(frozen=True)
class Last:
    """Where a rank was last seen: its last collective in words, the last module entered, the last user frame."""

    collective: str = ""
    module: str = ""
    frame: Frame | None = None


@dataclasses.dataclass(frozen=True)
class RankOutcome:
    """How a rank ended. `exit` is the process's exit code (None: killed by a signal, or it never started), `signal`
    the name of the signal that ended it; `how` is one of

    completed (reached its end, regardless of what happened afterwards) · exception · exit (ended itself early) ·
    signal · oom (the kernel's OOM killer) · stalled · slow (busy, and given up) · stopped (by the launcher, because
    another rank failed first: never a cause) · not_started.
    """

    rank: int
    how: str
    exit: int | None
    signal: str
    message: str
    last: Last
    trace: Trace
    log: str = ""
    #: Wall time of what ended it; the first rank to fail is the cause.
    ended_at: float = float("inf")


@dataclasses.dataclass(frozen=True)
class RunResult:
    """One launch. `name` is also the folder of the traces; `model` the class ("" for a script).

    `stimuli` are names of `spec.STIMULI`, none for a plain pass (what could be applied is in each rank's Start event).
    `outcome`: completed · hang (a rank stalled) · slow (a rank was busy when it was given up) · crash (a signal or
    abort) · exception · exit · oom · port_in_use · not_started (a rank never began) · launch_failed · interrupted.
    `message` explains it in one line.
    """

    name: str
    wrap: str
    model: str
    stimuli: tuple[str, ...]
    outcome: str
    message: str
    seconds: float
    nproc: int
    device: str
    backend: str
    torch: str
    ranks: tuple[RankOutcome, ...]
    directory: pathlib.Path
    #: How many GPUs the ranks of this machine shared; 0: each had its own, or there is none.
    shared_gpus: int = 0
    #: What the model was called with and trained on, in words; "" for a script and where nothing is known.
    inputs: str = ""
    #: Parameters that the guessed inputs do not reach: frozen, so that nothing is reported about them.
    left_out: tuple[str, ...] = ()
    #: A way of training that the model has and that was not run.
    not_run: str = ""
