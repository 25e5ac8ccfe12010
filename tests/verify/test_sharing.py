"""Ranks that share a GPU: each mapping, in one process of its own; and on a machine with one GPU two ranks on NCCL."""

from __future__ import annotations

import pathlib
import subprocess
import sys

import pytest

from .test_end_to_end import verify

torch = pytest.importorskip("torch")

#: What a program with a GPU for each of two ranks may say on a machine with one.
SCRIPT = """
import os, torch, torch.distributed as dist
from ddp_lint.verify.child.sharing import Sharing

told = []
sharing = Sharing(lambda *pair: told.append(pair), gpus=1, ranks=2)
sharing.install()
second = torch.device("cuda", 1)
for said, meant in (
    ("cuda:1", "cuda:0"), (second, torch.device("cuda", 0)), (1, 0),
    ("cuda", "cuda"), ("cuda:0", "cuda:0"), ("cpu", "cpu"), (torch.device("cuda"), torch.device("cuda")), (None, None),
    (True, True), (torch.float16, torch.float16), ("cuda:2", "cuda:2"), (2, 2), (-1, -1),
):
    assert sharing.device(said, number=True) == meant, said
assert sharing.device(1) == 1
assert told == [("cuda:1", "cuda:0")]
assert torch.cuda.device_count() == 2 and torch.cuda.current_device() == 0
assert torch.ones(2).to("cpu").device.type == "cpu" and torch.ones(2).to(torch.float64).dtype == torch.float64
assert torch.zeros(2, device="cpu").device.type == "cpu"
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
seen = dict(line.split("=", 1) for line in os.popen("env").read().splitlines() if line.startswith("NCCL"))
assert seen["NCCL_HOSTID"].endswith(str(os.getpid())) and seen["NCCL_SOCKET_IFNAME"] == "lo"
assert "NCCL_HOSTID" not in os.environ
dist.barrier()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the loopback interface has another name")
def test_an_index_means_one_of_the_gpus_that_are_there(tmp_path: pathlib.Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    command = [sys.executable, "script.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


TRAINS = """
import os, sys, torch, torch.distributed as dist

wrong = "wrong" in sys.argv
dist.init_process_group("nccl")
rank = int(os.environ["LOCAL_RANK"])
assert torch.cuda.device_count() == dist.get_world_size()
device = torch.device("cuda", rank)
if not wrong:
    torch.cuda.set_device(rank)
    assert torch.cuda.current_device() == rank
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4).cuda(), device_ids=None if wrong else [rank])
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    optimizer.zero_grad()
    model(torch.randn(2, 4, device="cuda" if wrong else device)).sum().backward()
    optimizer.step()
dist.destroy_process_group()
"""


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("arguments", "found"), [((), []), (("wrong",), ["all ranks of this machine choose device 0"])]
)
def test_ranks_communicate_by_nccl_on_one_gpu(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], found: list[str]
) -> None:
    if not torch.cuda.device_count():
        pytest.skip("needs a CUDA device: run `make gpu-test` on a machine that has one")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    (tmp_path / "train.py").write_text(TRAINS)
    status, report = verify(tmp_path, "train.py", "--device", "cuda", "--select", "DDP301", "--", *arguments)
    assert [one["message"] for one in report["discovered"]] == found, report
    assert status == bool(found) and report["environment"]["shared_gpus"] == 1
    assert "2 ranks share 1 GPU" in str(report["runs"][0]["notes"])
