"""`ddp-lint verify` as a user runs it, on two gloo ranks: each verdict once, and the exit status.

Where nothing but the report matters, all share the launch of `warm`.
"""

from __future__ import annotations

import concurrent.futures
import json
import os
import pathlib
import re
import socket
import subprocess
import sys
from typing import Any

import pytest
from click.testing import CliRunner

from ddp_lint.cli import main

from . import warm

pytestmark = pytest.mark.launch

SCRIPT = """\
import sys

import torch
import torch.distributed as dist


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    if len(sys.argv) > 5 and rank == 0:
        dist.barrier()
    if rank == 0:
        dist.all_reduce(torch.ones(4))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
"""
CLEAN = """\
import torch


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(8, 8)

    def forward(self, x):
        return self.linear(x)
"""
PER_NODE = """\
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
x = torch.ones(4)
dist.all_reduce(x)
if dist.get_rank() == 0:
    dist.all_reduce(x)
dist.destroy_process_group()
"""
ABORTS = """\
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
if dist.get_rank() == 0:
    dist.all_reduce(torch.ones(1))
dist.all_reduce(torch.ones(9))
dist.destroy_process_group()
"""
#: Rank 0 leaves the second branch out, and so does every rank without averaging; `.grad` is there on both all the same.
BRANCHES = """\
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)

    def forward(self, x, both):
        return self.second(self.first(x)) if both else self.first(x)


dist.init_process_group("gloo")
model = DDP(Net(), find_unused_parameters=True)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    with model.no_sync():
        model(torch.randn(2, 4), False).sum().backward()
    model(torch.randn(2, 4), "everywhere" in sys.argv or dist.get_rank() == 1).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
"""
#: Lightning's manual optimization: one forward, two backwards, and the averaging is prepared before each of them.
MANUAL = """\
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)

    def forward(self, x):
        self.outputs = self.first(x), self.second(x)


dist.init_process_group("gloo")
model = DDP(Net(), find_unused_parameters=True)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    model.require_backward_grad_sync = False
    model(torch.randn(2, 4))
    model.require_backward_grad_sync = True
    for output in model.module.outputs:
        model.reducer._rebuild_buckets()
        model.reducer.prepare_for_backward([output])
        output.sum().backward()
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
"""
EXAMPLES = pathlib.Path(__file__).parents[2] / "examples"


