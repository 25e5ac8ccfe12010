"""`check --watch` and the progress bar, as a person at a terminal has them."""

from __future__ import annotations

import io
import os
import pathlib
import queue
import signal
import subprocess
import sys
import threading

import pytest

from ddp_lint.cli import progress
from ddp_lint.cli.watch import concerns

from .conftest import Check
from .samples import HAZARD


@pytest.mark.slow
def test_it_checks_again_when_a_file_changes_and_ends_with_ctrl_c(project: pathlib.Path) -> None:
    pytest.importorskip("watchfiles")
    path = project / "train.py"
    path.write_text("x = 1\n")
    command = [sys.executable, "-m", "ddp_lint", "check", "--watch", "--output-format", "concise", "."]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, bufsize=1) as running:
        lines: queue.Queue[str] = queue.Queue()
        assert running.stdout is not None
        threading.Thread(target=lambda: [lines.put(line) for line in running.stdout or ()], daemon=True).start()

        def until(words: str) -> None:
            while words not in lines.get(timeout=60):
                pass

        try:
            until("Nothing found")
            for text, said in ((HAZARD, "DDP601"), ("x = 1\n", "Nothing found")):
                path.write_text(text)
                until("1 file changed")
                until(said)
            (project / "pyproject.toml").write_text("[tool.ddp-lint]\nselct = 1\n")
            until("did you mean 'select'?")
            (project / "pyproject.toml").write_text("")
            until("Nothing found")
        finally:
            running.send_signal(signal.SIGINT)
            code = running.wait(60)
    assert code == 130


@pytest.mark.parametrize(
    ("path", "counts"),
    [
        ("/a/train.py", True),
        ("/a/b.ipynb", True),
        ("/a/run.sh", True),
        ("/a/pyproject.toml", True),
        ("/a/.venv/lib/x.py", False),
        ("/a/.git/x.py", False),
        ("/a/data.bin", False),
    ],
)
def test_what_is_watched(path: str, counts: bool) -> None:
    assert concerns(path) is counts


def test_what_cannot_be_watched_is_2(check: Check) -> None:
    assert check("--watch", "-").exit_code == 2
    assert "no such file" in check("--watch", "nowhere").stderr


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("patience", "quiet", "ci", "is_terminal", "is_shown"),
    [
        (0.0, False, "", True, True),
        (60.0, False, "", True, False),
        (0.0, True, "", True, False),
        (0.0, False, "true", True, False),
        (0.0, False, "", False, False),
    ],
)
def test_the_bar_is_shown_where_someone_waits_for_it(
    patience: float, quiet: bool, ci: str, is_terminal: bool, is_shown: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    screen = Terminal() if is_terminal else io.StringIO()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setattr(progress, "_PATIENCE", patience)
    monkeypatch.setenv("CI", ci)
    bar = progress.Progress(3, quiet=quiet)
    for _ in range(3):
        bar()
    bar.close()
    assert ("3/3" in screen.getvalue()) is is_shown
    assert not screen.getvalue() or screen.getvalue().endswith("\r\x1b[2K")


@pytest.mark.skipif(not hasattr(os, "openpty"), reason="needs a terminal")
def test_findings_are_the_same_on_a_terminal(project: pathlib.Path) -> None:
    (project / "train.py").write_text(HAZARD)
    theirs, ours = os.openpty()
    command = [sys.executable, "-m", "ddp_lint", "check", "--output-format", "concise", "--color", "never"]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=ours, text=True, check=False)
    os.close(ours)
    os.close(theirs)
    assert done.returncode == 1
    assert done.stdout.startswith("train.py:")
