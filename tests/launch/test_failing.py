"""What a program comes to only after it has failed is of low confidence."""

from __future__ import annotations

import pathlib

import pytest

from ddp_lint.config import Settings
from ddp_lint.engine.runner import check_paths
from ddp_lint.findings import Confidence

PROGRAM = """import argparse
import os

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from common import build


def options():
    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", type=float, default=0.1)
    group = parser.add_argument_group("data")
    group.add_argument("--data-dir", "-d", default=".")
    parser.add_argument("-n", "--epochs", dest="rounds", type=int)
    {more}
    args = parser.parse_args()
    {set}
    return args


def work(rank, args):
    dist.init_process_group("nccl", rank=rank, world_size=2)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
    {before}
    for _ in range(args.rounds):
        model(torch.ones(2)).sum().backward()
    if rank == 0:
        dist.barrier()
    {after}


def main():
    args = options()
    {main}
    mp.spawn(work, args=(args,), nprocs=2)


if __name__ == "__main__":
    main()
"""

COMMON = """import torch


def build(width, depth=1, *, bias):
    return torch.nn.Linear(width, depth, bias=bias)


def add_options(parser):
    parser.add_argument("--learning-rate")


def fail(args, when):
    if when:
        return None
    return undefined_name


def pair(width):
    if width:
        return width, build
    return build, width


def one_of(width):
    if width:
        return build(width, bias=True)
    return width, build


def report(args):
    args.shown = True


def prepare(args):
    print(args)
    missing_table.load()
    return args
"""


def _is_met(tmp_path: pathlib.Path, **parts: str) -> bool:
    given = dict.fromkeys(("more", "set", "before", "after", "main"), "pass") | parts
    text = PROGRAM.format(**given).replace("\n    pass\n", "\n")
    (tmp_path / "train.py").write_text(text)
    (tmp_path / "common.py").write_text(COMMON)
    report = check_paths([tmp_path / "train.py"], Settings(tmp_path, frozenset({"DDP101"})))
    (found,) = report.findings
    return found.confidence is not Confidence.LOW


@pytest.mark.parametrize(
    "parts",
    [
        {"before": "rate = args.learning_rate"},
        {"before": "rate = args.d if args.missing else 0"},
        {"before": "with torch.no_grad():\n        print(args.learning_rate)"},
        {"before": "if args.lr:\n        print(args.missing)\n    else:\n        print(missing)"},
        {"main": "print(args.learning_rate)"},
        {"main": "args.lr = undefined_scale * 2"},
        {"main": "build(2)"},
        {"main": "build(2, bias=True, width=3, device=0)"},
        {"main": "build(2, 3, True)"},
        {"main": "from common import prepare\n    prepare(args)"},
        {"before": "build(width=args.lr)"},
        {"before": "log.info(args)\n    log = open(args.data_dir)"},
        {"before": "count += 1"},
        {"before": "print(vars(args))\n    rate = undefined_rate"},
        {"before": "import builtins\n    builtins.print = build\n    rate = undefined_rate"},
        {"before": "from common import pair\n    a, b, c = pair(2)"},
        {"before": "from common import report\n    a, b = report(args)"},
        {"main": "from common import pair\n    loss = pair(2)\n    loss.backward()"},
    ],
)
def test_what_fails_before(tmp_path: pathlib.Path, parts: dict[str, str]) -> None:
    assert not _is_met(tmp_path, **parts)


@pytest.mark.parametrize(
    "parts",
    [
        {},
        {"before": "rate = args.lr, args.data_dir, args.rounds"},
        {"after": "print(args.learning_rate)"},
        {"before": "rate = args.learning_rate", "more": 'parser.add_argument("--learning_rate")'},
        {"before": "rate = args.learning_rate", "more": "parser.set_defaults(learning_rate=1)"},
        {"before": "rate = args.learning_rate", "more": "from common import add_options\n    add_options(parser)"},
        {"before": "rate = args.learning_rate", "more": 'for name in "ab":\n        parser.add_argument(f"--{name}")'},
        {"before": "rate = args.learning_rate", "set": "args.learning_rate = args.lr"},
        {"before": "rate = args.learning_rate", "set": 'vars(args).update({"x": 1})'},
        {"before": "rate = args.learning_rate", "set": 'setattr(args, "learning_" + "rate", 1)'},
        {"before": "rate = args.learning_rate", "set": "args = argparse.Namespace(**vars(args))"},
        {"before": "rate = args.learning_rate if args.lr else 0"},
        {"before": "if args.lr > 1:\n        print(args.learning_rate)"},
        {"before": "try:\n        print(args.learning_rate)\n    except AttributeError:\n        pass"},
        {"before": "scale = lambda: args.learning_rate"},
        {"before": 'rate = hasattr(args, "learning_rate") and args.learning_rate'},
        {"before": "for rate in range(args.rounds):\n        print(args.learning_rate)"},
        {"before": "print([undefined_scale for _ in range(args.rounds)])"},
        {"main": "build(2, bias=True)"},
        {"main": "build(*[2], bias=True)"},
        {"main": "build = len\n    build([2])"},
        {"main": "(lambda build: build(2))(len)"},
        {"main": 'build(2, **{"bias": True})'},
        {"main": "from common import fail\n    fail(args, True)"},
        {"main": "if args.lr == 2:\n        return print(undefined_name)"},
        {"before": "for n in range(2):\n        if n:\n            log.info(args)\n        log = open(args.data_dir)"},
        {"before": "def start():\n        nonlocal log\n        log = 1\n    start()\n    print(log)\n    log = 2"},
        {"before": "print([log for log in args.data_dir])\n    log = 2"},
        {"before": "with open(args.data_dir) as log, log:\n        pass"},
        {"before": "from common import pair\n    a, b = pair(2)"},
        {"before": "rate = some_rate", "main": "import builtins\n    builtins.some_rate = 1"},
        {"before": "rate = some_rate", "main": "import builtins\n    setattr(builtins, 'some' + '_rate', 1)"},
        {"before": "rate = some_rate", "main": "vars()['some_rate'] = 1"},
        {"before": "from common import pair\n    a, *b = pair(2)"},
        {"before": "from common import one_of\n    a, b, c = one_of(2)"},
        {"before": "from common import report\n    a = report(args)"},
        {"main": "from common import pair\n    loss = pair(2)\n    loss.index(2)"},
        {"main": "from common import pair\n    loss = pair(2)\n    loss, _ = loss\n    loss.backward()"},
    ],
)
def test_what_need_not_fail(tmp_path: pathlib.Path, parts: dict[str, str]) -> None:
    assert _is_met(tmp_path, **parts)


