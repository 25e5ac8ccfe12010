"""The join with `check`: the branch at which the ranks diverge, in a working tree with other paths than the job's."""

import json

import pytest
from click.testing import CliRunner

from ddp_lint.cli import main

VAL = """\
import torch
import torch.distributed as dist


def validate(model, batch):
    rank = dist.get_rank()
    loss = model(batch)
    if rank == 0:
        dist.all_reduce(loss)
    dist.barrier()
    return loss


def plain(model, batch):
    loss = model(batch)
    dist.all_reduce(loss)
    return loss
"""
HANG = """\
[rank0]: Traceback (most recent call last):
[rank0]:   File "/mnt/job/src/pkg/val.py", line {first}, in validate
[rank0]:     dist.all_reduce(loss)
[rank0]:   File "/opt/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", line 3252, in all_reduce
[rank0]: RuntimeError: [unbound_buffer.cc:78] Timed out waiting 6000ms for recv operation to complete
[rank1]: Traceback (most recent call last):
[rank1]:   File "/mnt/job/src/pkg/val.py", line {second}, in validate
[rank1]:     dist.barrier()
[rank1]: RuntimeError: [pair.cc:553] Connection closed by peer [127.0.0.1]:1
"""


@pytest.fixture
def tree(tmp_path):
    package = tmp_path / "work" / "src" / "pkg"
    package.mkdir(parents=True)
    (package / "val.py").write_text(VAL)
    other = tmp_path / "work" / "old" / "other"
    other.mkdir(parents=True)
    (other / "val.py").write_text("x = 1\n")
    return tmp_path / "work"


def check_of(tree, log):
    (tree / "job.log").write_text(log)
    result = CliRunner().invoke(
        main, ["diagnose", str(tree / "job.log"), "--source", str(tree), "--output-format", "json"]
    )
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)["check"]


def test_the_branch_is_told(tree):
    check = check_of(tree, HANG.format(first=9, second=10))
    assert check["code"] == "DDP101"
    assert check["path"].endswith("src/pkg/val.py")
    assert any(label["at"].endswith("val.py:8") for label in check["labels"])
    text = CliRunner().invoke(main, ["diagnose", str(tree / "job.log"), "--source", str(tree)]).output
    assert "the ranks diverge here" in text
    assert "val.py:8" in text


def test_no_rule_fires_is_told(tree):
    check = check_of(tree, HANG.format(first=16, second=16))
    assert check["code"] is None
    text = CliRunner().invoke(main, ["diagnose", str(tree / "job.log"), "--source", str(tree)]).output
    assert "no rule of check fires" in text


def test_a_line_that_the_file_does_not_have_is_not_joined(tree):
    assert check_of(tree, HANG.format(first=900, second=901)) is None


def test_a_name_that_fits_two_files_is_not_guessed(tree):
    log = HANG.format(first=9, second=10).replace("/mnt/job/src/pkg/val.py", "val.py")
    assert check_of(tree, log) is None
