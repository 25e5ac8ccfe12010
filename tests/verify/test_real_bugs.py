"""What the page of real bugs says of its small programs is what `verify` says of them now."""

from __future__ import annotations

import csv
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[2]
PROGRAMS = sorted(path.stem for path in (ROOT / "docs" / "real-bugs").glob("*.py"))

pytestmark = pytest.mark.launch


def test_every_program_has_a_row() -> None:
    with (ROOT / "docs" / "studies" / "in_small.tsv").open(encoding="utf-8", newline="") as file:
        assert [row["program"] for row in csv.DictReader(file, delimiter="\t")] == PROGRAMS


@pytest.mark.parametrize("program", PROGRAMS)
def test_verify_says_what_the_page_says(program: str) -> None:
    command = [sys.executable, str(ROOT / "benchmarks" / "real_bugs.py"), "--check", program]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
