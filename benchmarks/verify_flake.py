"""Runs a clean and a hanging target again and again: does the verdict ever change, is a process ever left over?

    python benchmarks/verify_flake.py [--runs 50] [--jobs 4] [--device cuda] [--only hanging | --only interrupts]

Then both are interrupted at random moments, by SIGINT and by SIGKILL in turn: nothing may be left of them but, after a
SIGKILL, the folder that the next run removes. Prints runs, deviations from the usual outcome, left-over processes and
files, and seconds (median, largest). Each run has a folder for temporary files of its own and a mark in the environment
of all its processes, so that `--jobs` runs at once do not take each other's for left-overs. Files are looked for in
/dev/shm as well, where no other job writes.
"""

from __future__ import annotations

import argparse
import collections
import concurrent.futures
import dataclasses
import json
import os
import pathlib
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time

CLEAN = """\
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(8, 8)
        self.b = nn.Linear(8, 8)

    def forward(self, x):
        return self.b(torch.relu(self.a(x)))


def ddp_lint_example():
    return Net(), (torch.randn(4, 8),)
"""
#: Both ranks wait, on gloo and on NCCL: neither ends and so wakes the other.
HANGING = """\
import os

import torch
import torch.distributed as dist

cuda = torch.cuda.is_available()
device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
if cuda:
    torch.cuda.set_device(device)
dist.init_process_group("nccl" if cuda else "gloo")
x = torch.ones(4, device=device)
if dist.get_rank() == 0:
    dist.all_reduce(x)
else:
    dist.broadcast(x, src=0)
if cuda:
    torch.cuda.synchronize()
dist.destroy_process_group()
"""
TARGETS: tuple[tuple[str, str, list[str]], ...] = (("clean", CLEAN, []), ("hanging", HANGING, ["--timeout", "5"]))
#: Seconds after its start within which a run is interrupted, and for processes to be gone after that.
_LATEST, _GONE = 15.0, 30.0
#: In the environment of every process that belongs to this benchmark.
_MARK = "DDP_LINT_FLAKE"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--only", choices=("clean", "hanging", "interrupts"))
    given = parser.parse_args()
    bad = 0
    for name, source, options in TARGETS:
        if given.only in (None, name):
            bad += repeat(name, source, ["--device", given.device, *options], given.runs, given.jobs)
    if given.only in (None, "interrupts"):
        bad += interrupt(given.device, given.runs, given.jobs)
    sys.exit(bool(bad))


@dataclasses.dataclass(frozen=True)
class Run:
    outcome: str
    seconds: float
    left: tuple[str, ...]


def repeat(name: str, source: str, options: list[str], runs: int, jobs: int) -> int:
    """Deviations and left-overs of `runs` runs, `jobs` of them at once."""
    started, shared = time.monotonic(), _shared()
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        done = list(pool.map(lambda number: one(f"{os.getpid()}-{name}-{number}", source, options), range(runs)))
    left = [what for run in done for what in run.left] + sorted(_shared() - shared)
    (usual, count), *others = collections.Counter(run.outcome for run in done).most_common()
    seconds = [run.seconds for run in done]
    print(
        f"{name}: {runs} runs, {runs - count} deviate, {len(left)} processes or files left over, "
        f"{statistics.median(seconds):.1f} s median, {max(seconds):.1f} s at most "
        f"({time.monotonic() - started:.0f} s in all, {jobs} at once); outcome: {usual}",
        flush=True,
    )
    for outcome, times in others:
        print(f"  {times} x {outcome}")
    for what in left:
        print(f"  left over: {what}")
    return runs - count + len(left)


def interrupt(device: str, runs: int, jobs: int) -> int:
    """What is left of `runs` runs that are interrupted."""
    shared = _shared()
    chance = random.Random(0)
    moments = [(number, chance.uniform(0.1, _LATEST)) for number in range(runs)]
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        left = [what for found in pool.map(lambda one: _interrupted(one[0], one[1], device), moments) for what in found]
    left += sorted(_shared() - shared)
    print(f"interrupts: {runs} runs, {len(left)} processes or files left over", flush=True)
    for what in left:
        print(f"  left over: {what}")
    return len(left)


def _interrupted(number: int, seconds: float, device: str) -> list[str]:
    """What one run leaves; a folder that SIGKILL leaves is not counted."""
    _, source, options = TARGETS[number % 2]
    sent = signal.SIGINT if number // 2 % 2 else signal.SIGKILL
    mark = f"{os.getpid()}-interrupted-{number}"
    with tempfile.TemporaryDirectory() as folder:
        scratch = pathlib.Path(folder, "tmp")
        scratch.mkdir()
        pathlib.Path(folder, "train.py").write_text(source, encoding="utf-8")
        command = [sys.executable, "-m", "ddp_lint", "verify", "train.py", "--quiet", "--device", device, *options]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", _MARK: mark, "TMPDIR": str(scratch)}
        silent = subprocess.DEVNULL
        with subprocess.Popen(command, cwd=folder, env=environment, stdout=silent, stderr=silent) as process:
            time.sleep(seconds)
            process.send_signal(sent)
            process.wait(10 * _GONE)  # on a busy machine its end takes long, too
        until = time.monotonic() + (_GONE if sent == signal.SIGKILL else 0)
        while processes(mark) and time.monotonic() < until:
            time.sleep(0.2)
        files = [path.name for path in scratch.iterdir() if path.name.startswith("ddp-lint-")]
        return [*map(describe, processes(mark)), *(files if sent == signal.SIGINT else [])]


def one(mark: str, source: str, options: list[str]) -> Run:
    with tempfile.TemporaryDirectory() as folder:
        scratch = pathlib.Path(folder, "tmp")
        scratch.mkdir()
        pathlib.Path(folder, "train.py").write_text(source, encoding="utf-8")
        started = time.monotonic()
        outcome = once(folder, options, {_MARK: mark, "TMPDIR": str(scratch)})
        seconds = time.monotonic() - started
        # torch keeps what it compiled for the next process, in a folder that it names after the user.
        files = [path.name for path in scratch.iterdir() if not path.name.startswith("torchinductor_")]
        return Run(outcome, seconds, (*map(describe, processes(mark)), *files))


def _shared() -> set[str]:
    """Names of shared memory segments (Linux)."""
    folder = pathlib.Path("/dev/shm")
    return {f"{folder / path.name}" for path in folder.iterdir()} if folder.is_dir() else set()


def describe(pid: int) -> str:
    try:
        return f"process {pid}: " + pathlib.Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")[:200]
    except OSError:
        return f"process {pid}"


def once(folder: str, options: list[str], environment: dict[str, str]) -> str:
    """What one run came to, without what may differ (seconds, paths)."""
    command = [sys.executable, "-m", "ddp_lint", "verify", "train.py", "--quiet", "--output-format", "json", *options]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    try:
        report = json.loads(done.stdout)
    except ValueError:
        return f"exit {done.returncode}: {done.stderr.strip()[-200:]}"
    verdicts = [f"{finding['code']} {finding['verdict']}" for finding in report["findings"]]
    runs = [f"{run['wrap']} {run['outcome']}" for run in report["runs"]]
    parts = [f"exit {done.returncode}", *runs, *verdicts, f"discovered {len(report['discovered'])}"]
    return "; ".join(parts)


def processes(mark: str) -> list[int]:
    """Processes of a run that still live (Linux)."""
    found = []
    for folder in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            if f"{_MARK}={mark}".encode() in (folder / "environ").read_bytes().split(b"\0"):
                found.append(int(folder.name))
        except OSError:
            continue
    return found


if __name__ == "__main__":
    main()
