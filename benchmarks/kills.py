"""Kills runs at random moments and looks at what they leave: files lost or half written, and temporary ones.

    python benchmarks/kills.py [--kills 200] [--only check|fix|verify]

`check` with a cache and `check --fix` are killed with SIGKILL, `verify` with SIGKILL and SIGTERM by turns. A kill
counts where the run was still running: half of them come at any moment of it, half from its first write on. After the
kills one run goes through to its end, as a user's next run would; what is left then counts: files, our folders for
temporary files, and processes of `verify`. What torch compiles stays in the cache where torch itself keeps it.

The linter is imported once, and each run is forked from there: no run writes anything before that import is done.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable

from ddp_lint.cli import main as ddp_lint
from ddp_lint.config import Settings
from ddp_lint.engine.checking import preload
from ddp_lint.lifetime import PREFIX
from ddp_lint.rules.registry import declared

FINDING = "import torch.distributed as dist\n\nif dist.get_rank() == 0:\n    dist.barrier()\n"
FILES = 16
#: Two ranks that meet, and write one file each.
SCRIPT = """import torch
import torch.distributed as dist

dist.init_process_group("gloo")
x = torch.ones(1)
for step in range(20):
    dist.all_reduce(x)
dist.destroy_process_group()
"""
_POLL = 0.0005


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--only", choices=("check", "fix", "verify"), help="one of the three")
    options = parser.parse_args()
    preload(Settings(pathlib.Path("/"), frozenset(declared())))
    kinds = {"check": _kill_checks, "fix": _kill_fixes, "verify": _kill_verify}
    wrong = 0
    for name, kill in kinds.items():
        if options.only in (None, name):
            with tempfile.TemporaryDirectory() as folder:
                wrong += kill(pathlib.Path(folder).resolve(), options.kills)
    return 1 if wrong else 0


class _Runs:
    """Runs of one command; `written` is the folder that they write into, `prepare` makes what they find."""

    def __init__(
        self, arguments: list[str], folder: pathlib.Path, written: pathlib.Path, prepare: Callable[[], None]
    ) -> None:
        self._arguments, self._folder, self._written, self._prepare = arguments, folder, written, prepare
        self._turn = self.ended = 0
        #: Seconds until the first write, and until the end.
        self._first, self._whole = self.through()

    def through(self) -> tuple[float, float]:
        """One run to its end: when it wrote first, and when it ended."""
        self._prepare()
        before = _changed(self._written)
        started = time.monotonic()
        process = self._start()
        first = 0.0
        while os.waitpid(process, os.WNOHANG) == (0, 0):
            if not first and _changed(self._written) != before:
                first = time.monotonic() - started
            time.sleep(_POLL)
        return first, time.monotonic() - started

    def kill(self, number: signal.Signals = signal.SIGKILL) -> None:
        """Send the signal to a run while it runs; those that ended before are `ended`."""
        while True:
            self._prepare()
            process = self._start()
            time.sleep(random.uniform(self._first * (self._turn % 2), self._whole))
            self._turn += 1
            if os.waitpid(process, os.WNOHANG) == (0, 0):
                os.kill(process, number)
                os.waitpid(process, 0)
                return
            self.ended += 1

    def _start(self) -> int:
        process = os.fork()
        if process:
            return process
        try:
            os.chdir(self._folder)
            null = os.open(os.devnull, os.O_RDWR)
            for stream in range(3):
                os.dup2(null, stream)
            ddp_lint(self._arguments)
        finally:
            os._exit(1)  # whatever happened, nothing of the benchmark's own runs here


def _changed(folder: pathlib.Path) -> int:
    """When something in a folder was last added or replaced."""
    return folder.stat().st_mtime_ns if folder.is_dir() else 0


def _kill_checks(folder: pathlib.Path, kills: int) -> int:
    (folder / "pyproject.toml").write_text("")
    for n in range(FILES):
        (folder / f"f{n}.py").write_text(FINDING)
    cache, report, turn = folder / ".ddp_lint_cache", folder / "report.json", 0

    def prepare() -> None:
        nonlocal turn
        turn += 1
        (folder / f"f{turn % FILES}.py").write_text(FINDING + f"x = {turn}\n")  # something new to keep

    runs = _Runs(["check", "-q", "--output-format", "json", "-o", report.name], folder, cache, prepare)
    half = 0
    for _ in range(kills):
        runs.kill()
        half += sum(not _is_whole(path.read_bytes().splitlines()) for path in cache.rglob("*.json"))
        half += report.exists() and not _is_whole([report.read_bytes()])
    runs.through()
    lost = FILES - report.read_text().count('"code": "DDP101"')
    return _told("check with a cache", kills, runs, half + lost, _left(folder))


def _kill_fixes(folder: pathlib.Path, kills: int) -> int:
    padding = "# padding\n" * 500
    old, new = f"x = 1  # ddp-lint: ignore[DDP101]\n{padding}", f"x = 1\n{padding}"
    (folder / "pyproject.toml").write_text("")
    paths = [folder / f"f{n}.py" for n in range(FILES)]

    def prepare() -> None:
        for path in paths:
            path.write_text(old)

    runs = _Runs(["check", "--fix", "-q", "--no-cache"], folder, folder, prepare)
    half = 0
    for _ in range(kills):
        runs.kill()
        half += sum(path.read_text() not in (old, new) for path in paths)
    runs.through()
    lost = sum(path.read_text() != new for path in paths)
    return _told("check --fix", kills, runs, half + lost, _left(folder))


def _kill_verify(folder: pathlib.Path, kills: int) -> int:
    temporary, target = folder / "temporary", folder / "train.py"
    temporary.mkdir()
    os.environ["TMPDIR"] = tempfile.tempdir = str(temporary)
    target.write_text(SCRIPT)
    runs = _Runs(["verify", target.name, "--device", "cpu", "-q"], folder, temporary, lambda: None)
    for turn in range(kills):
        runs.kill(signal.SIGTERM if turn % 2 else signal.SIGKILL)
    runs.through()
    left = [*map(str, temporary.glob(f"{PREFIX}*")), *_processes(str(temporary))]
    print(*left, sep="\n", end="\n" if left else "")
    tempfile.tempdir = None
    return _told("verify", kills, runs, int(target.read_text() != SCRIPT), len(left))


def _processes(word: str) -> list[str]:
    """The command lines of the processes that name this word."""
    found = []
    for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:  # it has ended
            continue
        found += [line] * (word in line)
    return found


def _is_whole(texts: list[bytes]) -> bool:
    """Whether each text is a JSON value, as each line of a file of the cache is."""
    try:
        for text in texts:
            json.loads(text)
    except ValueError:
        return False
    return True


def _left(folder: pathlib.Path) -> int:
    return sum(path.name.endswith(".tmp") for path in folder.rglob("*"))


def _told(what: str, kills: int, runs: _Runs, wrong: int, left: int) -> int:
    print(
        f"{what}: {kills} kills while it ran ({runs.ended} runs ended before); lost or half: {wrong}; "
        f"left over after the next run: {left}",
        flush=True,
    )
    return wrong + left


if __name__ == "__main__":
    sys.exit(main())
