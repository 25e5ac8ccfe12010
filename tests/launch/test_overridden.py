"""What stands in a method that every used class overrides happens in no run."""

from __future__ import annotations

import pathlib

import pytest

from ddp_lint.config import Settings
from ddp_lint.engine.runner import check_paths
from ddp_lint.findings import Confidence

PROGRAM = """import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


class State:
    def __init__(self, model):
        self.model = model

    def restore(self, path):
        self.model.load_state_dict(torch.load(path))

    def save(self, path):
        torch.save(self.model.state_dict(), path)


class Basic(State):
    def restore(self, path):
        {restore}


class Noisy(Basic):
    pass


{more}


def main(state: State):
    dist.init_process_group("nccl")
    ddp = DistributedDataParallel(torch.nn.Linear(2, 2).cuda())
    {made}.restore("model.pt")
    ddp(torch.ones(2)).sum().backward()


if __name__ == "__main__":
    main(None)
"""


@pytest.mark.parametrize(
    ("restore", "made", "more", "is_met"),
    [
        ("pass", "Noisy(ddp)", "", False),
        ("pass", "Basic(ddp)", "", False),
        ("super().restore(path)", "Noisy(ddp)", "", True),
        ("State.restore(self, path)", "Noisy(ddp)", "", True),
        ("pass", "State(ddp)", "", True),
        ("pass", "(State if ddp else Basic)(ddp)", "", True),
        ("pass", "Other(ddp)", "class Other(State):\n    pass", True),
        ("pass", "make()", "def make():\n    return State(None)", True),
    ],
)
def test_base_methods(tmp_path: pathlib.Path, restore: str, made: str, more: str, is_met: bool) -> None:
    (tmp_path / "train.py").write_text(PROGRAM.format(restore=restore, made=made, more=more))
    report = check_paths([tmp_path / "train.py"], Settings(tmp_path, frozenset({"DDP401"})))
    (found,) = report.findings
    assert (found.confidence is not Confidence.LOW) is is_met
