"""Ctrl-C while several processes are at work."""

from __future__ import annotations

import contextlib
import os
import pathlib
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes with a name"),
]


@pytest.fixture
def busy(tmp_path: pathlib.Path) -> Iterator[tuple[subprocess.Popen[str], list[int]]]:
    """A run whose two workers each read a file that does not end, and the other ends of those files."""
    pipes = [tmp_path / "a.py", tmp_path / "c.py"]
    for pipe in pipes:
        os.mkfifo(pipe)
    (tmp_path / "b.py").write_text("x = 1\n")  # work is shared out by size, and pipes have none
    command = [sys.executable, "-m", "ddp_lint", "check", "--isolated", "--no-cache", "--jobs", "2"]
    run = subprocess.Popen(
        [*command, "a.py", "b.py", "c.py"], cwd=tmp_path, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    ends = [os.open(pipe, os.O_WRONLY) for pipe in pipes]  # returns once a worker has opened the other end
    yield run, ends
    for end in ends:
        with contextlib.suppress(OSError):
            os.close(end)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(run.pid, signal.SIGKILL)


def test_an_interrupted_run_says_so_and_leaves_no_process_behind(busy: tuple[subprocess.Popen[str], list[int]]) -> None:
    run, ends = busy
    os.killpg(run.pid, signal.SIGINT)  # what a terminal does: everybody gets it
    _, said = run.communicate(timeout=60)
    assert (run.returncode, said) == (130, "error: interrupted\n")
    with pytest.raises(BrokenPipeError):  # nobody reads any more
        os.write(ends[0], b"x")
    with pytest.raises(ProcessLookupError):
        os.killpg(run.pid, 0)


def test_workers_end_with_the_run_that_is_killed(busy: tuple[subprocess.Popen[str], list[int]]) -> None:
    run, ends = busy
    run.kill()
    for end in ends:
        os.close(end)
    run.communicate(timeout=30)  # comes to its end when nobody holds standard error any more
