"""--since and --staged in real git repositories: what touches a change is told, wherever it is."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess

import pytest

from .conftest import Check
from .samples import CLEAN, HAZARD

HELPER = "import torch.distributed as dist\n\n\ndef other(x):\n    return x\n\n\ndef save(x):\n    return x\n"
CALLER = """\
import torch.distributed as dist
from helper import save


def main(x):
    if dist.get_rank() == 0:
        save(x)
"""


def git(folder: pathlib.Path, *args: str) -> None:
    command = ("git", "-c", "user.name=t", "-c", "user.email=t@example.org", *args)
    subprocess.run(command, cwd=folder, check=True, capture_output=True)


@pytest.fixture
def repository(project: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    for name in [name for name in os.environ if name.startswith(("GIT_", "PRE_COMMIT"))]:
        monkeypatch.delenv(name)
    git(project, "init", "-q", "-b", "main")
    (project / "helper.py").write_text(HELPER)
    (project / "caller.py").write_text(CALLER)
    (project / "old.py").write_text(HAZARD)
    git(project, "add", "-A")
    git(project, "commit", "-qm", "first")
    return project


def found(check: Check, *args: str) -> list[tuple[str, int, str]]:
    result = check("--output-format", "json", *args)
    assert result.exit_code in (0, 1), result.stderr
    return [(f["path"], f["line"], f["code"]) for f in json.loads(result.stdout)["findings"]]


def test_a_helper_that_gets_a_barrier_is_judged_for_its_callers(check: Check, repository: pathlib.Path) -> None:
    """Only the helper changes; the hang is in a file that did not."""
    assert found(check, "--since", "HEAD") == []
    (repository / "helper.py").write_text(HELPER.replace("def save(x):\n", "def save(x):\n    dist.barrier()\n"))
    assert found(check, "--since", "HEAD") == [("caller.py", 7, "DDP101")]
    assert found(check, "--since", "HEAD", "--no-cache") == [("caller.py", 7, "DDP101")]
    # A change of another function of the helper has nothing to do with it.
    git(repository, "commit", "-qam", "second")
    (repository / "helper.py").write_text(
        (repository / "helper.py").read_text().replace("def other(x):\n", "def other(x):\n    x += 1\n")
    )
    assert found(check, "--since", "HEAD") == []
    assert found(check, "--since", "HEAD~1") == [("caller.py", 7, "DDP101")]


def test_what_changed_is_told_and_what_was_there_is_not(check: Check, repository: pathlib.Path) -> None:
    text = (repository / "old.py").read_text()
    (repository / "old.py").write_text(f"{text}\n\ndef new(x):\n    return x\n")
    assert found(check, "--since", "HEAD") == []
    (repository / "old.py").write_text(text.replace("optimizer.step()", "optimizer.step()  # now"))
    assert [row[0] for row in found(check, "--since", "HEAD")] == ["old.py"]
    (repository / "old.py").write_text(text)
    (repository / "untracked ü.py").write_text(HAZARD)
    assert [row[0] for row in found(check, "--since", "HEAD")] == ["untracked ü.py"]


def test_a_collective_that_is_taken_away_in_a_callee(check: Check, repository: pathlib.Path) -> None:
    """The rank that no more joins passes through the change, although nothing is left there to point at."""
    both = "def one(x):\n    dist.barrier()\n\n\ndef two(x):\n    dist.barrier()\n"
    (repository / "pair.py").write_text(f"import torch.distributed as dist\n\n\n{both}")
    use = "    if dist.get_rank() == 0:\n        one(x)\n    else:\n        two(x)\n"
    (repository / "use.py").write_text(
        f"import torch.distributed as dist\nfrom pair import one, two\n\n\ndef f(x):\n{use}"
    )
    git(repository, "add", "-A")
    git(repository, "commit", "-qm", "second")
    assert found(check, "use.py") == []
    text = (repository / "pair.py").read_text()
    (repository / "pair.py").write_text(text.replace("def two(x):\n    dist.barrier()", "def two(x):\n    pass"))
    assert [row[0] for row in found(check, "--since", "HEAD")] == ["use.py"]


def test_the_revision_is_taken_where_the_branches_parted(check: Check, repository: pathlib.Path) -> None:
    git(repository, "switch", "-qc", "work")
    (repository / "mine.py").write_text(HAZARD)
    git(repository, "add", "-A")
    git(repository, "commit", "-qm", "mine")
    git(repository, "switch", "-q", "main")
    (repository / "old.py").write_text(CLEAN)
    git(repository, "commit", "-qam", "theirs")
    git(repository, "switch", "-q", "work")
    assert [row[0] for row in found(check, "--since", "main")] == ["mine.py"]


def test_wrong_use_is_told(check: Check, repository: pathlib.Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    result = check("--since", "nowhere")
    assert result.exit_code == 2
    assert "git knows no revision 'nowhere' here" in result.stderr
    os.chdir(tmp_path_factory.mktemp("no repository"))
    assert "--since: git fails: not a git repository" in check("--since", "HEAD").stderr


def test_staged_files_that_did_not_change_count_as_a_whole(check: Check, repository: pathlib.Path) -> None:
    """pre-commit run --all-files hands over what has not changed."""
    assert [row[0] for row in found(check, "--staged", "helper.py", "caller.py", "old.py")] == ["old.py"]
    (repository / "helper.py").write_text(HELPER.replace("def save(x):\n", "def save(x):\n    dist.barrier()\n"))
    assert found(check, "--staged", "helper.py") == [("caller.py", 7, "DDP101")]
