"""Checks a lot of code that nobody wrote for us, and tells what did not go well.

By default the standard library and, where it is installed, torch: some 4,000 files. Prints the files that could not be
checked, rules that crashed, and the slowest files with their CPU seconds; exits with 1 when anything crashed. What is
no Python at all (the standard library's own tests have such files) is counted, not told.

What a file needs of another one is charged to that one, whichever asks for it first, and what is worked out about all
of them to the project as a whole.

    python benchmarks/robustness.py [FOLDER ...] [--every N] [--jobs N]
"""

from __future__ import annotations

import argparse
import importlib.util
import pathlib
import sys
import sysconfig
import time

from ddp_lint.config import Settings
from ddp_lint.engine.report import Report
from ddp_lint.engine.runner import check_paths
from ddp_lint.rules.registry import declared


def main() -> int:
    options = _options()
    crashed = 0
    for folder in options.folders or _installed():
        files = _files(folder)[:: options.every]
        started = time.perf_counter()
        report = check_paths(files, Settings(folder, frozenset(declared())), jobs=options.jobs)
        print(f"{folder}: {len(files)} files, {time.perf_counter() - started:.0f} s", flush=True)
        crashed += _told(report)
    return 1 if crashed else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folders", nargs="*", type=pathlib.Path)
    parser.add_argument("--every", type=int, default=1, help="every n-th file only")
    parser.add_argument("--jobs", type=int, help="processes (default: as many as there are cores)")
    return parser.parse_args()


def _installed() -> list[pathlib.Path]:
    torch = importlib.util.find_spec("torch")
    found = [pathlib.Path(sysconfig.get_path("stdlib"))]
    return found + ([pathlib.Path(torch.origin).parent] if torch and torch.origin else [])


def _files(folder: pathlib.Path) -> list[pathlib.Path]:
    """The Python files of a folder; of the standard library's, not what was installed beside it."""
    inside = ((path, path.relative_to(folder).parts) for path in folder.rglob("*.py"))
    return sorted(path for path, parts in inside if "site-packages" not in parts and path.is_file())


def _told(report: Report) -> int:
    """Print what went wrong; how often it was our fault."""
    broken = [(path, reason) for path, reason in report.errors if "report" in reason]
    ours = broken + [(f.span.path, f.message) for f in report.findings if f.code == "DDP001"]
    for path, reason in ours:
        print(f"  {path}: {reason}")
    unparsed = sum(f.code == "DDP000" for f in report.findings)
    print(f"  crashes: {len(ours)}; no Python: {unparsed}; not readable: {len(report.errors) - len(broken)}")
    for path, seconds in report.statistics.slowest:
        lines = pathlib.Path(path).read_bytes().count(b"\n") if path else 0
        rate = f"{lines / seconds:7.0f} lines/s  {path}" if path else "for the project as a whole"
        print(f"  {lines:6} lines: {seconds:6.2f} s {rate}", flush=True)
    return len(ours)


if __name__ == "__main__":
    sys.exit(main())
