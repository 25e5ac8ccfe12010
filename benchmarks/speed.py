"""How fast `ddp-lint check` is, beside its peers on the same files in the same run.

Downloads four public packages (nothing of them is installed or kept in the repository), makes a virtual environment
for each peer, and prints CPU and wall seconds with their ratios to ours. Run by `make bench`.

    python benchmarks/speed.py [--only lightning,accelerate] [--repeat 3] [--folder DIR] [--without torchfix]
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import pathlib
import resource
import shutil
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
import venv
import zipfile
from collections.abc import Callable

PACKAGES = ("lightning", "accelerate", "deepspeed", "transformers")
#: What each peer needs; TorchFix's pin cannot share an environment with a current LibCST.
PEERS = {
    "flake8": ["flake8"],
    "torchfix": ["torchfix", "libcst<1.6"],
    "torch-preflight": ["torch-preflight"],
    "ruff": ["ruff"],
}
#: Peers that take minutes on 100,000 lines are timed once, and on the small packages only.
SLOW = {"torchfix", "torch-preflight"}
LARGE = {"deepspeed", "transformers"}
#: Where a single file is checked as `pre-commit` would, beside the file of median size: large, and in everybody's way.
STAGED = {
    "accelerate": "accelerate/accelerator.py",
    "transformers": "transformers/modeling_attn_mask_utils.py",
}


@dataclasses.dataclass(frozen=True)
class Time:
    """Median wall and CPU seconds of a command, children included."""

    wall: float
    cpu: float


def main() -> None:
    options = _options()
    folder = pathlib.Path(options.folder or tempfile.gettempdir()) / "ddp-lint-bench"
    folder.mkdir(parents=True, exist_ok=True)
    wanted = {name: needs for name, needs in PEERS.items() if name not in options.without}
    places = {name: _environment(folder / "venvs" / name, needs) for name, needs in wanted.items()}
    peers = {name: place for name, place in places.items() if place}
    _timed([*_own(), "--help"], 1)
    print(f"Python {sys.version.split()[0]}, {os.cpu_count()} cores, median of {options.repeat} runs\n")
    for package in options.only:
        root = _sources(folder / "sources", package)
        if root is not None:
            _compare(package, root, peers, options.repeat)
    took = _timed([*_own(), "--help"], max(options.repeat, 5))
    print(f"ddp-lint --help: {took.wall:.3f} s ({took.cpu:.3f} CPU s)")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", type=lambda text: text.split(","), default=list(PACKAGES))
    parser.add_argument("--without", type=lambda text: text.split(","), default=[], help="peers to leave out")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--folder", help="where downloads and environments go (default: the temporary folder)")
    return parser.parse_args()


# ---- what is measured


def _compare(package: str, root: pathlib.Path, peers: dict[str, pathlib.Path], repeat: int) -> None:
    files = sorted(root.rglob("*.py"))
    lines = sum(path.read_bytes().count(b"\n") for path in files)
    print(f"{package}: {len(files)} files, {lines:,} lines")
    check = [*_own(), "check", "--isolated", "--exit-zero", "-q", "--output-file", os.devnull]
    shutil.rmtree(root / ".ddp_lint_cache", ignore_errors=True)
    cold_runs = 1 if package in LARGE else repeat
    cold = _timed([*check, "--no-cache", "--jobs", "1", str(root)], cold_runs)
    rows = {"ddp-lint, cold, 1 process": cold}
    rows["ddp-lint, cold, 2 processes"] = _timed([*check, "--no-cache", "--jobs", "2", str(root)], cold_runs)
    _timed([*check, str(root)], 1)
    rows["ddp-lint, nothing changed"] = _timed([*check, str(root)], repeat)
    staged = [_middle(files), *([root / STAGED[package]] if package in STAGED else [])]
    for path in staged:
        rows[f"ddp-lint, {path.name}"] = _timed([*check, "--no-cache", str(path)], repeat)
    rows["ast.parse, 1 process"] = _timed([sys.executable, "-c", _AST_PARSE, str(root)], repeat)
    for name, command in _peer_commands(peers, root).items():
        if name not in SLOW or package not in LARGE:
            rows[name] = _timed(command, 1 if name in SLOW else repeat)
    shutil.rmtree(root / ".ddp_lint_cache", ignore_errors=True)
    print(f"  {'':40}{'CPU s':>9}{'wall s':>9}{'CPU / ours':>13}{'ours / wall':>13}")
    two = rows["ddp-lint, cold, 2 processes"].wall
    for name, took in rows.items():
        print(f"  {name:40}{took.cpu:9.2f}{took.wall:9.2f}{took.cpu / cold.cpu:13.2f}{two / took.wall:13.2f}")
    print(flush=True)


_AST_PARSE = """
import ast, pathlib, sys, warnings
warnings.simplefilter("ignore")
for path in pathlib.Path(sys.argv[1]).rglob("*.py"):
    try:
        ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):
        pass
