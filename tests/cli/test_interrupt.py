"""Ctrl-C while several processes are at work."""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import sys

import pytest


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes with a name")
def test_an_interrupted_run_says_so_and_leaves_no_process_behind(tmp_path: pathlib.Path) -> None:
    pipes = [tmp_path / "a.py", tmp_path / "c.py"]  # a worker that reads one waits for ever
    for pipe in pipes:
        os.mkfifo(pipe)
    (tmp_path / "b.py").write_text("x = 1\n")  # work is shared out by size, and pipes have none
    command = [sys.executable, "-m", "ddp_lint", "check", "--isolated", "--no-cache", "--jobs", "2"]
    run = subprocess.Popen(
        [*command, "a.py", "b.py", "c.py"], cwd=tmp_path, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    ends = [os.open(pipe, os.O_WRONLY) for pipe in pipes]  # returns once a worker has opened the other end
    try:
        os.killpg(run.pid, signal.SIGINT)  # what a terminal does: everybody gets it
        _, said = run.communicate(timeout=60)
        assert (run.returncode, said) == (130, "error: interrupted\n")
        with pytest.raises(BrokenPipeError):  # nobody reads any more
            os.write(ends[0], b"x")
        with pytest.raises(ProcessLookupError):
            os.killpg(run.pid, 0)
    finally:
        for end in ends:
            os.close(end)
        run.kill()
