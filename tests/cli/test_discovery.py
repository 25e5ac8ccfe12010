"""Which files are found: against git itself for .gitignore, and on trees that are made to trip a search."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess

import pytest

from ddp_lint.config import FORMATS

from .conftest import Check

TREE = {
    ".gitignore": "*.gen.py\n/top.py\nlogs/\n!keep.gen.py\ndeep/**/x.py\n# comment\n\n\\#odd.py\n",
    "a.py": "", "a.gen.py": "", "keep.gen.py": "", "top.py": "", "logs/l.py": "", "logs.py": "", "#odd.py": "",
    "sub/top.py": "", "sub/logs/l.py": "", "sub/b.gen.py": "",
    "sub/.gitignore": "!b.gen.py\nc*.py\n", "sub/c1.py": "", "sub/in/c2.py": "",
    "sub/in/.gitignore": "!c2.py\n", "deep/one/two/x.py": "", "deep/y.py": "",
    "un/.gitignore": "*.tmp.py\n!/src\n!two\n", "un/src/x.tmp.py": "", "un/src/x.py": "", "un/src/two/y.tmp.py": "",
    "quiet/.gitignore": "*\n", "quiet/q.py": "", "notes.txt": "", "stub.pyi": "", "caps.PY": "",
}  # fmt: skip


@pytest.fixture
def tree(project: pathlib.Path) -> pathlib.Path:
    for name, text in TREE.items():
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text(text)
    subprocess.run(["git", "init", "-q"], cwd=project, check=True)
    (project / ".git" / "info" / "exclude").write_text("a.py\n")
    for name, text in {"bytes": b"\xef\xbb\xbfz.py\r\n# caf\xe9\r\n", "deep/one": b"\xe9\nb.py"}.items():
        (project / name).mkdir(exist_ok=True)
        (project / name / ".gitignore").write_bytes(text)
    for name in ("bytes/z.py", "bytes/y.py", "deep/one/b.py"):
        (project / name).write_text("")
    return project


def shown(check: Check, *args: str) -> list[str]:
    return sorted(check("--show-files", *args).stdout.splitlines())


def git(folder: pathlib.Path) -> list[str]:
    args = ["git", "-c", "core.excludesFile=", "ls-files", "-co", "--exclude-standard", "*.py"]
    return sorted(subprocess.run(args, cwd=folder, check=True, capture_output=True, text=True).stdout.splitlines())


def test_gitignore_as_git_reads_it(check: Check, tree: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert shown(check) == git(tree)
    assert shown(check) == [
        "bytes/y.py", "deep/y.py", "keep.gen.py", "logs.py", "sub/b.gen.py", "sub/in/c2.py", "sub/top.py",
        "un/src/x.py",
    ]  # fmt: skip
    monkeypatch.chdir(tree / "sub")  # the files of the folders above count too
    assert shown(check) == git(tree / "sub")


def test_what_is_named_is_taken_although_ignored(check: Check, tree: pathlib.Path) -> None:
    assert shown(check, "a.gen.py", "quiet/q.py", "stub.pyi") == ["a.gen.py", "quiet/q.py", "stub.pyi"]
    assert shown(check, "logs") == ["logs/l.py"]


def test_gitignore_can_be_left_aside(check: Check, tree: pathlib.Path) -> None:
    (tree / "pyproject.toml").write_text("[tool.ddp-lint]\nrespect-gitignore = false\n")
    assert {"a.py", "a.gen.py", "logs/l.py", "quiet/q.py"} <= set(shown(check))


def test_what_launches_training_is_found_too(check: Check, project: pathlib.Path) -> None:
    names = ["run.sh", "Dockerfile.gpu", "job.yaml", "train.py", "train.pyc", "README.md", "sh"]
    for name in names:
        (project / name).write_text("")
    assert shown(check) == ["Dockerfile.gpu", "job.yaml", "run.sh", "train.py"]


def test_what_a_tool_hands_over_is_checked_as_what_it_is(check: Check, project: pathlib.Path) -> None:
    """pre-commit names what it takes for shell, YAML and Python, by more than their names."""
    texts = {
        "launch": "#!/usr/bin/env bash\nfor n in 1; do export NCCL_DEBUGG=INFO; done  # ddp-lint: ignore[DDP601]\n",
        "tool": "#!/usr/bin/python3 -u\nx = 1  # noqa: DDP999\n",
        "notes": "no Python at all\n", ".clang-format": "a: [\n", "run.bats": "#!/usr/bin/env bats\n@test {\n",
        "s.pyi": "x: int\n",
    }  # fmt: skip
    for name, text in texts.items():
        (project / name).write_text(text)
    assert shown(check, "--force-exclude", *texts) == ["launch", "s.pyi", "tool"]
    assert shown(check, *texts) == sorted(texts)
    found = check("--force-exclude", "--output-format", "concise", "-q", *texts).stdout.splitlines()
    assert [line.split(" ")[:2] for line in found] == [
        ["launch:2:23:", "DDP802"], ["launch:2:47:", "DDP002"], ["tool:2:8:", "DDP002"],
    ]  # fmt: skip
    assert "DDP000" in check("--output-format", "concise", "notes").stdout  # who names it takes it for Python


def test_without_a_repository_only_the_folders_own_files_count(check: Check, project: pathlib.Path) -> None:
    (project / ".gitignore").write_text("x.py\n")
    (project / "in").mkdir()
    for name in ("x.py", "y.py", "in/x.py"):
        (project / name).write_text("")
    assert shown(check) == ["y.py"]
    assert shown(check, "in") == ["in/x.py"]


def test_links_are_not_followed_and_loops_end(check: Check, project: pathlib.Path) -> None:
    (project / "pkg").mkdir()
    (project / "pkg" / "m.py").write_text("")
    (project / "pkg" / "loop").symlink_to(project, target_is_directory=True)
    (project / "link.py").symlink_to(project / "pkg" / "m.py")
    (project / "broken.py").symlink_to(project / "gone.py")
    assert shown(check) == ["pkg/m.py"]
    assert shown(check, "link.py", "pkg") == ["link.py", "pkg/m.py"]
    assert check("broken.py").exit_code == 2


def test_each_file_once_and_sorted(check: Check, project: pathlib.Path) -> None:
    for name in ("b.py", "a.py"):
        (project / name).write_text("")
    assert check("--show-files", "b.py", ".", "./a.py", str(project)).stdout == "a.py\nb.py\n"


def test_odd_names(check: Check, project: pathlib.Path) -> None:
    names = ["with space.py", "ünïcode.py", "[x].py", "new\nline.py", "-dash.py"]
    for name in names:
        (project / name).write_text("")
    assert check().exit_code == 0
    assert check("--", "-dash.py").exit_code == 0
    (project / os.fsdecode(b"bad\xff.py")).write_text("x = 1  # noqa: DDP999\n")
    assert "bad\\udcff.py:1:8" in check("--output-format", "concise").stdout
    for output_format in FORMATS:
        assert check("--output-format", output_format).exit_code == 1
    (result,) = json.loads(check("--output-format", "sarif").stdout)["runs"][0]["results"]
    assert result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == "bad%FF.py"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may look everywhere")
def test_a_folder_that_cannot_be_read(check: Check, project: pathlib.Path) -> None:
    (project / "closed").mkdir(mode=0)
    result = check()
    assert result.exit_code == 2
    assert "error: closed: permission denied" in result.stderr


# ---- projects that nothing marks

#: Of a module that imports a collective by the project's own name for it: found only where that name is followed.
IMPORTING = """\
import torch.distributed as dist
from {} import meet

