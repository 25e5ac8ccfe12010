"""What one `ddp-lint verify` does around its runs; nothing is launched."""

from __future__ import annotations

import pathlib
from types import SimpleNamespace
from typing import Any

import pytest

from ddp_lint.config import Configuration, Overrides
from ddp_lint.verify import session
from ddp_lint.verify.options import Options
from ddp_lint.verify.results import Examined
from ddp_lint.verify.session import lint
from ddp_lint.verify.target import resolve

from .traces import call, run

SOURCE = "import torch.distributed as dist\ndist.init_process_group()\nif dist.get_rank() == 0:\n    dist.barrier()\n"


@pytest.mark.parametrize(("files", "there"), [(1, False), (1, True), (session._MANY_FILES, False)])
def test_findings_of_large_projects_are_kept(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, files: int, there: bool
) -> None:
    monkeypatch.delenv("DDP_LINT_NO_CACHE", raising=False)
    (tmp_path / ".git").mkdir()
    others = [f"part{number}" for number in range(files - 1)]
    for name in others:
        (tmp_path / f"{name}.py").write_text("x = 1\n")
    (tmp_path / "train.py").write_text("".join(f"import {name}\n" for name in others) + SOURCE)
    kept = tmp_path / ".ddp_lint_cache"
    if there:
        kept.mkdir()
    settings = Configuration(Overrides(proving=True)).of(tmp_path)
    target = resolve(str(tmp_path / "train.py"), Options())
    found = [finding.code for finding in lint(target, settings)]
    assert found == ["DDP101"] == [finding.code for finding in lint(target, settings)]
    assert bool(list(kept.rglob("*"))) is (there or files > 1)


def test_a_pass_with_a_stimulus_ends_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[float, tuple[str, ...]]] = []

    def runs(_plan: object, _watch: object, options: Options, stimuli: tuple[str, ...]) -> list[Any]:
        asked.append((options.limit, stimuli))
        return [None]

    def examined(_result: object) -> Examined:
        return run([call(1)], [call(1)], wrap="script")

    monkeypatch.setattr(session, "examine", examined)
    monkeypatch.setattr(session, "uses_streams", lambda _: False)
    monkeypatch.setattr(session, "wanted_stimuli", lambda *_: [("short",)])
    launcher = SimpleNamespace(run=runs, target=None)
    assert len(session._runs(launcher, None, Options(), [])) == 2  # type: ignore[arg-type]
    assert asked == [(0.0, ()), (30.0, ("short",))]
