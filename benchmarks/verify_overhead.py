"""How much tracing slows a training step: a small transformer under DDP on two gloo ranks, bare and under `verify`.

`python benchmarks/verify_overhead.py [--steps 40]` prints the median CPU seconds of a step of rank 0, the first five
and the later ones apart: in the first five every parameter and gradient is digested.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

from ddp_lint.verify.launch import Launcher
from ddp_lint.verify.options import Options, Watch
from ddp_lint.verify.target import resolve

SCRIPT = """
import json, sys, time
import torch
import torch.distributed as dist
from torch import nn

dist.init_process_group("gloo")
torch.manual_seed(0)
layer = nn.TransformerEncoderLayer(128, 4, 256, batch_first=True)
model = nn.parallel.DistributedDataParallel(nn.TransformerEncoder(layer, 4))
optimizer = torch.optim.AdamW(model.parameters())
seconds = []
for step in range(int(sys.argv[1])):
    x = torch.randn(8, 64, 128)
    began = time.process_time()
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    seconds.append(time.process_time() - began)
if dist.get_rank() == 0:
    with open(sys.argv[2], "w") as out:
        json.dump(seconds, out)
dist.destroy_process_group()
"""


def bare(script: pathlib.Path, steps: int, out: pathlib.Path) -> list[float]:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(script)]
    subprocess.run([*command, str(steps), str(out)], check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    return list(json.loads(out.read_text()))


def traced(script: pathlib.Path, steps: int, out: pathlib.Path) -> list[float]:
    options = Options(device="cpu", arguments=(str(steps), str(out)))
    with Launcher(resolve(str(script), options), options) as launcher:
        (result,) = launcher.run(launcher.probe(), Watch())
    assert result.outcome == "completed", result.message
    return list(json.loads(out.read_text()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=40)
    steps = parser.parse_args().steps
    with tempfile.TemporaryDirectory() as folder:
        script, out = pathlib.Path(folder, "train.py"), pathlib.Path(folder, "seconds.json")
        script.write_text(SCRIPT)
        measured = {"bare": bare(script, steps, out), "traced": traced(script, steps, out)}
    for part, chosen in (("first 5 steps", slice(1, 5)), ("later steps", slice(5, None))):
        medians = {name: statistics.median(seconds[chosen]) for name, seconds in measured.items()}
        ratio = medians["traced"] / medians["bare"]
        print(f"{part}: bare {medians['bare']:.4f} s, traced {medians['traced']:.4f} s, {ratio:.2f} times")


if __name__ == "__main__":
    main()
