"""Ctrl-C while several processes are at work."""

from __future__ import annotations

import contextlib
import os
import pathlib
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")]

#: Work for seconds: no test waits for its end.
LONG = "import torch\n" + "".join(
    f"def f{n}(x):\n    return torch.log(torch.softmax(x, dim=-1))\n" for n in range(30_000)
)


@pytest.fixture
def busy(tmp_path: pathlib.Path) -> Iterator[subprocess.Popen[str]]:
    """A run whose two workers are at a long file each."""
    for name in ("a.py", "b.py"):
        (tmp_path / name).write_text(LONG)
    command = [sys.executable, "-m", "ddp_lint", "check", "--isolated", "--no-cache", "--jobs", "2"]
    run = subprocess.Popen(
        [*command, "a.py", "b.py"], cwd=tmp_path, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    while len(_children(run.pid)) < 2:
        assert run.poll() is None
        time.sleep(0.02)
    yield run
    with contextlib.suppress(ProcessLookupError):
        os.killpg(run.pid, signal.SIGKILL)
    run.communicate()


def _children(pid: int) -> list[str]:
    return pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


def test_an_interrupted_run_says_so_and_leaves_no_process_behind(busy: subprocess.Popen[str]) -> None:
    os.killpg(busy.pid, signal.SIGINT)  # what a terminal does: everybody gets it
    _, said = busy.communicate(timeout=60)
    assert (busy.returncode, said) == (130, "error: interrupted\n")
    with pytest.raises(ProcessLookupError):
        os.killpg(busy.pid, 0)


def test_workers_end_with_the_run_that_is_killed(busy: subprocess.Popen[str]) -> None:
    busy.kill()
    busy.communicate(timeout=60)  # comes to its end when nobody holds standard error any more
