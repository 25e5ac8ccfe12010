"""Processes that end with the one that started them, also when that is killed, and folders that do not outlive it for
long."""

from __future__ import annotations

import ctypes
import os
import pathlib
import re
import shutil
import signal
import sys

from ddp_lint.files import is_running

#: Names of our temporary folders begin with it and the number of the process that made them.
PREFIX = "ddp-lint-"

_PR_SET_PDEATHSIG = 1


def end_with_parent(number: int = signal.SIGKILL) -> None:
    """From here on this process gets the signal when its parent ends (Linux; elsewhere nothing happens)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)


def remove_left_behind(parent: pathlib.Path) -> None:
    """Remove the temporary folders of this user's runs that were killed before they could do so themselves."""
    for folder in parent.glob(f"{PREFIX}*-*"):
        made_by = re.fullmatch(rf"{PREFIX}(\d+)-\w+", folder.name)
        own = (
            made_by is not None and not folder.is_symlink() and folder.is_dir() and folder.stat().st_uid == os.getuid()
        )
        if made_by is not None and own and not is_running(int(made_by[1])):
            shutil.rmtree(folder, ignore_errors=True)
