"""What the page of real bugs says of its small programs is what `verify` says of them now."""

from __future__ import annotations

import importlib.util
import pathlib
from typing import Any

import pytest

from .warm import verify


def _benchmark(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, pathlib.Path(__file__).parents[2] / "benchmarks" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


real_bugs = _benchmark("real_bugs")
PROGRAMS = sorted(path.stem for path in real_bugs.PROGRAMS.glob("*.py"))

pytestmark = pytest.mark.launch


def test_every_program_has_a_row() -> None:
    assert [row["program"] for row in real_bugs.known()] == PROGRAMS


@pytest.mark.parametrize("program", PROGRAMS)
def test_verify_says_what_the_page_says(program: str) -> None:
    known = {row["program"]: row["verdict"] for row in real_bugs.known()}
    _, report = verify(real_bugs.PROGRAMS, *real_bugs.arguments(program))
    assert [finding["verdict"] for finding in report["findings"]] == [known[program]]
