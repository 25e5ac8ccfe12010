"""The process that runs the ranks of a dry run, one after the other: `... zygote SPEC.json [SPEC.json ...]`.

It imports torch once and forks each rank: a fork of a process that has run nothing is as good as a new one, and a
rank costs its own seconds instead of those of an import. The marks that it leaves are those of a supervisor.
"""

from __future__ import annotations

import dataclasses
import os
import pathlib
import pickle
import signal
import sys
import time

import torch.testing._internal.distributed.fake_pg  # noqa: F401 - for the ranks

from ddp_lint.lifetime import end_with_parent
from ddp_lint.verify.child import dry, rank, shim, zygote  # noqa: F401 - for the ranks
from ddp_lint.verify.spec import LOOPBACK, Marks, Spec, keep_end

#: A rank that runs longer than this many timeouts has a loop that nothing ends.
_LIMIT_TIMEOUTS = 3


def main(paths: list[str]) -> int:
    end_with_parent()
    zygote.import_all()
    for path in paths:
        spec = Spec.load(pathlib.Path(path))
        dry.known.clear()
        first = _first_pass(spec)
        for number in spec.ranks:
            _run(first, spec, number)
            _learn(pathlib.Path(spec.directory, "first", "values"))
        for number in spec.ranks:
            _run(path, spec, number)
    return 0


def _first_pass(spec: Spec) -> str:
    """The specification of the pass in which the ranks leave what they put in."""
    directory = pathlib.Path(spec.directory, "first")
    directory.mkdir(exist_ok=True)
    path = directory / "spec.json"
    dataclasses.replace(spec, directory=str(directory)).save(path)
    return str(path)


def _run(path: str, spec: Spec, number: int) -> None:
    """Fork one rank and wait for it."""
    marks = Marks(pathlib.Path(path).parent)
    pid = os.fork()
    if pid == 0:
        _be(path, spec, number, marks)
    marks.began(number, pid)
    until = time.monotonic() + _LIMIT_TIMEOUTS * spec.timeout
    stopped = False
    while (ended := os.waitpid(pid, os.WNOHANG))[0] == 0:
        time.sleep(0.005)
        keep_end(marks.path(number, "log"))
        if time.monotonic() > until and not stopped:
            stopped = True
            os.kill(pid, signal.SIGKILL)
    marks.ended(number, os.waitstatus_to_exitcode(ended[1]), stopped=stopped)


def _be(path: str, spec: Spec, number: int, marks: Marks) -> None:
    """In the child: become the rank."""
    zygote.print_to(marks.path(number, "log"))
    zygote.draw_apart(number)
    nodes = -(-spec.world // spec.local_world)
    os.environ.update(
        RANK=str(number), WORLD_SIZE=str(spec.world), LOCAL_RANK=str(number % spec.local_world),
        LOCAL_WORLD_SIZE=str(spec.local_world), GROUP_RANK=str(number // spec.local_world), GROUP_WORLD_SIZE=str(nodes),
        ROLE_RANK=str(number), ROLE_WORLD_SIZE=str(spec.world), MASTER_ADDR=LOOPBACK, MASTER_PORT="29500",
        TORCHELASTIC_RUN_ID="dry", TORCHELASTIC_RESTART_COUNT="0", TORCHELASTIC_MAX_RESTARTS="0",
    )  # fmt: skip
    code = 1
    try:
        code = rank.main(path)
    finally:
        rank.leave(code)


def _learn(values: pathlib.Path) -> None:
    """What the ranks so far leave for the next one. A record that a killed rank cut off ends the file."""
    if not values.exists():
        return
    with values.open("rb") as file:
        while True:
            try:
                key, value = pickle.load(file)
            except (EOFError, pickle.UnpicklingError):
                return
            dry.known.setdefault(key, value)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
