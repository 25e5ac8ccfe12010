"""Which files the watched lines of a program are seen to use, whoever opens them."""

from __future__ import annotations

import pathlib
import subprocess
import sys

from ddp_lint.verify import trace

WATCHED = """\
import pathlib, os, shutil
import torch
def helper(name): return open(name).read()
def run(folder):
    os.makedirs(folder)
    pathlib.Path(folder, "a").write_text("x")
    helper(os.path.join(folder, "a"))
    torch.save({}, pathlib.Path(folder, "b"))
    os.replace(os.path.join(folder, "a"), os.path.join(folder, "c"))
    open(os.path.join(folder, "unwatched"), "w").close()
    shutil.rmtree(folder)
"""
PROGRAM = """
import sys
from ddp_lint.verify.child.observers.files import Files
from ddp_lint.verify.child.recorder import Recorder
from ddp_lint.verify.spec import Spec
folder, path = sys.argv[1:]
spec = Spec(directory=folder, kind="script", path=path, root=folder, lines={path: (5, 6, 7, 8, 9, 11)}, files=True)
Files(Recorder(spec)).install()
sys.path.insert(0, folder)
import watched
watched.run(folder + "/new")
"""


def test_uses_of_files_by_watched_lines(tmp_path: pathlib.Path) -> None:
    folder = tmp_path.resolve()
    (folder / "watched.py").write_text(WATCHED)
    subprocess.run([sys.executable, "-c", PROGRAM, str(folder), str(folder / "watched.py")], check=True)
    events = list(trace.Trace.load(folder, 0).of(trace.FileAccess))
    uses = [(event.what, pathlib.Path(event.path).name, event.frames[-1].line) for event in events]
    assert list(dict.fromkeys(uses)) == [
        ("make", "new", 5),
        ("write", "a", 6),
        ("read", "a", 7),
        ("write", "b", 8),
        ("remove", "a", 9),
        ("write", "c", 9),
        ("remove", "new", 11),
        ("read", "new", 11),
    ]
