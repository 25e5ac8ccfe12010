"""How long until a verdict: a clean model under each wrap, and a hang with `--timeout 5`.

    python benchmarks/verify_latency.py [--device cuda] [--wrap ddp,fsdp2] [--repeat 3] [--out table.md]

Prints seconds from start to verdict, the seconds that `import torch` takes here by itself (a launch pays them twice in
a row: in torchrun, then in the supervisors that its ranks are forked from), and where a launch
spends its time. Goals: a clean model below 15 s a wrap beyond importing torch, a hang below 15 s more than its timeout
beyond importing torch. Exits with 1 when one is missed.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

from verify_flake import CLEAN, HANGING

TIMEOUT = 5.0
GOAL = 15.0
#: Processes that import torch one after the other: torchrun, and the supervisor of each rank.
_IMPORTS = 2


@dataclasses.dataclass(frozen=True)
class Run:
    """One `ddp-lint verify`: seconds in all, and of its launch until the ranks had torch, until they ended, until
    torchrun had ended."""

    outcome: str
    seconds: float
    start: float
    work: float
    end: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--wrap", default="ddp,fsdp2")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--out", type=pathlib.Path)
    given = parser.parse_args()
    torch = statistics.median(seconds_of_import() for _ in range(given.repeat))
    rows = [
        "| target | outcome | start to verdict | beyond torch | goal | before the ranks have torch | run | end |",
        "|---|---|---|---|---|---|---|---|",
    ]
    missed = False
    targets = [(f"clean, {wrap}", CLEAN, ["--wrap", wrap], 0.0) for wrap in given.wrap.split(",")]
    targets.append(("hang", HANGING, ["--timeout", str(TIMEOUT)], TIMEOUT))
    for name, source, options, waits in targets:
        runs = [verify(source, ["--device", given.device, *options]) for _ in range(given.repeat)]
        run = sorted(runs, key=lambda one: one.seconds)[len(runs) // 2]
        beyond, goal = run.seconds - _IMPORTS * torch, GOAL + waits
        missed |= beyond >= goal
        cells = (run.seconds, beyond, goal, run.start, run.work, run.end)
        rows.append(f"| {name} | {run.outcome} | " + " | ".join(f"{cell:.1f} s" for cell in cells) + " |")
    rows.append(
        f"\n{given.device}, {os.cpu_count()} processors, import torch {torch:.1f} s, median of {given.repeat}; "
        f"load {os.getloadavg()[0]:.1f}\n"
    )
    text = "\n".join(rows)
    print(text)
    if given.out:
        given.out.write_text(text, encoding="utf-8")
    sys.exit(missed)


def seconds_of_import() -> float:
    started = time.monotonic()
    subprocess.run([sys.executable, "-c", "import torch"], check=True)
    return time.monotonic() - started


def verify(source: str, options: list[str]) -> Run:
    with tempfile.TemporaryDirectory() as folder:
        pathlib.Path(folder, "train.py").write_text(source, encoding="utf-8")
        kept = pathlib.Path(folder, "traces")
        command = [sys.executable, "-m", "ddp_lint", "verify", "train.py", "--quiet", "--output-format", "json"]
        started = time.monotonic()
        done = subprocess.run(
            [*command, "--keep-traces", str(kept), *options],
            cwd=folder,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
        seconds = time.monotonic() - started
        try:
            launch = json.loads(done.stdout)["runs"][0]
        except (ValueError, IndexError):
            sys.exit(f"verify said nothing: {done.stderr[-2000:]}")
        spec, ready, ended = (_latest(kept, f"*/{name}") for name in ("spec.json", "rank*.ready", "rank*.exit"))
        return Run(launch["outcome"], seconds, ready - spec, ended - ready, launch["seconds"] - (ended - spec))


def _latest(folder: pathlib.Path, pattern: str) -> float:
    """When the last of these files was written."""
    return max((path.stat().st_mtime for path in folder.glob(pattern)), default=0.0)


if __name__ == "__main__":
    main()