def verify(folder: pathlib.Path, *arguments: str) -> tuple[int, dict[str, Any]]:
    options = ("--device", "cpu", "--output-format", "json", "-q")
    command = [sys.executable, "-m", "ddp_lint", "verify", *options, *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def test_a_file_with_two_models_is_judged_class_by_class(tmp_path: pathlib.Path) -> None:
    """What one model's run shows says nothing about the other."""
    (tmp_path / "verdicts.py").write_text((EXAMPLES / "verdicts.py").read_text())
    status, report = warm.verify(tmp_path, "verdicts.py", "--wrap", "ddp")
    assert [(f["line"], f["verdict"]) for f in report["findings"]] == [(14, "confirmed"), (26, "refuted")]
    assert (status, report["discovered"]) == (1, [])
    readme = re.findall(r"(?m)^  ddp .*?(\w+) +line (\d+)  ", (EXAMPLES.parent / "README.md").read_text())
    shown = [(each["kind"], str(each["line"])) for finding in report["findings"] for each in finding["evidence"]]
    assert readme == shown, "the README shows what verify prints"


def test_a_hang_is_confirmed_and_what_did_not_run_is_not_reached(tmp_path: pathlib.Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    status, report = warm.verify(tmp_path, "train.py", "--timeout", "6", "--select", "DDP101")
    verdicts = {finding["line"]: (finding["verdict"], finding["reason"]) for finding in report["findings"]}
    assert verdicts[13][0] == "confirmed" and "rank 1 makes no further call" in verdicts[13][1]
    assert verdicts[11][0] == "not reached"
    assert status == 1


def test_lines_count_that_ran_before_a_collective_ended_the_process(tmp_path: pathlib.Path) -> None:
    """gloo aborts over sizes, and the process cannot say a word more."""
    (tmp_path / "train.py").write_text(ABORTS)
    _, report = warm.verify(tmp_path, "train.py", "--select", "DDP101")
    (finding,) = report["findings"]
    lines = [evidence["message"] for evidence in finding["evidence"] if evidence["kind"] == "lines"]
    assert (finding["verdict"], lines) == ("confirmed", ["the line ran once on rank 0, not at all on rank 1"])


def test_a_clean_model_exits_with_0(tmp_path: pathlib.Path) -> None:
    (tmp_path / "model.py").write_text(CLEAN)
    status, report = verify(tmp_path, "model.py", "--wrap", "ddp")
    assert (status, report["findings"], report["discovered"]) == (0, [], [])
    assert [run["outcome"] for run in report["runs"]] == ["completed"]


RECURRENT = """\
import torch


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = torch.nn.LSTM(5, 16, batch_first=True)
        self.head = torch.nn.Linear(16, 1)

    def forward(self, x):
        return self.head(self.rnn(x)[0][:, -1])


def ddp_lint_example():
    return Net(), (torch.randn(4, 6, 5),)
"""


BOTH_RECEIVE = """\
import torch, torch.distributed as dist
dist.init_process_group("nccl")
rank = dist.get_rank()
torch.cuda.set_device(rank)
mine, theirs = torch.ones(4, device="cuda"), torch.ones(4, device="cuda")
dist.recv(theirs, 1 - rank)
dist.send(mine, 1 - rank)
dist.destroy_process_group()
"""


@pytest.mark.gpu
@pytest.mark.parametrize("wrap", ["ddp", "fsdp2"])
def test_the_precision_of_cudnn_is_no_difference_from_one_process(tmp_path: pathlib.Path, wrap: str) -> None:
    import torch

    if not torch.cuda.device_count():
        pytest.skip("needs a CUDA device: run `make gpu-test` on a machine that has one")
    (tmp_path / "model.py").write_text(RECURRENT)
    status, report = verify(tmp_path, "model.py", "--wrap", wrap, "--device", "cuda")
    assert (status, report["discovered"]) == (0, [])


@pytest.mark.gpu
def test_both_ranks_that_receive_first_hang_where_nccl_tears_down(tmp_path: pathlib.Path) -> None:
    """NCCL's calls return before the GPU has done them: the ranks come to the end of the program."""
    import torch

    if torch.cuda.device_count() < 2:
        pytest.skip("needs two CUDA devices: run `make gpu-test` on a machine that has them")
    (tmp_path / "train.py").write_text(BOTH_RECEIVE)
    status, report = verify(tmp_path, "train.py", "--device", "cuda", "--timeout", "8")
    assert status == 1
    assert ("DDP114", 6, "confirmed") in [(f["code"], f["line"], f["verdict"]) for f in report["findings"]]


def test_what_only_a_run_decides_is_asked_without_being_selected(tmp_path: pathlib.Path) -> None:
    (tmp_path / "train.py").write_text(BRANCHES)
    for arguments, expected in (((), "refuted"), (("--", "everywhere"), "confirmed")):
        _, report = warm.verify(tmp_path, "train.py", *arguments)
        verdicts = {finding["code"]: finding["verdict"] for finding in report["findings"]}
        assert verdicts["DDP621"] == expected, report
        assert not report["discovered"]


def test_each_backward_of_one_forward_has_its_own_search(tmp_path: pathlib.Path) -> None:
    (tmp_path / "train.py").write_text(MANUAL)
    _, report = warm.verify(tmp_path, "train.py")
    assert [(f["code"], f["verdict"]) for f in report["findings"] if f["code"] == "DDP621"] == [("DDP621", "refuted")]


def test_two_nodes_each_tell_of_their_own_ranks(tmp_path: pathlib.Path) -> None:
    (tmp_path / "train.py").write_text(PER_NODE)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        endpoint = f"127.0.0.1:{free.getsockname()[1]}"
    rendezvous = ("--nnodes", "2", "--rdzv-backend", "c10d", "--rdzv-endpoint", endpoint, "--rdzv-id", "two-nodes")
    options = ("train.py", "--nproc", "1", "--timeout", "6", "--select", "DDP101", *rendezvous)
    with concurrent.futures.ThreadPoolExecutor() as pool:
        nodes = list(pool.map(lambda _: verify(tmp_path, *options)[1], range(2)))
    seen = {rank["rank"]: report for report in nodes for rank in report["runs"][0]["ranks"]}
    assert set(seen) == {0, 1}
    verdicts = [seen[rank]["findings"][0]["verdict"] for rank in (0, 1)]
    assert verdicts == ["inconclusive", "not reached"], "no node alone knows that the other one makes no further call"


@pytest.mark.parametrize("value", ["8", "..."])
def test_what_a_written_example_leaves_to_the_user_is_said(
    tmp_path: pathlib.Path, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "model.py"
    path.write_text(CLEAN)
    source = f"def ddp_lint_example():\n    return Net(width={value}), ()\n"
    monkeypatch.setattr("ddp_lint.verify.suggest.example", lambda *_: (path, source))
    done = CliRunner().invoke(main, ["verify", str(path), "--write-example"])
    assert path.read_text().endswith(source) and (done.exit_code, "replace each" in done.stderr) == (0, value == "...")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["nowhere.py"], "nowhere.py"),
        (["model.py", "--wrap", "zero"], "zero"),
        (["model.py:Nte"], "did you mean 'Net'"),
        (["model.py", "--select", "DDP9999"], "DDP9999"),
        ([], "name a file with a model"),
        (["-m", "absent.train"], "no module of that name"),
        (["model.py", "--ranks", "0,1"], "--world-size"),
        (["model.py", "--world-size", "8"], "takes a training script"),
        (["model.py", "--world-size", "8", "--ranks", "8"], "ranks 0 to 7"),
        (["model.py", "--since", "v9"], "--since: git "),
        (["entry.py:Net", "--write-example"], "already has a ddp_lint_example()"),
    ],
)
def test_wrong_usage_is_one_line_and_status_2(
    tmp_path: pathlib.Path, arguments: list[str], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "model.py").write_text(CLEAN)
    (tmp_path / "entry.py").write_text(f"{CLEAN}\ndef ddp_lint_example():\n    return Net(), ()\n")
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(main, ["verify", *arguments])
    assert (done.exit_code, isinstance(done.exception, SystemExit)) == (2, True), done.exception
    assert says in done.stderr
