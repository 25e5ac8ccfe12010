"""Which files of a project import a module."""

import pathlib

import pytest

from ddp_lint.launch.search import imported_through, importers
from ddp_lint.project import Project
from ddp_lint.project import modules as module


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


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The texts that were parsed, in a project that keeps the tree of one file."""
    texts: list[str] = []
    parse = module.parse
    monkeypatch.setattr(module, "parse", lambda text: texts.append(text) or parse(text))
    monkeypatch.setattr(module, "_KEPT_SOURCE", 1)
    return texts


def test_what_a_file_imports_is_read_once_for_all_programs(tmp_path: pathlib.Path, read: list[str]) -> None:
    (tmp_path / "base.py").write_text("def f(): ...\n")
    (tmp_path / "middle.py").write_text("import base\n")
    names = ["first", "second", "third"]
    for name in names:
        (tmp_path / f"{name}.py").write_text(f"import middle  # {name}\n")
    project = Project(tmp_path)
    for name in names:
        program = project.modules.facts(name)
        assert program is not None
        assert imported_through(project, program) == {name, "middle", "base"}
    assert read.count("import base\n") == read.count("def f(): ...\n") == 1


def test_a_file_outside_of_the_project_imports_what_it_names_itself(tmp_path: pathlib.Path) -> None:
    """Also where a module of the project has its name."""
    root = tmp_path / "project"
    root.mkdir()
    for name in ("a", "b"):
        (root / f"{name}.py").write_text("")
    (root / "run.py").write_text("import b\n")
    (tmp_path / "run.py").write_text("import a\n")
    project = Project(root)
    program = project.modules.facts_of(tmp_path / "run.py")
    assert program is not None
    assert program.name == "run"
    assert imported_through(project, program) == {"run", "a"}


def test_who_does_not_import_a_module_is_read_once_for_all(tmp_path: pathlib.Path, read: list[str]) -> None:
    """It has the names of all of them in a line that imports something else."""
    for name in ("one", "two", "three"):
        (tmp_path / f"{name}.py").write_text("def f(): ...\n")
    text = "import elsewhere  # not one, two or three\n"
    (tmp_path / "user.py").write_text(text)
    (tmp_path / "last.py").write_text("")
    project = Project(tmp_path)
    for name in ("one", "two", "three"):
        assert not list(importers(project, name, holding=("import",)))
        project.modules.facts("last")
    assert read.count(text) == 1
