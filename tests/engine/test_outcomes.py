"""What is kept of the functions of a file: after an edit, only those that it concerns are analysed again."""

from __future__ import annotations

import pathlib
import random
import shutil
import sys

import pytest

import ddp_lint.divergence.analyse  # noqa: F401
from ddp_lint.config import Settings
from ddp_lint.divergence.summaries import Summaries
from ddp_lint.engine.runner import check_text

from . import random_edits
from .samples import check, codes, write

FIXTURES = pathlib.Path(__file__).parents[1] / "fixtures"
ONLY = frozenset({"DDP101", "DDP102"})
TRAIN = """\
import torch.distributed as dist
from helping import finish


class Trainer:
    def __init__(self, steps):
        self.steps = steps

    def step(self, loss):
        dist.all_reduce(loss)

    def train(self, losses):
        for loss in losses:
            self.step(loss)

    def close(self):
        if dist.get_rank() == 0:
            finish()


def report(loss):
    dist.all_reduce(loss)
    return loss
"""
HELPING = "import torch.distributed as dist\n\n\ndef finish():\n    print()\n"


@pytest.fixture
def root(tmp_path: pathlib.Path) -> pathlib.Path:
    root = tmp_path / "project"
    write(root, {"train.py": TRAIN, "helping.py": HELPING, "pyproject.toml": ""})
    check(root, cache=root / ".ddp_lint_cache", codes=ONLY)
    return root


@pytest.fixture
def analysed(root: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the functions that are analysed from now on."""
    module, names = sys.modules["ddp_lint.divergence.analyse"], list[str]()
    original = module._read_once  # type: ignore[attr-defined]

    def read_once(root: object, *others: object) -> object:
        names.append(root.name)  # type: ignore[attr-defined]
        return original(root, *others)

    monkeypatch.setattr(module, "_read_once", read_once)
    return names


def _of_text(root: pathlib.Path, text: str) -> list[str]:
    """The codes for an unsaved text of the trainer."""
    return codes(check_text(text, root / "train.py", Settings(root, ONLY), cache_dir=root / ".ddp_lint_cache"))


def test_an_edit_of_one_function_leaves_the_others(root: pathlib.Path, analysed: list[str]) -> None:
    text = TRAIN.replace("    return loss", "    total = loss\n    return total")
    assert _of_text(root, text) == []
    assert analysed == ["report"]
    write(root, {"train.py": text})
    assert codes(check(root, "train.py", cache=root / ".ddp_lint_cache", codes=ONLY)) == []
    assert analysed == ["report"] * 2


def test_what_was_kept_over_an_edit_is_kept_over_the_next(root: pathlib.Path, analysed: list[str]) -> None:
    for number in range(3):
        write(root, {"train.py": TRAIN.replace("    return loss", f"    print({number})\n    return loss")})
        check(root, "train.py", cache=root / ".ddp_lint_cache", codes=ONLY)
    assert analysed == ["report"] * 3


def test_a_file_that_may_be_too_large_as_a_whole_is_analysed_as_a_whole(
    root: pathlib.Path, analysed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else its last functions would be left out or not, depending on what an earlier run kept."""
    monkeypatch.setattr(Summaries, "BOUND_OF_FILE", 60)
    monkeypatch.setattr(Summaries, "BOUND_OF_LINE", 0)
    assert _of_text(root, TRAIN.replace("    return loss", "    loss = loss + 1\n    return loss")) == []
    assert analysed == ["report"]
    assert _of_text(root, TRAIN.replace("    return loss", "    loss = loss + 1\n" * 40 + "    return loss")) == []
    assert "Trainer.step" in analysed


def test_lines_that_move_change_nothing(root: pathlib.Path, analysed: list[str]) -> None:
    assert _of_text(root, TRAIN.replace("class Trainer", "# a comment\n\nclass Trainer")) == []
    assert analysed == []


def test_callers_of_an_edited_function_are_analysed_again(root: pathlib.Path, analysed: list[str]) -> None:
    text = TRAIN.replace(
        "        dist.all_reduce(loss)\n\n", "        if dist.get_rank() == 0:\n            dist.barrier()\n\n"
    )
    assert _of_text(root, text) == ["DDP101"]
    assert sorted(analysed) == ["Trainer.step", "Trainer.train"]


def test_what_is_found_is_found_again(root: pathlib.Path, analysed: list[str]) -> None:
    """A finding is no outcome: its lines may have moved."""
    bad = TRAIN.replace(
        "    dist.all_reduce(loss)\n    return", "    if dist.get_rank() == 0:\n        dist.barrier()\n    return"
    )
    write(root, {"train.py": bad})
    assert codes(check(root, "train.py", cache=root / ".ddp_lint_cache", codes=ONLY)) == ["DDP101"]
    analysed.clear()
    assert _of_text(root, bad.replace("            finish()", "            finish()\n            print()")) == [
        "DDP101"
    ]
    assert "report" in analysed
    assert "Trainer.step" not in analysed


def test_a_change_of_another_file_counts(root: pathlib.Path, analysed: list[str]) -> None:
    write(root, {"helping.py": HELPING.replace("print", "dist.barrier")})
    assert _of_text(root, TRAIN + "\n\nprint()\n") == ["DDP101"]
    assert "Trainer.close" in analysed


def test_a_call_that_only_the_unsaved_text_has_counts(root: pathlib.Path, analysed: list[str]) -> None:
    """Who calls a function is searched for in the text at hand."""
    bad = TRAIN.replace("def report(loss):\n", "def report(loss, rank):\n    if rank == 0:\n        dist.barrier()\n")
    write(root, {"train.py": bad})
    alone = _of_text(root, bad + "\n")
    called = _of_text(root, bad + "\n\ndef all_ranks(loss):\n    report(loss, 1)\n")
    fresh = check_text(bad + "\n\ndef all_ranks(loss):\n    report(loss, 1)\n", root / "train.py", Settings(root, ONLY))
    assert alone == ["DDP101"]
    assert called == codes(fresh)


def test_after_random_edits_an_unsaved_text_has_what_a_new_run_finds(tmp_path: pathlib.Path) -> None:
    chance, root = random.Random("unsaved"), tmp_path / "project"
    shutil.copytree(FIXTURES / "collectives/DDP101_project", root)
    (root / "pyproject.toml").touch()
    check(root, cache=root / ".ddp_lint_cache", codes=ONLY)
    for _ in range(12):
        path = chance.choice(sorted(root.rglob("*.py")))
        text = random_edits.edited(path.read_text(), chance)
        settings = Settings(root, ONLY)
        kept = check_text(text, path, settings, cache_dir=root / ".ddp_lint_cache")
        assert kept.findings == check_text(text, path, settings).findings
