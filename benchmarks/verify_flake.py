"""Runs a clean and a hanging target again and again: does the verdict ever change, is a process ever left over?

    python benchmarks/verify_flake.py [--runs 50] [--device cuda]

Prints runs, deviations from the first run's outcome, left-over processes and files, and seconds (median, largest).
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import pathlib
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
HANGING = """\
import torch
import torch.distributed as dist

dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
rank = dist.get_rank()
if torch.cuda.is_available():
    torch.cuda.set_device(rank)
if rank == 0:
    dist.barrier()
dist.destroy_process_group()
"""
#: In the environment of every process that belongs to this benchmark.
_MARK = "DDP_LINT_FLAKE"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    given = parser.parse_args()
    bad = 0
    for name, source, options in (("clean", CLEAN, []), ("hanging", HANGING, ["--timeout", "5"])):
        bad += repeat(name, source, ["--device", given.device, *options], given.runs)
    sys.exit(bool(bad))


def repeat(name: str, source: str, options: list[str], runs: int) -> int:
    """Deviations and left-overs of `runs` runs."""
    outcomes: collections.Counter[str] = collections.Counter()
    seconds, left = [], 0
    for number in range(runs):
        mark = f"{os.getpid()}-{name}-{number}"
        with tempfile.TemporaryDirectory() as folder:
            scratch = pathlib.Path(folder, "tmp")
            scratch.mkdir()
            pathlib.Path(folder, "train.py").write_text(source, encoding="utf-8")
            started = time.monotonic()
            outcomes[once(folder, options, {_MARK: mark, "TMPDIR": str(scratch)})] += 1
            seconds.append(time.monotonic() - started)
            left += len(processes(mark)) + len(list(scratch.iterdir()))
    (usual, _), *others = outcomes.most_common()
    deviating = sum(count for _, count in others)
    print(
        f"{name}: {runs} runs, {deviating} deviate, {left} processes or files left over, "
        f"{statistics.median(seconds):.1f} s median, {max(seconds):.1f} s at most; outcome: {usual}"
    )
    for outcome, count in others:
        print(f"  {count} x {outcome}")
    return deviating + left


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
