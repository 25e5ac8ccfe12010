"""A framework is one file: what it says is checked, and holds for every analysis."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
import textwrap
from typing import Any

import pytest

import ddp_lint
from ddp_lint.knowledge.frameworks import frameworks, packages, read
from ddp_lint.knowledge.schema import KnowledgeError

#: A framework that nobody has: its barrier, its rank and its wrapper.
LOOMWORK = """
packages = ["loomwork"]

[launch]
modules = ["loomwork"]

[shows]
wraps = ['loomwork\\.Fleet']

[[collective]]
names = ["loomwork.dist.gather_all"]
takes = ["tensor"]
evidence = "loomwork/dist.py"

[[rank]]
names = ["loomwork.dist.my_number"]
what = "call"
value = "rank"

[[wrapper]]
names = ["loomwork.Fleet"]
kind = "ddp"
module = "net"
"""
USER = """
import loomwork
import torch
from loomwork import dist


def report(value):
    if dist.my_number() == 0:
        dist.gather_all(value)  # DDP101


def build(model):
    model = loomwork.Fleet(net=model)
    model.module.head.requires_grad_(False)  # DDP603
    return model
"""


def test_a_made_up_framework_is_one_file(tmp_path: pathlib.Path) -> None:
    found = _check(_with_framework(tmp_path / "with", LOOMWORK), tmp_path)
    lines = USER.splitlines()
    assert {(code, lines[line - 1].partition("# ")[2]) for code, line in found} == {
        ("DDP101", "DDP101"),
        ("DDP603", "DDP603"),
    }
    assert _check(pathlib.Path(ddp_lint.__file__).parents[1], tmp_path) == []


def _with_framework(root: pathlib.Path, content: str) -> pathlib.Path:
    """A folder to import the tool from that has one more framework; all other files are those of the tool."""
    installed = pathlib.Path(ddp_lint.__file__).parent
    frameworks_folder = root / "ddp_lint" / "knowledge" / "frameworks"
    frameworks_folder.mkdir(parents=True)
    for folder in ("", "knowledge", "knowledge/frameworks"):
        for entry in (installed / folder).iterdir():
            place = root / "ddp_lint" / folder / entry.name
            if entry.name != "__pycache__" and not place.exists():
                place.symlink_to(entry)
    (frameworks_folder / "loomwork.toml").write_text(content)
    return root


def _check(source: pathlib.Path, folder: pathlib.Path) -> list[tuple[str, int]]:
    """Code and line of what the tool below `source` finds in a program that uses the framework."""
    work = folder / "work"
    work.mkdir(exist_ok=True)
    (work / "pyproject.toml").touch()
    (work / "train.py").write_text(textwrap.dedent(USER))
    run = subprocess.run(
        [sys.executable, "-m", "ddp_lint", "check", "--no-cache", "--jobs", "1", "--output-format", "json", "train.py"],
        cwd=work,
        env={**os.environ, "PYTHONPATH": str(source), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode in (0, 1), run.stderr
    return [(finding["code"], finding["line"]) for finding in json.loads(run.stdout)["findings"]]


def test_every_framework_says_what_it_is_imported_as() -> None:
    assert [framework.name for framework in frameworks() if not framework.packages] == []
    assert "torch" in packages(lambda framework: framework.imports_torch)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({}, "frameworks/loom.toml: lacks packages"),
        ({"package": ["loom"]}, "unknown key 'package', did you mean 'packages'"),
        ({"packages": "loom"}, "packages: must be a list of strings"),
        ({"packages": ["loom"], "launch": {"module": ["loom"]}}, "unknown key 'module', did you mean 'modules'"),
        ({"packages": ["loom"], "launch": ["loom"]}, "launch: must be a table"),
        (
            {"packages": ["loom"], "wrapper": [{"names": ["l.W"], "kind": "dpp"}]},
            "unknown word 'dpp', did you mean 'ddp'",
        ),
        ({"packages": ["loom"], "wrapper": {"names": ["l.W"]}}, "wrapper: must be a list of tables"),
        ({"packages": ["loom"], "aliases": {"loom.a": "loom.b"}}, "aliases.loom.a: must be a list of strings"),
        ({"packages": ["loom"], "events": {}}, "unknown key 'events'"),
    ],
)
def test_a_mistake_is_refused_with_file_and_key(content: dict[str, Any], message: str) -> None:
    with pytest.raises(KnowledgeError, match=message):
        read("loom", content)
