"""Programs that start one process themselves, by what their settings are set to."""

from __future__ import annotations

import pathlib

import pytest

from ddp_lint.launch.sizes import spawns_one
from ddp_lint.project import Project

SETTINGS = """def get(path, mode="train", *, size=4):
    with open(path) as stream:
        cfg = load(stream)
        cfg["name"] = mode
        if mode == "train":
            cfg["shuffle"] = True
        elif mode == "rate":
            cfg["ddp"]["size"] = 1
        {also}
    return cfg
"""
PROGRAM = """import torch.multiprocessing as mp
from settings import get


def run(rank, cfg):
    print(rank)


if __name__ == "__main__":
    cfg = get({given})
    {changed}
    mp.spawn(run, {size})
"""
ENTRY = "nprocs=cfg['ddp']['size']"


@pytest.mark.parametrize(
    ("size", "given", "changed", "also", "is_one"),
    [
        ("args=(1,)", "1", "", "", True),
        ("nprocs=1", "1", "", "", True),
        ("nprocs=2", "1", "", "", False),
        ("**how", "1", "", "", False),
        (ENTRY, "1, mode='rate'", "", "", True),
        (ENTRY, "1, 'rate'", "", "", True),
        (ENTRY, "1", "", "", False),
        (ENTRY, "1, mode=args.mode", "", "", False),
        (ENTRY, "1, mode='rate'", "cfg['ddp']['size'] = 2", "", False),
        (ENTRY, "1, mode='rate'", "cfg['ddp'] = {}", "", False),
        (ENTRY, "1, mode='rate'", "os.environ['RANK']", "", False),
        (ENTRY, "1, mode='rate'", "", "cfg['ddp']['size'] = size", False),
        (ENTRY, "1, mode='rate'", "", "cfg['ddp'] = other", False),
        (ENTRY, "1, mode='rate'", "", "cfg = other", False),
        (ENTRY, "1, mode='rate'", "", "cfg.update(other)", False),
        (ENTRY, "1, mode='rate'", "", "while more(): cfg['ddp']['size'] = 1", False),
    ],
)
def test_size_of_a_spawn(tmp_path: pathlib.Path, size: str, given: str, changed: str, also: str, is_one: bool) -> None:
    (tmp_path / "settings.py").write_text(SETTINGS.format(also=also))
    (tmp_path / "rate.py").write_text(PROGRAM.format(given=given, changed=changed, size=size))
    project = Project(tmp_path)
    facts = project.modules.facts_of(tmp_path / "rate.py")
    assert facts is not None
    assert spawns_one(facts, project) is is_one
