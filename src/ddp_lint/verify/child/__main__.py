"""The supervisor of one rank, started by torchrun: `python -m ddp_lint.verify.child SPEC`.

It runs the rank as its own child and notes how that process really ended (torchrun reports the first failure only),
then ends the same way, so that torchrun sees what it would see without a supervisor. It never imports torch.
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

from ddp_lint.verify.spec import Marks, Spec


def main(spec_path: str) -> int:
    spec = Spec.load(pathlib.Path(spec_path))
    rank = int(os.environ.get("RANK", "0"))
    marks = Marks(pathlib.Path(spec.directory))
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    oom_before = _oom_kills()
    with marks.path(rank, "log").open("ab") as log:
        child = subprocess.Popen(
            [sys.executable, "-m", "ddp_lint.verify.child.rank", spec_path], stdout=log, stderr=log
        )
    stopped: list[int] = []

    def forward(number: int, _frame: object) -> None:
        stopped.append(number)
        with contextlib.suppress(ProcessLookupError):
            child.send_signal(number)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, forward)
    marks.set(rank, "pid", json.dumps({"supervisor": os.getpid(), "rank": child.pid, "group": os.getpgid(0)}))
    code = child.wait()
    end = {"code": code, "stopped": bool(stopped), "oom": _oom_kills() > oom_before, "time": time.time()}
    marks.set(rank, "exit", json.dumps(end))
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
    sys.exit(main(sys.argv[1]))
