"""The plugin under the real flake8: the findings of `check`, at the same places."""

from __future__ import annotations

import json
import pathlib
import re
import subprocess
import sys

import pytest

from .conftest import Check
from .samples import HAZARD, UNUSED

pytestmark = pytest.mark.slow

pytest.importorskip("flake8")
_ROW = re.compile(r"(?P<path>[^:]+):(?P<line>\d+):(?P<column>\d+): (?P<code>DDP\d{3}) (?P<message>.+)")


def flake8(*args: str, input: str | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "flake8", "--select", "DDP", "--jobs", "1", *args]
    return subprocess.run(command, capture_output=True, text=True, input=input, check=False)


def rows(result: subprocess.CompletedProcess[str]) -> list[tuple[str, int, int, str, str]]:
    assert not result.stderr, result.stderr
    matches = [_ROW.fullmatch(line) for line in result.stdout.splitlines()]
    assert all(matches), result.stdout
    return [(m["path"], int(m["line"]), int(m["column"]), m["code"], m["message"]) for m in matches if m]


def of_check(check: Check, *args: str) -> list[tuple[str, int, int, str, str]]:
    found = json.loads(check("--output-format", "json", *args).stdout)["findings"]
    return [(f["path"], f["line"], f["column"], f["code"], f["message"]) for f in found]


def test_the_same_findings_as_check(check: Check, project: pathlib.Path) -> None:
    silenced = HAZARD.replace(
        "model.module(x).square().mean()", "(\n model.module(\n x)  # noqa: DDP601\n ).square().mean()"
    )
    assert silenced != HAZARD
    (project / "a.py").write_text(HAZARD + UNUSED)
    (project / "b.py").write_text("# -*- coding: utf-8 -*-\n\f\n" + silenced)
    (project / "c.py").write_text(HAZARD.replace("mean()", "mean()  # ddp-lint: ignore[DDP601]"))
    expected = of_check(check)
    assert [(path, code) for path, _, _, code, _ in expected] == [("a.py", "DDP601"), ("a.py", "DDP002")]
    assert rows(flake8("a.py", "b.py", "c.py")) == expected
    assert len(rows(flake8("a.py", "b.py", "--disable-noqa"))) > len(expected)


def test_stdin(check: Check, project: pathlib.Path) -> None:
    (project / "a.py").write_text(HAZARD)
    expected = [row[1:] for row in of_check(check)]
    assert [row[1:] for row in rows(flake8("-", input=HAZARD))] == expected
    shown = rows(flake8("--stdin-display-name", "pkg/a.py", "-", input=HAZARD))
    assert [row[0] for row in shown] == ["pkg/a.py"]


def test_the_projects_configuration_is_read(check: Check, project: pathlib.Path) -> None:
    (project / "a.py").write_text(HAZARD + UNUSED)
    (project / "vendor.py").write_text(HAZARD)
    (project / "pyproject.toml").write_text('[tool.ddp-lint]\nignore = ["DDP601"]\nextend-exclude = ["vendor.py"]\n')
    assert [row[3] for row in rows(flake8())] == ["DDP002"]
    assert rows(flake8("--extend-ignore", "DDP0")) == []


def test_results_are_kept_and_one_cause_is_told_once(check: Check, project: pathlib.Path) -> None:
    body = "def f(x, optimizer):\n    if dist.get_rank() == 0:\n        optimizer.step()\n        dist.all_reduce(x)\n"
    text = f"import torch.distributed as dist\nfrom torch.nn.parallel import DistributedDataParallel\n\n\n{body}"
    (project / "a.py").write_text(text)
    (project / "b.py").write_text(HAZARD)
    first = rows(flake8("--jobs", "2"))
    assert [row[3] for row in first] == ["DDP101", "DDP601"]
    verbose = check("-v")  # finds what flake8 has kept
    assert "2 cached" in verbose.stderr
    assert rows(flake8()) == first
    (project / "a.py").write_text("x = 1\n")
    assert [row[3] for row in rows(flake8())] == ["DDP601"]


def test_a_broken_configuration_is_told_once(project: pathlib.Path) -> None:
    (project / "pyproject.toml").write_text("[tool.ddp-lint]\nselct = []\n")
    for name in ("a.py", "b.py"):
        (project / name).write_text(UNUSED)
    result = flake8()
    assert result.returncode == 1
    assert (result.stdout + result.stderr).count("unknown key 'selct'") == 1


def test_trouble_never_ends_the_run(project: pathlib.Path) -> None:
    (project / "bad").mkdir()
    (project / "bad" / "ddp-lint.toml").write_text("selct = []\n")
    (project / "bad" / "m.py").write_text(HAZARD)
    (project / "a.py").write_text(UNUSED)
    (project / "empty.py").write_text("")
    (project / "syntax.py").write_text("def f(:\n")
    found = rows(flake8("a.py", "bad/m.py", "empty.py", "syntax.py"))
    assert [(path, code) for path, _, _, code, _ in found] == [("a.py", "DDP002"), ("bad/m.py", "DDP001")]
    assert "bad/ddp-lint.toml:1: unknown key 'selct'; did you mean 'select'?" in found[1][4]
