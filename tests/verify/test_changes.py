"""`--since`: the lines that changed since a revision."""

from __future__ import annotations

import pathlib
import subprocess

import pytest

from ddp_lint.changes import since
from ddp_lint.config import ConfigError
from ddp_lint.findings import Span


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


@pytest.mark.parametrize(
    ("name", "line", "end", "meets"),
    [("a.py", 1, 2, False), ("a.py", 2, 4, True), ("a.py", 8, 8, True), ("b.py", 1, 1, True), ("c.py", 1, 1, False)],
)
def test_a_place_on_changed_lines(repository: pathlib.Path, name: str, line: int, end: int, meets: bool) -> None:
    change = since("HEAD", repository)
    assert change.meets(Span(str(repository / name), line, 1, end, 2)) is meets


def test_an_unknown_revision(repository: pathlib.Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    with pytest.raises(ConfigError, match="--since: git knows no revision 'v9'"):
        since("v9", repository)
    with pytest.raises(ConfigError, match="not a git repository"):
        since("HEAD", tmp_path_factory.mktemp("no repository"))
