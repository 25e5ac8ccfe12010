"""The hooks under the real pre-commit, in a real git repository, installed from a clone of this one."""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import sys

import pytest

from .samples import CLEAN, HAZARD

pytestmark = pytest.mark.slow

ROOT = pathlib.Path(__file__).resolve().parents[2]
_FILES = ("src", "pyproject.toml", "hatch_build.py", "README.md", "LICENSE", ".pre-commit-hooks.yaml")

pytest.importorskip("pre_commit")
_PRE_COMMIT = (sys.executable, "-m", "pre_commit")


def run(folder: pathlib.Path, *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def git(folder: pathlib.Path, *args: str) -> str:
    result = run(folder, "git", "-c", "user.name=t", "-c", "user.email=t@example.org", *args)
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.fixture(scope="module")
def hooks(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A repository with the hooks as they are in the working tree, and the commit to use."""
    folder = tmp_path_factory.mktemp("hooks")
    for name in _FILES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, folder / name)
    git(folder, "init", "-q")
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", "hooks")
    rev = git(folder, "rev-parse", "HEAD").strip()
    return f"  - repo: {folder}\n    rev: {rev}\n    hooks:\n"


@pytest.fixture
def project(tmp_path: pathlib.Path, hooks: str, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    for name in [name for name in os.environ if name.startswith("GIT_")]:
        monkeypatch.delenv(name)
    # The hook's environment is built once for all tests of this file.
    monkeypatch.setenv("PRE_COMMIT_HOME", hooks.split()[2] + "-home")
    git(tmp_path, "init", "-q")
    (tmp_path / ".pre-commit-config.yaml").write_text(f"repos:\n{hooks}      - id: ddp-lint\n")
    assert run(tmp_path, *_PRE_COMMIT, "install").returncode == 0
    return tmp_path


def commit(folder: pathlib.Path, files: dict[str, str]) -> subprocess.CompletedProcess[str]:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    git(folder, "add", "-A")
    return run(folder, "git", "-c", "user.name=t", "-c", "user.email=t@example.org", "commit", "-m", "m")


def test_a_hazard_blocks_the_commit_and_the_rest_passes(project: pathlib.Path) -> None:
    result = commit(project, {"train.py": HAZARD})
    assert result.returncode == 1
    assert "DDP601" in result.stderr + result.stdout
    assert commit(project, {"train.py": CLEAN}).returncode == 0
    result = commit(project, {"notes.txt": "no Python staged"})
    assert result.returncode == 0
    assert "Skipped" in result.stderr + result.stdout
    # Only what changes is linted: the hazard is committed past the hook, then another file is changed.
    (project / "old.py").write_text(HAZARD)
    git(project, "add", "-A")
    git(project, "commit", "-q", "--no-verify", "-m", "old")
    assert commit(project, {"train.py": CLEAN + CLEAN}).returncode == 0
    # What pre-commit takes for shell or YAML by other marks than its name is not taken for Python.
    others = {"launch": "#!/bin/bash\nfor n in 1; do echo; done\n", ".clang-format": "a: [1\n]\n", ".envrc": "a b\n"}
    assert commit(project, others).returncode == 0
    # Excluded files are left out although pre-commit names them.
    (project / "pyproject.toml").write_text('[tool.ddp-lint]\nextend-exclude = ["gen/"]\n')
    assert commit(project, {"gen/m.py": HAZARD}).returncode == 0


def test_what_needs_another_file_of_the_project_is_found(project: pathlib.Path) -> None:
    """The staged file re-wraps through a helper that lies in a file that is not staged."""
    helper = "from torch.nn.parallel import DistributedDataParallel as Wrapped\n"
    staged = HAZARD.replace(
        "from torch.nn.parallel import DistributedDataParallel as DDP", "from names import Wrapped as DDP"
    )
    assert staged != HAZARD
    assert commit(project, {"names.py": helper, "pyproject.toml": ""}).returncode == 0
    result = commit(project, {"train.py": staged})
    assert result.returncode == 1
    assert "DDP601" in result.stderr + result.stdout


def test_a_change_is_judged_for_the_files_that_depend_on_it(project: pathlib.Path) -> None:
    """Only the helper is staged; it is its caller that hangs, and an old hazard beside it is not told."""
    helper = "import torch.distributed as dist\n\n\ndef save(x):\n    return x\n"
    use = "import torch.distributed as dist\nfrom helper import save\n\n\ndef main(x):\n    if dist.get_rank() == 0:\n"
    files = {"helper.py": helper, "caller.py": f"{use}        save(x)\n", "pyproject.toml": "", "old.py": CLEAN}
    assert commit(project, files).returncode == 0
    (project / "old.py").write_text(HAZARD)
    git(project, "add", "-A")
    git(project, "commit", "-q", "--no-verify", "-m", "old")
    result = commit(project, {"helper.py": helper.replace("    return", "    dist.barrier()\n    return")})
    said = result.stderr + result.stdout
    assert result.returncode == 1
    assert "DDP101" in said
    assert "caller.py:7" in said
    assert "DDP601" not in said
    # Asked for all files, it tells all.
    assert "DDP601" in run(project, *_PRE_COMMIT, "run", "--all-files").stdout


def test_the_fixing_hook(project: pathlib.Path) -> None:
    config = project / ".pre-commit-config.yaml"
    config.write_text(config.read_text().replace("id: ddp-lint", "id: ddp-lint-fix"))
    result = commit(project, {"a.py": "x = 1  # noqa: DDP999\n"})
    assert result.returncode == 1
    assert "files were modified by this hook" in result.stderr + result.stdout
    assert (project / "a.py").read_text() == "x = 1\n"
    assert commit(project, {}).returncode == 0
