"""`--since`: the lines that changed since a revision."""

from __future__ import annotations

import pathlib
import subprocess

import pytest

from ddp_lint.findings import Confidence, Finding, Span
from ddp_lint.verify.changes import changed_lines, changed_only
from ddp_lint.verify.options import UsageError


@pytest.fixture
def repository(tmp_path: pathlib.Path) -> pathlib.Path:
    def git(*arguments: str) -> None:
        subprocess.run(["git", "-C", str(tmp_path), *arguments], check=True, capture_output=True)

    git("init", "-q")
    (tmp_path / "a.py").write_text("".join(f"line {n}\n" for n in range(1, 9)))
    git("add", "a.py")
    git("-c", "user.name=n", "-c", "user.email=e", "commit", "-qm", "first")
    lines = (tmp_path / "a.py").read_text().splitlines()
    lines[2] = "changed"
    (tmp_path / "a.py").write_text("\n".join([*lines[:6], *lines[7:], "new"]) + "\n")
    (tmp_path / "b.py").write_text("new\n")
    return tmp_path


def _finding(path: pathlib.Path, line: int, end: int) -> Finding:
    return Finding("DDP101", "slug", "message", Span(str(path), line, 1, end, 2), Confidence.HIGH)


def test_changed_and_new_lines(repository: pathlib.Path) -> None:
    assert changed_lines(repository / "a.py", "HEAD") == {3, 8}
    assert changed_lines(repository / "b.py", "HEAD") is None


def test_findings_on_changed_lines_only(repository: pathlib.Path) -> None:
    near, touched = _finding(repository / "a.py", 1, 2), _finding(repository / "a.py", 2, 4)
    new = _finding(repository / "b.py", 1, 1)
    assert changed_only([near, touched, new], "HEAD", repository / "a.py") == [touched, new]
    assert changed_only([near], "", repository / "a.py") == [near]


def test_an_unknown_revision(repository: pathlib.Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    with pytest.raises(UsageError, match="--since v9: no such revision"):
        changed_only([], "v9", repository / "a.py")
    elsewhere = tmp_path_factory.mktemp("no repository") / "a.py"
    elsewhere.write_text("x\n")
    with pytest.raises(UsageError, match="no such revision of a git repository"):
        changed_only([_finding(elsewhere, 1, 1)], "HEAD", elsewhere)
