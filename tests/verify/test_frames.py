"""Frames of tracebacks: of exceptions in this process, and of those that other processes printed."""

from __future__ import annotations

import os
import pathlib
import sys
from types import TracebackType

import pytest

from ddp_lint.verify import frames
from ddp_lint.verify.frames import frames_in_text, in_an_import
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


def raised_by(code: str, path: pathlib.Path) -> TracebackType | None:
    try:
        exec(compile(code, str(path), "exec"), {})
    except Exception as error:
        trace = error.__traceback__
        return trace.tb_next if trace else None
    return None


def test_what_an_import_of_a_library_raises(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in ("library", "own"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / f"broken_{folder}.py").write_text("def fail():\n    1 / 0\n")
        (tmp_path / folder / f"fails_{folder}.py").write_text(f"import broken_{folder}\nbroken_{folder}.fail()\n")
        monkeypatch.syspath_prepend(str(tmp_path / folder))
    monkeypatch.setattr(frames, "_LIBRARIES", (str(tmp_path / "library"),))
    script = tmp_path / "train.py"
    assert in_an_import(raised_by("import fails_library", script))
    assert in_an_import(raised_by("import importlib\nimportlib.import_module('fails_library')", script))
    assert in_an_import(raised_by("import not_there_at_all", script)), "without a frame, as of a module in C"
    assert not in_an_import(raised_by("import broken_library\nbroken_library.fail()", script))
    assert not in_an_import(raised_by("import fails_own", script)), "it is the project that is broken"
    assert not in_an_import(raised_by("1 / 0", script))
    for name in ("broken_library", "broken_own"):
        sys.modules.pop(name, None)
