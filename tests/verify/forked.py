"""Code in a process of its own that has torch imported: forked from this one where that is safe, for that is quick."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
import traceback

import torch

#: A process whose parent has asked for a GPU cannot use one.
_CAN_FORK = sys.platform.startswith("linux") and torch.version.cuda is None


def run(code: str, folder: pathlib.Path) -> str:
    """What `python -c CODE` prints, started in a folder; it must succeed."""
    if not _CAN_FORK:
        done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout
    out, err = folder / "stdout", folder / "stderr"
    child = os.fork()
    if not child:
        _become(code, folder, out, err)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status == 0, err.read_text()
    return out.read_text()


def _become(code: str, folder: pathlib.Path, out: pathlib.Path, err: pathlib.Path) -> None:
    """In the child: run the code and end."""
    status = 1
    try:
        os.chdir(folder)
        sys.stdout, sys.stderr = out.open("w"), err.open("w")
        sys.path.insert(0, "")
        exec(compile(code, "<string>", "exec"), {"__name__": "__main__"})
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