if dist.get_rank() == 0:
    meet()
"""


def test_without_a_marker_the_working_directory_is_the_project(
    check: Check, project: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names that a folder imports from another one are followed, and one cache is kept for all of them."""
    (project / "pyproject.toml").unlink()
    for folder in ("lib", "deep/er"):
        (project / folder).mkdir(parents=True)
    (project / "lib" / "names.py").write_text("from torch.distributed import barrier as meet\n")
    (project / "deep" / "er" / "train.py").write_text(IMPORTING.format("lib.names"))
    assert "DDP101" in check("--output-format", "concise").stdout
    assert [p.parent for p in project.rglob(".ddp_lint_cache")] == [project]
    assert "DDP101" in check("deep/er/train.py", "--no-cache").stdout
    monkeypatch.chdir(project / "lib")  # what is searched lies outside
    assert "DDP101" in check("..", "--no-cache").stdout
    monkeypatch.setenv("HOME", str(project))  # a home folder is no project
    monkeypatch.chdir(project)
    assert "DDP101" not in check("deep/er/train.py", "--no-cache").stdout


def test_settings_of_a_folder_do_not_part_it_from_its_project(check: Check, project: pathlib.Path) -> None:
    (project / "lib").mkdir()
    (project / "recipe").mkdir()
    (project / "lib" / "names.py").write_text("from torch.distributed import barrier as meet\n")
    (project / "recipe" / "train.py").write_text(IMPORTING.format("lib.names"))
    for name in ("ddp-lint.toml", ".ddp-lint.toml"):
        (project / "recipe" / name).write_text('ignore = ["DDP002"]\n')
        result = check("--output-format", "concise", "--show-settings")
        assert "root = .\n" in result.stdout
        assert "DDP101" in check("--output-format", "concise").stdout
    (project / "pyproject.toml").unlink()
    assert "root = recipe\n" in check("--show-settings", "recipe").stdout


def test_a_package_that_nothing_marks_is_imported_from_above(
    check: Check, project: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = project / "elsewhere" / "pkg"
    package.mkdir(parents=True)
    (project / "pyproject.toml").unlink()
    (project / "here").mkdir()
    monkeypatch.chdir(project / "here")
    (package / "__init__.py").write_text("")
    (package / "names.py").write_text("from torch.distributed import barrier as meet\n")
    (package / "train.py").write_text(IMPORTING.format("pkg.names"))
    assert "DDP101" in check(str(package / "train.py"), "--no-cache").stdout