"""


def _peer_commands(peers: dict[str, pathlib.Path], root: pathlib.Path) -> dict[str, list[str]]:
    commands: dict[str, Callable[[str], list[str]]] = {
        "flake8": lambda bin: [f"{bin}/flake8", "--isolated", "-j1", "--select", "F", str(root)],
        "torchfix": lambda bin: [f"{bin}/torchfix", str(root)],
        "torch-preflight": lambda bin: [f"{bin}/torch-preflight", str(root)],
        "ruff": lambda bin: [f"{bin}/ruff", "check", "--isolated", "--no-cache", str(root)],
    }
    return {name: commands[name](str(bin)) for name, bin in peers.items()}


def _timed(command: list[str], repeat: int) -> Time:
    """The median of some runs. What a linter finds, and its exit status, do not matter here.

    An installed tool has its bytecode: ours gets to keep its own too.
    """
    walls, cpus = [], []
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    for _ in range(repeat):
        before, started = _children(), time.perf_counter()
        result = subprocess.run(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, check=False, env=environment
        )
        walls.append(time.perf_counter() - started)
        cpus.append(_children() - before)
        if result.returncode not in (0, 1):
            print(f"  {' '.join(command[:3])} ... ended with {result.returncode}: {result.stderr[-300:]!r}")
    return Time(statistics.median(walls), statistics.median(cpus))


def _children() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _middle(files: list[pathlib.Path]) -> pathlib.Path:
    """The file of median size."""
    return sorted(files, key=lambda path: path.stat().st_size)[len(files) // 2]


def _own() -> list[str]:
    return [sys.executable, "-m", "ddp_lint"]


# ---- what it is measured on, and beside


def _sources(folder: pathlib.Path, package: str) -> pathlib.Path | None:
    """The unpacked source of a package from PyPI, as a project; a wheel where there is one, nothing is built."""
    target = folder / package
    if target.is_dir():
        return target
    with tempfile.TemporaryDirectory() as temporary:
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", temporary]
        for kind in (["--only-binary", ":all:"], ["--no-binary", ":all:", "--no-build-isolation"]):
            subprocess.run([*pip, *kind, package], check=False, stderr=subprocess.DEVNULL)
            archives = sorted(pathlib.Path(temporary).iterdir())
            if archives:
                _unpack(archives[0], target)
                (target / "pyproject.toml").touch()  # so that one file is checked as a part of the whole
                return target
    print(f"{package}: cannot be downloaded, left out")
    return None


def _unpack(archive: pathlib.Path, target: pathlib.Path) -> None:
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            wheel.extractall(target)
    else:
        with tarfile.open(archive) as sdist:
            sdist.extractall(target, filter="data")


def _environment(folder: pathlib.Path, needs: list[str]) -> pathlib.Path | None:
    """The `bin` folder of a virtual environment with the packages; None when they cannot be installed."""
    place = folder / ("Scripts" if os.name == "nt" else "bin")
    if (folder / "ready").exists():
        return place
    venv.create(folder, with_pip=True, clear=True)
    result = subprocess.run([place / "python", "-m", "pip", "install", "--quiet", *needs], check=False)
    if result.returncode:
        print(f"{needs[0]}: cannot be installed, left out")
        return None
    (folder / "ready").touch()
    return place


if __name__ == "__main__":
    main()
