"""Places that programs of one process alone come to."""

from __future__ import annotations

import pathlib

import pytest

from ddp_lint.launch.ranks import comes_alone
from ddp_lint.project import Project

TRAIN = """import torch
import torch.distributed as dist
from data import Features


def main():
    dist.init_process_group("nccl")
    model = torch.nn.parallel.DistributedDataParallel(Features("all.pt"))


if __name__ == "__main__":
    main()
"""
DATA = """import torch


class Features(torch.nn.Module):
    def __init__(self, path):
        super().__init__()
        self.features = torch.load(path)  # by train.py, too


if __name__ == "__main__":
    {before}
    print(Features("all.pt"), torch.load("centres.pt"))  # by this program alone
"""


@pytest.mark.parametrize(
    ("before", "word", "is_alone"),
    [
        ("print('look')", "alone", True),
        ("print('look')", "too", False),
        ("torch.distributed.init_process_group('nccl')", "alone", False),
    ],
)
def test_below_the_test_for_the_program(tmp_path: pathlib.Path, before: str, word: str, is_alone: bool) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    text = DATA.format(before=before)
    (tmp_path / "data.py").write_text(text)
    project = Project(tmp_path)
    facts = project.facts("data")
    assert facts is not None
    line = next(number for number, each in enumerate(text.splitlines(), 1) if each.endswith(word))
    assert comes_alone(facts, project, line) is is_alone
