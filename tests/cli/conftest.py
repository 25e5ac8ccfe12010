from __future__ import annotations

import pathlib
from collections.abc import Callable

import click.testing
import pytest

from ddp_lint.cli import main

Check = Callable[..., click.testing.Result]


@pytest.fixture
def project(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """An empty project, which is the working directory."""
    (tmp_path / "pyproject.toml").write_text("")
    monkeypatch.chdir(tmp_path)
    for name in ("NO_COLOR", "FORCE_COLOR", "DDP_LINT_OUTPUT_FORMAT", "DDP_LINT_NO_CACHE"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@pytest.fixture
def check(project: pathlib.Path) -> Check:
    """`ddp-lint check ARGS` in the project."""

    def run(*args: str, input: str | bytes | None = None) -> click.testing.Result:
        result = click.testing.CliRunner().invoke(main, ["check", *args], input=input)
        if result.exception and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    return run
