"""What a project keeps of the answers that it has given, and what that costs."""

from __future__ import annotations

import collections
import pathlib

import pytest

from ddp_lint.config import Configuration, Overrides
from ddp_lint.engine.checking import Checker
from ddp_lint.project import Project
from ddp_lint.project.changing import change
from ddp_lint.source import SourceFile

_MODULES, _NAMES = 6, 10


def test_a_file_behind_a_star_is_read_once_for_all_names(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "pkg"
    package.mkdir()
    modules = [f"m{number}" for number in range(_MODULES)]
    (package / "__init__.py").write_text("".join(f"from .{module} import *\n" for module in modules))
    for number, module in enumerate(modules):
        (package / f"{module}.py").write_text(f"def f{number}(): ...\n")
    read: collections.Counter[str] = collections.Counter()
    original = SourceFile.read

    def counted(file: pathlib.Path, shown_as: str, inside: str = "") -> SourceFile:
        read[file.name] += 1
        return original(file, shown_as, inside)

    monkeypatch.setattr(SourceFile, "read", counted)
    project = Project(tmp_path)
    found = [project.meanings.canonical(f"pkg.f{number}") for number in range(_NAMES)]
    known = [f"pkg.m{number}.f{number}" for number in range(_MODULES)]
    assert found == [*known, *(f"pkg.f{number}" for number in range(_MODULES, _NAMES))]
    assert max(read[f"{module}.py"] for module in modules) <= 2  # for the words, and for the tree


def test_questions_are_recorded_only_where_results_are_kept(tmp_path: pathlib.Path) -> None:
    (tmp_path / "ops.py").write_text("def f(): ...\n")
    settings = Configuration(Overrides(isolated=True)).of(tmp_path)

    def asked(**how: bool) -> set[object]:
        project = Checker(settings, **how).project
        project.meanings.canonical("ops.f")
        with project.recording() as found:
            assert project.meanings.canonical("ops.f") == "ops.f"
        return {*found}

    assert asked(for_cache=True) and asked(changing=True)
    assert not asked()


def test_a_file_may_change_whose_name_is_a_word_that_was_searched_for(tmp_path: pathlib.Path) -> None:
    train, other = tmp_path / "train.py", tmp_path / "start.py"
    train.write_text("x = 1\n")
    other.write_text("command = 'torchrun train.py'\n")
    project = Project(tmp_path, changing=True)
    assert project.contents.holding("train.py") == (other,)
    change(project, train, SourceFile.of_text("train.py", "x = 2  # train.py\n", "train.py"))
    assert project.contents.holding("train.py") == (other, train)
