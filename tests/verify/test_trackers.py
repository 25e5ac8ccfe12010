"""Which calls of a program are seen to start runs of experiment trackers."""

from __future__ import annotations

import pathlib
import subprocess
import sys

from ddp_lint.verify import trace

#: Packages in place of the real ones, which need a server.
PACKAGES = {
    "wandb": "def init(**settings): ...\n",
    "aim": "class Run:\n    def __init__(self, run_hash=None, **settings): ...\n",
    "clearml": "class Task:\n    @classmethod\n    def init(cls, **settings): ...\n",
}
WATCHED = """\
import wandb
from aim import Run
from clearml import Task
def run():
    wandb.init(project="demo")
    wandb.init(project="demo", mode="disabled")
    wandb.init(project="demo", group="together")
    Run(experiment="demo")
    Task.init(project_name="demo")
"""
PROGRAM = """
import sys
from ddp_lint.verify.child.observers.trackers import Trackers
from ddp_lint.verify.child.recorder import Recorder
from ddp_lint.verify.spec import Spec
folder, path = sys.argv[1:]
Trackers(Recorder(Spec(directory=folder, kind="script", path=path, root=folder))).install()
sys.path.insert(0, folder)
import watched
watched.run()
"""


def test_runs_that_calls_start(tmp_path: pathlib.Path) -> None:
    folder = tmp_path.resolve()
    (folder / "watched.py").write_text(WATCHED)
    for name, text in PACKAGES.items():
        (folder / f"{name}.py").write_text(text)
    subprocess.run([sys.executable, "-c", PROGRAM, str(folder), str(folder / "watched.py")], check=True)
    events = trace.Trace.load(folder, 0).calls("start_run")
    seen = [(event.arguments["tracker"], event.arguments["off"], event.frames[-1].line) for event in events]
    assert seen == [
        ("wandb", False, 5),
        ("wandb", True, 6),
        ("wandb", True, 7),
        ("aim", False, 8),
        ("clearml", False, 9),
    ]
