"""Seconds and peak memory of `ddp-lint diagnose` on four logs: of 200 lines, of 20,000 ranks that all fail, of 1 GB,
and the dumps of 1,024 ranks.

    python benchmarks/diagnose_cost.py [--megabytes 1000] [--ranks 1024]

Each is made in a temporary folder and diagnosed in a process of its own, Python's start included.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import pickle
import subprocess
import sys
import tempfile
import time

_STEP = (
    "[rank{rank}]: 2026-11-22 15:44:13,780 INFO train.py:88 epoch 3 step {step} loss 2.3141 lr 1.0e-04 grad_norm 0.71\n"
)
_FAILS = """\
[rank{rank}]: Traceback (most recent call last):
[rank{rank}]:   File "/home/user/proj/train.py", line 88, in main
[rank{rank}]: KeyError: 'horse'
"""
_ERROR = """\
[rank3]: Traceback (most recent call last):
[rank3]:   File "/home/user/proj/train.py", line 88, in main
[rank3]:     y = table[key]
[rank3]: KeyError: 'horse'
[rank0]: Traceback (most recent call last):
[rank0]:   File "/home/user/proj/train.py", line 90, in main
[rank0]:     dist.all_reduce(loss)
[rank0]: RuntimeError: [pair.cc:553] Connection closed by peer [127.0.0.1]:19335.
"""


def small(folder: pathlib.Path) -> pathlib.Path:
    log = folder / "small.log"
    log.write_text("".join(_STEP.format(rank=n % 8, step=n) for n in range(192)) + _ERROR)
    return log


def many(folder: pathlib.Path, ranks: int) -> pathlib.Path:
    log = folder / "many.log"
    log.write_text("".join(_FAILS.format(rank=rank) for rank in range(ranks)))
    return log


def large(folder: pathlib.Path, megabytes: int) -> pathlib.Path:
    log = folder / "large.log"
    block = "".join(_STEP.format(rank=n % 8, step=n) for n in range(10_000))
    with log.open("w") as file:
        for _ in range(megabytes * 1_000_000 // len(block)):
            file.write(block)
        file.write(_ERROR)
    return log


def dumps(folder: pathlib.Path, ranks: int) -> pathlib.Path:
    """Each rank holds 200 collectives of a ring of 2,000; one of them misses the last."""
    folder = folder / "dumps"
    folder.mkdir()
    frames = [{"name": "main", "filename": "/home/user/proj/train.py", "line": 88}]
    entries = [
        {
            "frames": frames, "process_group": ("0", "default_pg"), "collective_seq_id": n, "p2p_seq_id": 0,
            "record_id": n,
            "profiling_name": "nccl:all_reduce", "input_sizes": [[n % 7, 4]], "input_dtypes": ["Float"],
            "output_sizes": [[n % 7, 4]], "output_dtypes": ["Float"], "state": "completed" if n < 199 else "started",
            "is_p2p": False,
        }
        for n in range(200)
    ]  # fmt: skip
    groups = {"0": {"name": "0", "desc": "default_pg", "ranks": str(list(range(ranks)))}}
    for rank in range(ranks):
        mine = entries[:-1] if rank == ranks // 2 else entries
        content = {"version": "2.10", "pg_config": groups, "pg_status": {}, "entries": mine}
        (folder / f"nccl_trace_rank_{rank}").write_bytes(pickle.dumps(content, protocol=2))
    return folder


def measure(name: str, path: pathlib.Path, times: int = 1) -> None:
    """The least of several runs, and the memory of the last one."""
    seconds = []
    for _ in range(times):
        started = time.perf_counter()
        command = [sys.executable, "-m", "ddp_lint", "diagnose", "--no-source", str(path)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        out = process.stdout.read() if process.stdout else ""
        _, _, used = os.wait4(process.pid, 0)
        seconds.append(time.perf_counter() - started)
    print(f"{name}: {min(seconds):.2f} s, CPU {used.ru_utime + used.ru_stime:.2f} s, {used.ru_maxrss / 1024:.0f} MiB")
    print(f"  {out.partition(chr(10))[0]}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--megabytes", type=int, default=1000)
    parser.add_argument("--ranks", type=int, default=1024)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        measure("200 lines", small(folder), times=5)
        measure("20,000 ranks", many(folder, 20_000))
        measure(f"dumps of {given.ranks} ranks", dumps(folder, given.ranks))
        measure(f"{given.megabytes} MB", large(folder, given.megabytes))


if __name__ == "__main__":
    main()
