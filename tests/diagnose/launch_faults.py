"""Runs torchrun once for each fault given as an argument, several at a time, and keeps what it printed in a folder.

    python launch_faults.py FOLDER SCRIPT FAULT...

torchrun and its ranks are forked from one process that has imported torch already: an import for each of them is nine
tenths of what a run costs.
"""

import json
import os
import pathlib
import sys
from typing import Any, NoReturn

import torch._dynamo  # by DDP, in each rank else
import torch.distributed
import torch.nn.parallel
import torch.utils.data
from torch.distributed import run as torchrun
from torch.distributed.elastic.multiprocessing.subprocess_handler import subprocess_handler

from ddp_lint.lifetime import end_with_parent
from ddp_lint.verify.child.rank import leave

AT_A_TIME = 4


class Rank:
    """What torchrun gets in place of a `subprocess.Popen`: a process that was forked before torchrun had threads, and
    becomes the script when it hears its environment."""

    def __init__(self, script: str, fault: str) -> None:
        reading, self._told = os.pipe()
        self.returncode: int | None = None
        self.pid = os.fork()
        if not self.pid:
            end_with_parent()
            with open(reading, encoding="utf-8") as file:  # noqa: PTH123 - a descriptor
                _become(script, fault, json.loads(file.readline()))  # no end of it: other ranks hold the other side
        os.close(reading)

    def start(self, environment: dict[str, str]) -> "Rank":
        with open(self._told, "w", encoding="utf-8") as file:  # noqa: PTH123 - a descriptor
            file.write(json.dumps(environment) + "\n")
        return self

    def poll(self) -> int | None:
        return self._end(os.WNOHANG)

    def wait(self, timeout: float | None = None) -> int | None:
        return self._end(0)

    def _end(self, options: int) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, options)
            self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode


def _become(script: str, fault: str, environment: dict[str, str]) -> NoReturn:
    """Run the script as `python SCRIPT FAULT` would; what an exception prints begins with its first line."""
    os.setsid()
    os.environ.clear()
    os.environ.update(environment)
    torch.distributed.set_debug_level_from_env()
    main_module = sys.modules["__main__"].__dict__
    main_module["__file__"] = script
    sys.argv = [script, fault]
    code = 0
    try:
        exec(compile(pathlib.Path(script).read_text(encoding="utf-8"), script, "exec"), main_module)
    except BaseException as error:
        inside = error.__traceback__.tb_next if error.__traceback__ else None
        sys.excepthook(type(error), error.with_traceback(inside), inside)
        code = 1
    leave(code)  # to free torch takes longer than all the rest


def launch(fault: str, script: str, folder: pathlib.Path) -> int:
    """The process that is torchrun for this fault."""
    process = os.fork()
    if process:
        return process
    out = os.open(folder / f"{fault}.log", os.O_WRONLY | os.O_CREAT, 0o644)
    os.dup2(out, 1)
    os.dup2(out, 2)
    if fault.startswith("detail"):
        os.environ["TORCH_DISTRIBUTED_DEBUG"] = "DETAIL"
    ranks = [Rank(script, fault) for _ in range(3 if fault.startswith("three") else 2)]
    left = iter(ranks)

    def started(env: dict[str, str], **_: Any) -> Rank:
        return next(left).start(env)

    subprocess_handler.Popen = started
    sys.argv = ["torchrun", "--standalone", f"--nproc-per-node={len(ranks)}", script, fault]
    status = 1
    try:
        torchrun.main(sys.argv[1:])
        status = 0
    except BaseException:
        import traceback

        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def main() -> None:
    folder, script, faults = pathlib.Path(sys.argv[1]), sys.argv[2], sys.argv[3:]
    running: set[int] = set()
    for fault in faults:
        while len(running) >= AT_A_TIME:
            running.discard(os.wait()[0])
        running.add(launch(fault, script, folder))
    while running:
        running.discard(os.wait()[0])


if __name__ == "__main__":
    main()
