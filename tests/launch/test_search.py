"""Which files of a project import a module."""

import pathlib

import pytest

from ddp_lint.launch.search import importers
from ddp_lint.project import Project


@pytest.mark.parametrize(
    ("line", "imports"),
    [
        ("from pkg.mod import f", True),
        ("import pkg.mod as m", True),
        # Binds `pkg` alone; the module is imported all the same.
        ("import pkg.mod", True),
        ("from pkg import *", False),
        ("import pkg.model", False),
        ("import pkg  # mod", False),
    ],
)
def test_importers(tmp_path: pathlib.Path, line: str, imports: bool) -> None:
    package = tmp_path / "pkg"
    package.mkdir()
    for name in ("__init__", "mod", "model"):
        (package / f"{name}.py").write_text("def f(): ...\n")
    (tmp_path / "train.py").write_text(f"{line}\nuse(f)\n")
    found = [facts.name for facts in importers(Project(tmp_path), "pkg.mod", holding=("use",))]
    assert found == (["train"] if imports else [])


def test_importers_are_found_among_many_files_that_hold_the_name(tmp_path: pathlib.Path) -> None:
    package = tmp_path / "pkg"
    package.mkdir()
    for name in ("__init__", "evaluation"):
        (package / f"{name}.py").write_text("")
    (package / "z.py").write_text("from . import evaluation\nuse(evaluation)\n")
    other = tmp_path / "tools"
    other.mkdir()
    for index in range(250):
        (other / f"b{index}.py").write_text("import evaluation\nuse(evaluation)\n")
    (other / "run.py").write_text("from pkg.evaluation import f\nuse(f)\n")
    found = [facts.name for facts in importers(Project(tmp_path), "pkg.evaluation", holding=("use",))]
    assert found == ["pkg.z", "tools.run"]
