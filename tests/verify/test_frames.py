"""Frames of tracebacks that other processes printed."""

from __future__ import annotations

import os

from ddp_lint.verify.frames import frames_in_text
from ddp_lint.verify.trace import Frame

TEXT = f"""\
Caught RuntimeError in DataLoader worker process 0.
Original Traceback (most recent call last):
  File "{os.__file__}", line 12, in fetch
    data = self.dataset[0]
  File "/p/train.py", line 20, in outer
  File "/p/data.py", line 10, in __getitem__
    return torch.ones(1).cuda()
RuntimeError: Cannot re-initialize CUDA in forked subprocess.
"""


def test_the_users_frames_come_innermost_first() -> None:
    assert frames_in_text(TEXT) == [Frame("/p/data.py", 10, "__getitem__"), Frame("/p/train.py", 20, "outer")]
