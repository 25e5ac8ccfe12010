"""Kills runs at random moments and looks at what they leave: files lost or half written, and temporary ones.

    python benchmarks/kills.py [--kills 200] [--target MODEL.py] [--only check|fix|verify]

`check` with a cache and `check --fix` are killed with SIGKILL, `verify` with SIGKILL and SIGTERM by turns (where a
target is given). After the kills one run goes through to its end, as a user's next run would; what is left then counts:
files, folders for temporary files, and processes of `verify`.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import time

FINDING = "import torch.distributed as dist\n\nif dist.get_rank() == 0:\n    dist.barrier()\n"
FILES = 40


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--target", type=pathlib.Path, help="what verify runs")
    parser.add_argument("--only", choices=("check", "fix", "verify"), help="one of the three")
    options = parser.parse_args()
    wrong = 0
    if options.only in (None, "check"):
        wrong += _kill_checks(options.kills)
    if options.only in (None, "fix"):
        wrong += _kill_fixes(options.kills)
    if options.target and options.only in (None, "verify"):
        wrong += _kill_verify(options.target.resolve(), options.kills)
    return 1 if wrong else 0


def _command(*args: str) -> list[str]:
    return [sys.executable, "-m", "ddp_lint", *args]


def _kill(command: list[str], folder: pathlib.Path, latest: float, number: signal.Signals = signal.SIGKILL) -> bool:
    """Start a run, send the signal at a random moment; whether it was still running."""
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    time.sleep(random.uniform(0.05, latest))
    running = process.poll() is None
    process.send_signal(number)
    process.wait()
    return running


def _seconds(command: list[str], folder: pathlib.Path) -> float:
    started = time.perf_counter()
    subprocess.run(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
    return time.perf_counter() - started


def _kill_checks(kills: int) -> int:
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "pyproject.toml").write_text("")
        for n in range(FILES):
            (folder / f"f{n}.py").write_text(FINDING)
        command = _command("check", "-q", "--output-format", "json")
        latest = _seconds(command, folder)
        half = hits = 0
        for turn in range(kills):
            (folder / f"f{turn % FILES}.py").write_text(FINDING + f"x = {turn}\n")  # something new to keep
            hits += _kill(command, folder, latest)
            half += sum(not _is_whole(path) for path in (folder / ".ddp_lint_cache").rglob("*.json"))
        found = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False).stdout
        lost = FILES - found.count('"code": "DDP101"')
        return _told("check with a cache", kills, hits, half + lost, _left(folder))


def _kill_fixes(kills: int) -> int:
    old, new = "x = 1  # ddp-lint: ignore[DDP101]\n", "x = 1\n"
    padding = "# padding\n" * 5000
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "pyproject.toml").write_text("")
        paths = [folder / f"f{n}.py" for n in range(FILES)]
        command = _command("check", "--fix", "-q", "--no-cache")
        half = hits = 0
        latest = 0.0
        for _ in range(kills):
            for path in paths:
                path.write_text(old + padding)
            latest = latest or _seconds(command, folder)
            hits += _kill(command, folder, latest)
            half += sum(path.read_text() not in (old + padding, new + padding) for path in paths)
        _seconds(command, folder)
        return _told("check --fix", kills, hits, half, _left(folder))


def _kill_verify(target: pathlib.Path, kills: int) -> int:
    with tempfile.TemporaryDirectory() as name:
        temporary = pathlib.Path(name) / "temporary"
        temporary.mkdir()
        os.environ["TMPDIR"] = str(temporary)
        content = target.read_bytes()
        command = _command("verify", str(target), "--device", "cpu", "--wrap", "ddp", "-q")
        latest = _seconds(command, pathlib.Path(name))
        hits = 0
        for turn in range(kills):
            number = signal.SIGTERM if turn % 2 else signal.SIGKILL
            hits += _kill(command, pathlib.Path(name), latest, number)
        _seconds(command, pathlib.Path(name))
        left = [*map(str, temporary.glob("ddp-lint-*")), *_processes(str(temporary))]
        print(*left, sep="\n", end="\n" if left else "")
        return _told("verify", kills, hits, int(target.read_bytes() != content), len(left))


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


def _is_whole(path: pathlib.Path) -> bool:
    """Whether each line of a file of the cache is a JSON value."""
    try:
        for line in path.read_bytes().splitlines():
            json.loads(line)
    except ValueError:
        return False
    return True


def _left(folder: pathlib.Path) -> int:
    return sum(path.name.endswith(".tmp") for path in folder.rglob("*"))


def _told(what: str, kills: int, hits: int, wrong: int, left: int) -> int:
    print(f"{what}: {kills} kills, {hits} while it ran; lost or half: {wrong}; left over: {left}", flush=True)
    return wrong + left


if __name__ == "__main__":
    sys.exit(main())
