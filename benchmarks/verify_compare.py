"""How soon is a hang told, and does what is printed name the line that is to blame? verify beside what torch has.

    python benchmarks/verify_compare.py [--device cuda] [--jobs 4] [--only uneven] [--timeout 20] [--repeat 3]

Three programs hang: ranks with unlike numbers of batches, a deadlock in a lock of Python, a collective on one rank. A
fourth one is right: what ends it with an error tells nothing by the error of another one.
Each runs under `ddp-lint verify`, under plain torchrun with the timeout of its process group cut to `--timeout`, with
TORCH_DISTRIBUTED_DEBUG=DETAIL on top, and (on NCCL) with the Flight Recorder, whose dumps are then read by torch's own
tool. Prints seconds until the command ended, its exit status, and whether the lines that are to blame were named. With
`--repeat` all is run so many times, one after the other, and the shortest time of each counts: what else the machine
does only adds to it.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import dataclasses
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time

_START = """\
import os
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

cuda = torch.cuda.is_available()
index = int(os.environ["LOCAL_RANK"])
if cuda and torch.cuda.device_count() == 1:  # both ranks on it, as hosts of their own, as verify has them
    os.environ.update(NCCL_HOSTID=str(index), NCCL_SOCKET_IFNAME="lo")
    index = 0
device = torch.device("cuda", index) if cuda else torch.device("cpu")
if cuda:
    torch.cuda.set_device(device)
timeout = timedelta(seconds=float(os.environ.get("PG_TIMEOUT", "1800")))
dist.init_process_group("nccl" if cuda else "gloo", timeout=timeout)
rank = dist.get_rank()
"""
#: Name -> program; the lines that end with `# <-` are those that whoever looks for the fault wants to see.
PROGRAMS = {
    "uneven": _START
    + """
def batches():
    for number in range(rank, 5, dist.get_world_size()):
        generator = torch.Generator().manual_seed(number)
        yield torch.randn(4, 8, generator=generator).to(device)


model = DDP(nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1)).to(device))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(2):
    for x in batches():
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()  # <-
        optimizer.step()
dist.barrier()  # <-
if cuda:
    torch.cuda.synchronize()
dist.destroy_process_group()
""",
    "lock": _START
    + """
import threading

lock = threading.Lock()


def log(loss):
    lock.acquire()  # <-
    if loss != loss:
        raise ValueError("bad row")
    lock.release()


model = DDP(nn.Linear(4, 2).to(device))
for step in range(5):
    x = torch.randn(4, 4, device=device)
    if rank == 1 and step == 2:
        x[0, 0] = float("nan")
    loss = model(x).mean()
    try:
        log(loss.item())
    except ValueError:
        pass
    loss.backward()
dist.destroy_process_group()
""",
    "one_rank": _START
    + """
model = DDP(nn.Linear(4, 2).to(device))
for step in range(3):
    model(torch.randn(4, 4, device=device)).sum().backward()
total = torch.ones(1, device=device)
if rank == 0:
    dist.all_reduce(total)  # <-
    print(total.item())
print("done")
dist.barrier()
if cuda:
    torch.cuda.synchronize()
dist.destroy_process_group()
""",
    "right": _START
    + """
model = DDP(nn.Linear(4, 2).to(device))
for step in range(3):
    model(torch.randn(4, 4, device=device)).sum().backward()
if cuda:
    torch.cuda.synchronize()
