"""Arms that no call of the project asks for: a parameter keeps its default."""

from __future__ import annotations

import pathlib

import pytest

from ddp_lint.config import Settings
from ddp_lint.engine.runner import check_paths
from ddp_lint.findings import Confidence

TRAIN = """import torch
import torch.distributed as dist


def main():
    dist.init_process_group("nccl")
    model = torch.nn.Linear(2, 2)

    def save(epoch, is_best=False, path=None):
        if {test}:
            torch.save(model.state_dict(), "best.pt")

    ddp = torch.nn.parallel.DistributedDataParallel(model)
    for epoch in range(3):
        ddp(torch.ones(2)).sum().backward()
        save({given})
    {also}


if __name__ == "__main__":
    main()
"""

TOP = """import torch.multiprocessing as mp


def work(rank):
    print(rank)


def start(count, several=False):
    if several:
        workers = [mp.Process(target=work, args=(rank,)) for rank in range(count)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()


if __name__ == "__main__":
    start({given})
"""


def _confidence(tmp_path: pathlib.Path, text: str) -> list[Confidence]:
    (tmp_path / "train.py").write_text(text)
    report = check_paths([tmp_path / "train.py"], Settings(tmp_path, frozenset({"DDP503", "DDP805"})))
    return [finding.confidence for finding in report.findings]


@pytest.mark.parametrize(
    ("test", "given", "also", "is_met"),
    [
        ("is_best", "epoch", "", False),
        ("epoch and is_best", "epoch", "", False),
        ("path is not None", "epoch", "", False),
        ("not is_best", "epoch", "", True),
        ("path is None", "epoch", "", True),
        ("is_best or epoch", "epoch", "", True),
        ("is_best", "epoch, is_best=True", "", True),
        ("is_best", "epoch, epoch == 2", "", True),
        ("is_best", "epoch, **{}", "", True),
        ("is_best", "epoch", "model.save = save", True),
    ],
)
def test_what_no_call_asks_for(tmp_path: pathlib.Path, test: str, given: str, also: str, is_met: bool) -> None:
    (found,) = _confidence(tmp_path, TRAIN.format(test=test, given=given, also=also))
    assert (found is not Confidence.LOW) is is_met


@pytest.mark.parametrize(("given", "is_met"), [("2", False), ("2, True", True), ("*[2]", True)])
def test_functions_at_the_top(tmp_path: pathlib.Path, given: str, is_met: bool) -> None:
    (found,) = _confidence(tmp_path, TOP.format(given=given))
    assert (found is not Confidence.LOW) is is_met


def test_others_may_call_what_is_installed(tmp_path: pathlib.Path) -> None:
    (tmp_path / "setup.py").write_text("from setuptools import setup\n\nsetup(name='train', py_modules=['train'])\n")
    (found,) = _confidence(tmp_path, TOP.format(given="2"))
    assert found is not Confidence.LOW
