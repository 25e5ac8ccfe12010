"""Definitions that nothing uses, in projects where many files hold their name as a word."""

from __future__ import annotations

import pathlib
import shutil

import pytest

from ddp_lint.config import Settings
from ddp_lint.engine.runner import check_paths
from ddp_lint.findings import Confidence

LEFT = pathlib.Path(__file__).parents[1] / "fixtures" / "failures" / "DDP503_left" / "left.py"


@pytest.mark.parametrize(
    ("other", "confidence"),
    [
        ("print('training')", Confidence.MEDIUM),
        ("import left\nleft.training()", Confidence.MEDIUM),
        ("# training of the other model\ndone = 1", Confidence.LOW),
    ],
)
def test_a_word_that_many_files_hold(tmp_path: pathlib.Path, other: str, confidence: Confidence) -> None:
    for number in range(30):
        (tmp_path / f"file{number}.py").write_text("# for training\n")
    (tmp_path / "other.py").write_text(f"{other}\n")
    shutil.copy(LEFT, tmp_path)
    (finding,) = check_paths([tmp_path / "left.py"], Settings(tmp_path, frozenset({"DDP503"}))).findings
    assert finding.confidence is confidence