dist.destroy_process_group()
""",
}


@dataclasses.dataclass(frozen=True)
class Told:
    """What one command came to."""

    seconds: float
    #: None: it was given up.
    status: int | None
    lines: bool
    words: str


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--only", default="", help="a regular expression on program:tool")
    parser.add_argument("--timeout", type=float, default=20.0)
    parser.add_argument("--limit", type=float, default=90.0, help="seconds after which a command is given up")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--out", type=pathlib.Path)
    given = parser.parse_args()
    rows = ["| program | tool | seconds | status | names the lines | what it said first |", "|---|---|---|---|---|---|"]
    todo = [
        (name, tool)
        for name in PROGRAMS
        for tool in TOOLS
        if re.search(given.only, f"{name}:{tool}") and (tool != "flight recorder" or given.device == "cuda")
    ]
    with concurrent.futures.ThreadPoolExecutor(given.jobs) as pool:
        rounds = [list(pool.map(lambda one: run(one[0], one[1], given), todo)) for _ in range(given.repeat)]
        for (name, tool), *same in zip(todo, *rounds, strict=True):
            told = min(same, key=lambda one: (one.status is None, one.seconds))
            ended = f"{told.seconds:.1f}" if told.status is not None else f"more than {told.seconds:.0f}"
            cells = (name, tool, ended, told.status, "yes" if told.lines else "no", told.words)
            rows.append(f"| {' | '.join(map(str, cells))} |")
            print(rows[-1], file=sys.stderr, flush=True)
    text = "\n".join(rows) + f"\n\n{given.device}, {os.cpu_count()} processors, load {os.getloadavg()[0]:.1f}\n"
    print(text)
    if given.out:
        given.out.write_text(text, encoding="utf-8")


_TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "train.py"]
#: Tool -> what it sets in the environment of torchrun; verify needs nothing.
TOOLS: dict[str, dict[str, str]] = {
    "ddp-lint verify": {},
    "torchrun": {"PG_TIMEOUT": "{timeout}"},
    "torchrun, DETAIL": {"PG_TIMEOUT": "{timeout}", "TORCH_DISTRIBUTED_DEBUG": "DETAIL"},
    "flight recorder": {
        "PG_TIMEOUT": "{timeout}",
        "TORCH_NCCL_TRACE_BUFFER_SIZE": "2000",
        "TORCH_FR_BUFFER_SIZE": "2000",
        "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
        "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": "{folder}/dump_",
        "TORCH_FR_DUMP_TEMP_FILE": "{folder}/dump_",
    },
}


def run(name: str, tool: str, given: argparse.Namespace) -> Told:
    """Run one program under one tool."""
    source = PROGRAMS[name]
    with tempfile.TemporaryDirectory() as place:
        folder = pathlib.Path(place)
        (folder / "train.py").write_text(source, encoding="utf-8")
        extra = {key: value.format(timeout=given.timeout, folder=folder) for key, value in TOOLS[tool].items()}
        environment = {**os.environ, "OMP_NUM_THREADS": "1", **extra}
        if given.device == "cpu":
            environment["CUDA_VISIBLE_DEVICES"] = ""
        verify = [sys.executable, "-m", "ddp_lint", "verify", "train.py", "--device", given.device, "--quiet"]
        started = time.monotonic()
        printed, status = _output(verify if tool == "ddp-lint verify" else _TORCHRUN, folder, environment, given.limit)
        if tool == "flight recorder":
            reader = [sys.executable, "-m", "torch.distributed.flight_recorder.fr_trace", "--prefix", "dump_", place]
            printed += _output(reader, folder, environment, given.limit)[0]
        seconds = time.monotonic() - started
    wanted = [number for number, line in enumerate(source.splitlines(), 1) if line.endswith("# <-")]
    lines = all(re.search(rf'train\.py(:|", line ){number}\b|\bline {number}\b', printed) for number in wanted)
    return Told(seconds, status, lines, _first_words(printed))


def _output(
    command: list[str], folder: pathlib.Path, environment: dict[str, str], limit: float
) -> tuple[str, int | None]:
    """What a command printed, and its exit status, None when it did not end by itself."""
    with (folder / "printed").open("w+", encoding="utf-8", errors="replace") as log:
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=log, start_new_session=True)
        try:
            status: int | None = process.wait(limit)
        except subprocess.TimeoutExpired:
            status = None
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
        log.seek(0)
        return log.read(), status


def _first_words(printed: str) -> str:
    """The first line that tells of what happened."""
    telling = re.compile(
        r"(Error:|error:|exitcode: -|Timed out|confirmed:|mismatch:|stall:|stands still|no findings)", re.IGNORECASE
    )
    line = next((line for line in printed.splitlines() if telling.search(line)), "nothing")
    return " ".join(line.replace("|", "/").split())[:140]


if __name__ == "__main__":
    main()
