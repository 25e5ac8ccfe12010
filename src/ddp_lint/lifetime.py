"""Processes that end with the one that started them, also when that is killed, and folders that do not outlive it for
long."""

from __future__ import annotations

import contextlib
import ctypes
import os
import pathlib
import re
import shutil
import signal
import sys
from collections.abc import Iterable

from ddp_lint.files import is_running

#: Names of our temporary folders begin with it and the number of the process that made them.
PREFIX = "ddp-lint-"

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


def end_with_parent(number: int = signal.SIGKILL) -> None:
    """From here on this process gets the signal when its parent ends (Linux; elsewhere nothing happens)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)


def adopt_orphans() -> None:
    """From here on a process below this one whose parent has ended becomes a child of this one (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)


def below(pid: int) -> set[int]:
    """The processes that this one has started or adopted, and those below them (Linux)."""
    children: dict[int, list[int]] = {}
    for path in pathlib.Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parent = int(path.read_text(errors="replace").rpartition(")")[2].split()[1])  # its name may hold anything
            children.setdefault(parent, []).append(int(path.parent.name))
    found, waiting = set[int](), [pid]
    while waiting:
        new = children.pop(waiting.pop(), [])
        found.update(new)
        waiting += new
    return found


def end(pids: Iterable[int], number: int = signal.SIGKILL) -> None:
    """Send a signal to processes, those of them that are there and ours."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def remove_left_behind(parent: pathlib.Path) -> None:
    """Remove the temporary folders of this user's runs that were killed before they could do so themselves."""
    for folder in parent.glob(f"{PREFIX}*-*"):
        made_by = re.fullmatch(rf"{PREFIX}(\d+)-\w+", folder.name)
        own = (
            made_by is not None and not folder.is_symlink() and folder.is_dir() and folder.stat().st_uid == os.getuid()
        )
        if made_by is not None and own and not is_running(int(made_by[1])):
            shutil.rmtree(folder, ignore_errors=True)
