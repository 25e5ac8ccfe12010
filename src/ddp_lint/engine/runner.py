"""Files in, findings out."""

from __future__ import annotations

import pathlib
import time
from collections.abc import Sequence

from ddp_lint.config import Settings
from ddp_lint.engine.checking import check_file
from ddp_lint.engine.report import FileResult, Report
from ddp_lint.project import Project
from ddp_lint.source import SourceFile, Unreadable

__all__ = ["Report", "check_file", "check_paths", "check_text"]


def check_paths(
    paths: Sequence[pathlib.Path],
    settings: Settings,
    *,
    jobs: int | None = None,
    cache_dir: pathlib.Path | None = None,
) -> Report:
    """Check files. `jobs`: processes, None for as many as pay off; `cache_dir`: where results are kept, None for
    nowhere. The report is the same whatever `jobs` and the cache say."""
    project = Project(settings.root)
    results = [_check_path(path, project, settings) for path in dict.fromkeys(paths)]
    return Report.of(results)


def check_text(text: str, path: pathlib.Path, settings: Settings) -> Report:
    """Check text that is not (yet) on disk as if it were the content of `path`: standard input, flake8."""
    project = Project(settings.root)
    shown = project.shown(path)
    file = SourceFile.of_text(shown, text)
    return Report.of([FileResult(shown, tuple(check_file(file, path, project, settings)))])


def _check_path(path: pathlib.Path, project: Project, settings: Settings) -> FileResult:
    shown = project.shown(path)
    started = time.perf_counter()
    try:
        file = SourceFile.read(path, shown)
    except Unreadable as e:
        return FileResult(shown, error=str(e))
    findings = tuple(check_file(file, path, project, settings))
    return FileResult(shown, findings, seconds=time.perf_counter() - started)
