"""What the rules of rank divergence (DDP1xx) cost: seconds and memory, cold and after one changed file.

    python benchmarks/divergence_cost.py PATH... [--repeat 1]

PATH are checkouts of distributed training code; each is copied to a temporary folder, where one file gets a new line.
Every figure is of `ddp-lint check` in one process, with the rules that are on by default: CPU seconds, wall seconds
and the peak of the resident memory. The share of DDP1xx is the CPU time of a cold run less that of one without them.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time


@dataclasses.dataclass(frozen=True)
class Cost:
    """Of one run: CPU and wall seconds, peak memory in MiB."""

    cpu: float
    wall: float
    memory: float


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("paths", nargs="+", type=pathlib.Path)
    parser.add_argument("--repeat", type=int, default=1, help="runs of which the median counts")
    options = parser.parse_args()
    for path in options.paths:
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder, path.name)
            shutil.copytree(path, root, ignore=shutil.ignore_patterns(".git", ".ddp_lint_cache"))
            _measure(root, options.repeat)


def _measure(root: pathlib.Path, repeat: int) -> None:
    files = sorted(root.rglob("*.py"))
    lines = sum(path.read_bytes().count(b"\n") for path in files)
    print(f"{root.name}: {len(files)} files, {lines:,} lines")
    cold = _cost(root, repeat, "--no-cache")
    without = _cost(root, repeat, "--no-cache", "--ignore", "DDP1")
    _cost(root, 1)
    unchanged = _cost(root, repeat)
    changed = _most_imported(files)
    with changed.open("a", encoding="utf-8") as file:
        file.write("\n_changed = True\n")
    after = _cost(root, 1)
    rows = {
        "cold": cold, "cold, without DDP1xx": without, "nothing changed": unchanged,
        f"after a change of {changed.relative_to(root)}": after,
    }  # fmt: skip
    width = max(map(len, rows))
    print(f"  {'':{width}}{'CPU s':>9}{'wall s':>9}{'peak MiB':>10}")
    for name, cost in rows.items():
        print(f"  {name:{width}}{cost.cpu:9.1f}{cost.wall:9.1f}{cost.memory:10.0f}")
    print(f"  share of DDP1xx in a cold run: {1 - without.cpu / cold.cpu:.0%}\n", flush=True)


def _most_imported(files: list[pathlib.Path]) -> pathlib.Path:
    """The file whose module name the most files mention: the change with the widest consequences."""
    texts = [path.read_bytes() for path in files]
    names = {path: path.stem.encode() for path in files if path.stem not in ("__init__", "setup", "utils", "main")}
    return max(names, key=lambda path: sum(b"import " + names[path] in text for text in texts))


def _cost(root: pathlib.Path, repeat: int, *options: str) -> Cost:
    runs = [_run(root, *options) for _ in range(repeat)]
    return Cost(*(statistics.median(values) for values in zip(*map(dataclasses.astuple, runs), strict=True)))


def _run(root: pathlib.Path, *options: str) -> Cost:
    command = [sys.executable, "-m", "ddp_lint", "check", "--isolated", "--exit-zero", "-q", "--jobs", "1"]
    start = time.perf_counter()
    process = subprocess.Popen([*command, "--output-file", os.devnull, *options, str(root)], cwd=root)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise SystemExit(f"ddp-lint check {root.name} ended with status {process.returncode}")
    unit = 2**20 if sys.platform == "darwin" else 2**10
    return Cost(usage.ru_utime + usage.ru_stime, time.perf_counter() - start, usage.ru_maxrss / unit)


if __name__ == "__main__":
    main()
