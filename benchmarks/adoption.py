"""What a project that exists pays and reads: findings before and after grouping, one changed helper, flake8.

    python benchmarks/adoption.py grouping FOLDER ...
    python benchmarks/adoption.py change [--dependents 50] [--repeat 3]
    python benchmarks/adoption.py flake8 FOLDER [--repeat 3]

`grouping` prints for each folder the findings that rules report, those that are shown, and how long headlines are.
`change` makes a repository of a helper with dependents and as many other files, adds a barrier to the helper, and times
`check --since HEAD` and `check --staged`, which pre-commit runs, on a warm cache, against `check` of the changed file
alone. `flake8` times `flake8 --select DDP` and `check` with one process each, cold and repeated.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

from ddp_lint.config import Settings
from ddp_lint.engine.runner import check_paths
from ddp_lint.grouping import grouped
from ddp_lint.project import Project
from ddp_lint.rules.registry import all_rules

HELPER = "import torch.distributed as dist\n\n\ndef save(x):\n    return x\n"
DEPENDENT = """\
import torch
import torch.distributed as dist

from helper import save


def work{n}(model, loader):
    for batch in loader:
        loss = model(batch).sum()
        loss.backward()
    if dist.get_rank() == 0:
        save(model)
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("what", choices=["grouping", "change", "flake8"])
    parser.add_argument("folders", nargs="*", type=pathlib.Path)
    parser.add_argument("--dependents", type=int, default=50)
    parser.add_argument("--repeat", type=int, default=3)
    options = parser.parse_args()
    if options.what == "change":
        _change(options.dependents, options.repeat)
    for folder in options.folders:
        if options.what == "grouping":
            _grouping(folder.resolve())
        elif options.what == "flake8":
            _flake8(folder.resolve(), options.repeat)
    return 0


def _grouping(folder: pathlib.Path) -> None:
    codes = frozenset(code for code, rule in all_rules().items() if rule.default)
    report = check_paths(sorted(folder.rglob("*.py")), Settings(folder, codes))
    shown = grouped(report.findings, Project(folder))
    lengths = sorted(len(finding.message) for finding in shown) or [0]
    middle, most = statistics.median(lengths), lengths[-1]
    print(f"{folder.name}: {len(report.findings)} -> {len(shown)} findings, headlines {middle:.0f} (at most {most})")


def _change(dependents: int, repeat: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "pyproject.toml").write_text("")
        (folder / "helper.py").write_text(HELPER)
        for n in range(dependents):
            (folder / f"use{n}.py").write_text(DEPENDENT.format(n=n))
            (folder / f"other{n}.py").write_text(
                DEPENDENT.format(n=n).replace("from helper import save", "").replace("save(", "print(")
            )
        for args in (["init", "-q"], ["add", "-A"], ["commit", "-q", "-m", "before"]):
            identity = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
            subprocess.run(["git", *identity, *args], cwd=folder, check=True)
        _check(folder, ".")
        (folder / "helper.py").write_text(HELPER.replace("    return", "    dist.barrier()\n    return"))
        subprocess.run(["git", "add", "-A"], cwd=folder, check=True)
        kept = folder.parent / f"{folder.name}-cache"
        shutil.copytree(folder / ".ddp_lint_cache", kept)
        for said, args in (("the file alone", ["helper.py"]), ("--since HEAD", ["--since", "HEAD", "."])):
            _print(said, [_warm(folder, kept, *args) for _ in range(repeat)])
        _print("--staged helper.py", [_warm(folder, kept, "--staged", "helper.py") for _ in range(repeat)])
        shutil.rmtree(kept)


def _warm(folder: pathlib.Path, kept: pathlib.Path, *args: str) -> tuple[float, float, int]:
    """The same cache for each run: that of the commit before."""
    shutil.rmtree(folder / ".ddp_lint_cache")
    shutil.copytree(kept, folder / ".ddp_lint_cache")
    return _check(folder, *args)


def _flake8(folder: pathlib.Path, repeat: int) -> None:
    check = ["ddp_lint", "check", "-q", "--jobs", "1", "."]
    flake8 = ["flake8", "--select", "DDP", "-j1", "."]
    for said, command in (("check", check), ("flake8 --select DDP", flake8)):
        cold, again = [], []
        for _ in range(repeat):
            shutil.rmtree(folder / ".ddp_lint_cache", ignore_errors=True)
            cold.append(_run(folder, command))
            again.append(_run(folder, command))
        _print(f"{folder.name}: {said}, cold", cold)
        _print(f"{folder.name}: {said}, repeated", again)
    shutil.rmtree(folder / ".ddp_lint_cache", ignore_errors=True)


def _check(folder: pathlib.Path, *args: str) -> tuple[float, float, int]:
    return _run(folder, ["ddp_lint", "check", "-q", "--output-format", "concise", *args])


def _run(folder: pathlib.Path, command: list[str]) -> tuple[float, float, int]:
    """Wall and CPU seconds, and the lines printed."""
    started, before = time.perf_counter(), os.times()
    done = subprocess.run([sys.executable, "-m", *command], cwd=folder, capture_output=True, text=True, check=False)
    after = os.times()
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    return time.perf_counter() - started, cpu, len(done.stdout.splitlines())


def _print(said: str, runs: list[tuple[float, float, int]]) -> None:
    wall, cpu = (min(run[n] for run in runs) for n in (0, 1))
    print(f"{said}: {wall:.2f} s, {cpu:.2f} CPU s, {runs[0][2]} lines", flush=True)


if __name__ == "__main__":
    sys.exit(main())
