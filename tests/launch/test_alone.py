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


TRAINER = """import torch


class Trainer:
    def train(self, model):
        model(torch.ones(2)).sum().backward()

    def {name}(self, model, path):
        model.load_state_dict(torch.load(path))
        {more}
"""


@pytest.mark.parametrize(
    ("name", "more", "program", "is_alone"),
    [
        ("load_model", "pass", "pass", True),
        ("restore", "pass", "pass", True),
        ("restore", "getattr(self.model, path)", "pass", False),
        ("load_model", "for n in 'ab': getattr(self, 'load_' + n)(path)", "pass", False),
        ("load_state_dict", "pass", "pass", False),
        ("load_model", "pass", "trainer.load_model(model, 'a.pt')", False),
        ("load_model", "pass", "eval('trainer.load_' + kind)", False),
        ("load_model", "pass", "getattr(trainer, 'train')(model)", True),
    ],
)
def test_a_method_that_the_program_of_ranks_does_not_mention(
    tmp_path: pathlib.Path, name: str, more: str, program: str, is_alone: bool
) -> None:
    text = TRAINER.format(name=name, more=more)
    (tmp_path / "trainer.py").write_text(text)
    body = "def main(trainer=Trainer(), model=None):\n    {}\n    trainer.train(model)\n    {}\n\n\n{}"
    for path, first, last in (
        ("train_ddp.py", "dist.init_process_group('nccl')", program),
        ("train.py", "print('one')", f"trainer.{name}(model, 'a.pt')"),
    ):
        started = "if __name__ == '__main__':\n    main()\n"
        imports = "import torch.distributed as dist\n" if "ddp" in path else ""
        (tmp_path / path).write_text(f"{imports}from trainer import Trainer\n\n\n{body.format(first, last, started)}")
    project = Project(tmp_path)
    facts = project.facts("trainer")
    assert facts is not None
    line = next(number for number, each in enumerate(text.splitlines(), 1) if "torch.load(" in each)
    assert comes_alone(facts, project, line) is is_alone


@pytest.mark.parametrize(
    ("program", "is_alone"),
    [
        ("def main():\n    dist.init_process_group('nccl')", True),  # torch's by its usual name, without the import
        ("import torch.distributed as dist\n\n\ndef main():\n    dist.init_process_group('nccl')", True),
        ("import other as dist\n\n\ndef main():\n    dist.init_process_group('nccl')", False),
    ],
)
def test_a_program_beside_one_that_makes_the_group(tmp_path: pathlib.Path, program: str, is_alone: bool) -> None:
    (tmp_path / "train_ddp.py").write_text(f"{program}\n\n\nmain()\n")
    (tmp_path / "train.py").write_text("from shared import train\n\ntrain()\n")
    (tmp_path / "shared.py").write_text("import torch\n\n\ndef train():\n    torch.save({}, 'a.pt')\n")
    project = Project(tmp_path)
    facts = project.facts("shared")
    assert facts is not None
    assert comes_alone(facts, project, 5) is is_alone
