"""A small project with one finding, and helpers that the tests of the engine share."""

from __future__ import annotations

import pathlib

from ddp_lint.config import Settings
from ddp_lint.engine.checking import check_file
from ddp_lint.engine.report import Report
from ddp_lint.engine.runner import check_paths
from ddp_lint.findings import Finding
from ddp_lint.project import Project
from ddp_lint.rules.registry import all_rules
from ddp_lint.source import SourceFile

#: DDP250 on line 6, by what another file of the project imports.
HAZARD = """\
import torch
from ops import softmax


def entropy(x):
    return torch.log(softmax(x, dim=-1))
"""
OPS = "from torch import softmax\n"
ALL = frozenset(all_rules())


def write(root: pathlib.Path, files: dict[str, str]) -> list[pathlib.Path]:
    paths = []
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        paths.append(path)
    return paths


def check(
    root: pathlib.Path, *names: str, jobs: int = 1, cache: pathlib.Path | None = None, codes: frozenset[str] = ALL
) -> Report:
    paths = [root / name for name in names] if names else sorted(root.rglob("*.py"))
    return check_paths(paths, Settings(root, codes), jobs=jobs, cache_dir=cache)


def found(path: pathlib.Path, *, focus: bool, project: Project) -> list[Finding]:
    """All rules on one file, with or without focus."""
    file = SourceFile.read(path, project.paths.shown(path))
    return check_file(file, path, project, Settings(project.root, ALL), focus=focus)


def codes(report: Report) -> list[str]:
    return [finding.code for finding in report.findings]
