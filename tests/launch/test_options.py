"""What needs an option that is off by itself, and that no command of the project passes."""

from __future__ import annotations

import pathlib

import pytest

from ddp_lint.config import Settings
from ddp_lint.engine.runner import check_paths
from ddp_lint.findings import Confidence

PROGRAM = """import argparse

import torch.multiprocessing as mp


def work(rank):
    print(rank)


def start(args):
    if {test}:
        workers = [mp.Process(target=work, args=(rank,)) for rank in range(2)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--check-data", action="store_true")
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--jobs", "-j", type=int, default=0)
    parser.add_argument("--log_file")
    parser.add_argument("--no-check", action="store_false")
    parser.add_argument("--needed", required=True)
    args = parser.parse_args()
    {set}
    start(args)
"""


def _is_met(tmp_path: pathlib.Path, test: str, given: str = "", run: str = "python train.py --needed 1") -> bool:
    (tmp_path / "train.py").write_text(PROGRAM.format(test=test, set=given))
    (tmp_path / "run.sh").write_text(f"{run}\n")
    report = check_paths([tmp_path / "train.py"], Settings(tmp_path, frozenset({"DDP503"})))
    (found,) = report.findings
    return found.confidence is not Confidence.LOW


@pytest.mark.parametrize(
    "test",
    ["args.check_data", "args.workers > 0", "args.log_file is not None", "args.check_data and work", "args.workers"],
)
def test_what_no_command_turns_on(tmp_path: pathlib.Path, test: str) -> None:
    assert not _is_met(tmp_path, test)


@pytest.mark.parametrize(
    ("test", "given", "run"),
    [
        ("not args.check_data", "", "python train.py"),
        ("args.no_check", "", "python train.py"),
        ("args.needed", "", "python train.py"),
        ("args.jobs", "", "python train.py -j 2"),
        ("args.check_data", "", "python train.py --check"),
        ("args.check_data or args.needed", "", "python train.py"),
        ("args.check_data", "", "python train.py --check-data"),
        ("args.check_data", "", "python train.py $MORE\n# add --check_data to see more"),
        ("args.check_data", "", "python other.py"),
        ("args.check_data", "args.check_data = True", "python train.py"),
        (
            "args.check_data",
            "parser.set_defaults(check_data=args.needed); args = parser.parse_args()",
            "python train.py",
        ),
        ("args.check_data", 'args.__dict__.update({"check" + "_data": 1})', "python train.py"),
        ("args.workers > 0", "", "torchrun train.py --workers=4"),
        ("args.workers > 0", 'print(["train.py", "--workers", "2"])', "python train.py"),
    ],
)
def test_what_may_be_turned_on(tmp_path: pathlib.Path, test: str, given: str, run: str) -> None:
    assert _is_met(tmp_path, test, given, run)


def test_settings_turn_it_on(tmp_path: pathlib.Path) -> None:
    (tmp_path / "settings.yaml").write_text("train:\n  check_data: true\n")
    assert _is_met(tmp_path, "args.check_data")