def test_names_of_a_star(tmp_path: pathlib.Path) -> None:
    assert not _is_met(tmp_path, main="from common import *\n    args.lr = undefined_scale")
    assert _is_met(tmp_path, main="from numpy import *\n    args.lr = undefined_scale")


def test_another_way_to_a_function(tmp_path: pathlib.Path) -> None:
    """What main fails at is no matter to a program that calls the function itself."""
    (tmp_path / "other.py").write_text("from train import options, work\n\nwork(0, options())\n")
    assert _is_met(tmp_path, main="print(args.learning_rate)")


def _whole(names: int, missing: str) -> str:
    """A program of many names that stands alone."""
    lines = "\n".join(f"    value_{n} = {n}\n    print(value_{n})" for n in range(names))
    program = PROGRAM.replace("from common import build\n", "")
    return program.format(more="pass", set="pass", before=missing, after=lines.strip(), main="pass")


@pytest.mark.parametrize(
    ("names", "missing", "met"),
    [
        (100, "cache = MISSING_FOLDER", False),
        (100, "cache = MISSING_FOLDER, other_name", True),
        (10, "cache = MISSING_FOLDER", True),
        (100, "cache = 1", True),
    ],
)
def test_programs_that_stand_alone(tmp_path: pathlib.Path, names: int, missing: str, met: bool) -> None:
    """Of a whole program what it misses is missing; an excerpt leaves out more."""
    (tmp_path / "train.py").write_text(_whole(names, missing))
    (found,) = check_paths([tmp_path / "train.py"], Settings(tmp_path, frozenset({"DDP101"}))).findings
    assert (found.confidence is not Confidence.LOW) is met


HOLDER = """import torch
from torch import nn


class Net(nn.Module):
    {also}

    def __init__(self):
        super().__init__()
        self.width = 2


class Trainer:
    def __init__(self, net: {kind}, rank=0):
        self.net = torch.nn.parallel.DistributedDataParallel(net)
        {reads}

    def step(self):
        if torch.distributed.get_rank() == 0:
            torch.distributed.barrier()


{below}


if __name__ == "__main__":
    torch.distributed.init_process_group("nccl")
    trainer = Trainer(Net())
    {after}
    trainer.step()
"""


@pytest.mark.parametrize(
    ("reads", "also", "kind", "below", "after", "is_met"),
    [
        ("print(net.height)", "", "Net", "", "", False),
        ("print(net.height)", "", '"Net"', "", "", False),
        ("print(self, [net.height])", "", "Net", "", "", False),
        ("print(net.width)", "", "Net", "", "", True),
        ("print(net.training, net.parameters())", "", "Net", "", "", True),
        ("print(net.height)", "height = 1", "Net", "", "", True),
        ("print(net.height)", "height: int", "Net", "", "", True),
        ("print(net.height)", "def height(self): ...", "Net", "", "", True),
        ("print(net.height)", "def __getattr__(self, name): return name", "Net", "", "", True),
        ("print(net.height)", "", "Net", "", "trainer.net.height = 2", True),
        ("print(net.height)", "", "nn.Module", "", "", True),
        ("print(net.height)", "", "Net | None", "", "", True),
        ("print(rank and net.height)", "", "Net", "", "", True),
        ("if rank: print(net.height)", "", "Net", "", "", True),
        ("print(getattr(net, 'height', 0))\n        print(net.height)", "", "Net", "", "", True),
        ("net = other(net)\n        print(net.height)", "", "Net", "", "", True),
        ("if rank == 1: return\n        print(net.height)", "", "Net", "", "", True),
        ("print(net.height)", "", "Net", "class Own(Trainer):\n    def __init__(self): ...", "", True),
        ("print(net.height)", "", "Base", "class Base(nn.Module): ...", "", True),
    ],
)
def test_objects_lack_what_nothing_sets(
    tmp_path: pathlib.Path, reads: str, also: str, kind: str, below: str, after: str, is_met: bool
) -> None:
    """Nothing makes a `Base`: it may be there for others to inherit from."""
    text = HOLDER.format(reads=reads, also=also, kind=kind, below=below, after=after)
    (tmp_path / "train.py").write_text(text)
    report = check_paths([tmp_path / "train.py"], Settings(tmp_path, frozenset({"DDP101"})))
    (found,) = (
        f
        for f in report.findings
        if f.span.line == text.split("\n").index("            torch.distributed.barrier()") + 1
    )
    assert (found.confidence is not Confidence.LOW) is is_met
