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
    facts = project.modules.facts("data")
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
        ("restore", "getattr(self.model, path)", "pass", True),  # the name is nowhere in the program
        ("restore", "pass", "getattr(trainer, name)('restore')", False),
        ("load_model", "for n in 'ab': getattr(self, 'load_' + n)(path)", "pass", True),
        ("load_model", "pass", "getattr(trainer, 'load_' + kind)(model)", False),
        ("load_state_dict", "pass", "pass", False),
        ("load_model", "pass", "trainer.load_model(model, 'a.pt')", False),
        ("load_model", "pass", "print(eval('trainer.load_' + kind))", False),
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
    facts = project.modules.facts("trainer")
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
    facts = project.modules.facts("shared")
    assert facts is not None
    assert comes_alone(facts, project, 5) is is_alone


WRAPS = """import torch


class Model:
    def __init__(self, local_rank):
        self.net = torch.nn.Linear(2, 2)
        if local_rank != -1:
            self.net = torch.nn.parallel.DistributedDataParallel(self.net, device_ids=[local_rank])

    def loss_of(self, batch):
        return self.net(batch).sum()

    def infer(self, batch):
        return self.net.scaled(batch)  # here
"""


@pytest.mark.parametrize(
    ("given", "train", "is_alone"),
    [
        ("-1", "loss_of", True),
        ("local_rank=-1", "loss_of", True),
        ("int(os.environ['LOCAL_RANK'])", "loss_of", False),
        ("place", "loss_of", False),
        ("-1", "infer", False),
    ],
)
def test_a_rank_that_a_program_gives_as_a_number(
    tmp_path: pathlib.Path, given: str, train: str, is_alone: bool
) -> None:
    (tmp_path / "wraps.py").write_text(WRAPS)
    (tmp_path / "train.py").write_text(
        "import torch.distributed as dist\nfrom wraps import Model\n\ndist.init_process_group('nccl')\n"
        f"Model(dist.get_rank()).{train}(None).backward()\n"
    )
    (tmp_path / "measure.py").write_text(
        f"import os\nfrom wraps import Model\n\nplace = os.getpid()\nmodel = Model({given})\nprint(model.infer(None))\n"
    )
    project = Project(tmp_path)
    facts = project.modules.facts("wraps")
    assert facts is not None
    line = next(number for number, each in enumerate(WRAPS.splitlines(), 1) if each.endswith("here"))
    assert comes_alone(facts, project, line) is is_alone


def test_a_method_that_programs_have_from_another_class(tmp_path: pathlib.Path) -> None:
    """`measure.py` calls a method by the name, of another class: nothing that imports the file does."""
    for name in ("wraps", "others"):
        (tmp_path / f"{name}.py").write_text(WRAPS)
    (tmp_path / "train.py").write_text(
        "import torch.distributed as dist\nfrom wraps import Model\n\ndist.init_process_group('nccl')\n"
        "Model(dist.get_rank()).loss_of(None).backward()\n"
    )
    (tmp_path / "measure.py").write_text("from others import Model\n\nprint(Model(-1).infer(None))\n")
    project = Project(tmp_path)
    facts = project.modules.facts("wraps")
    assert facts is not None
    lines = [
        number for number, each in enumerate(WRAPS.splitlines(), 1) if each.endswith(("here", "self.net(batch).sum()"))
    ]
    assert [comes_alone(facts, project, line) for line in lines] == [False, True]
