"""The flake8 plugin: the findings of `ddp-lint check` at the same lines, under `flake8 --select DDP,E9`.

Which rules run, and where, is decided by the project's ddp-lint configuration; flake8's own --select, --ignore and
per-file-ignores apply on top. Suppressions work as in `check`; with flake8's --disable-noqa, `# noqa` hides nothing.

One checker serves all files of a process, and results are kept in the cache of `check`.
"""

from __future__ import annotations

import argparse
import functools
import multiprocessing.util
import pathlib
from collections.abc import Iterator
from typing import ClassVar

from ddp_lint import __version__
from ddp_lint.baseline import Baseline
from ddp_lint.config import ConfigError, Configuration, Overrides, Settings
from ddp_lint.engine.cache import Cache
from ddp_lint.engine.checking import Checker
from ddp_lint.engine.report import FileResult
from ddp_lint.findings import Finding
from ddp_lint.gc_tuning import rare_collections
from ddp_lint.grouping import grouped
from ddp_lint.source import SourceFile, Unreadable


class Plugin:
    """One instance for each file, made by flake8, which knows plugins that run once a file by their `tree` argument."""

    name: ClassVar[str] = "ddp-lint"
    version: ClassVar[str] = __version__
    noqa: ClassVar[bool] = True

    def __init__(self, tree: object, lines: list[str], filename: str) -> None:
        self._text = "".join(lines)
        self._path = pathlib.Path(filename if filename not in ("-", "stdin") else "stdin.py").absolute()

    @classmethod
    def parse_options(cls, options: argparse.Namespace) -> None:
        """Raises flake8's ExecutionError: what is wrong with the configuration is reported once, not for every file."""
        from flake8.exceptions import ExecutionError

        cls.noqa = not options.disable_noqa
        try:
            settings = _configuration(cls.noqa).of(pathlib.Path.cwd())
            if settings.baseline is not None:
                Baseline.read(settings.baseline)
        except ConfigError as e:
            raise ExecutionError(f"ddp-lint: {e}") from None

    def run(self) -> Iterator[tuple[int, int, str, type[Plugin]]]:
        """(line, column from 0, message, plugin); an exception here would end flake8's run for all files."""
        try:
            findings = _findings(self._text, self._path, self.noqa)
        except ConfigError as e:
            yield 1, 0, _one_line(f"DDP001 configuration: {e}"), Plugin
        except Exception as e:
            yield 1, 0, _one_line(f"DDP001 ddp-lint failed on this file: {type(e).__name__}: {e}"), Plugin
        else:
            for f in findings:
                yield f.span.line, f.span.column - 1, _one_line(f"{f.code} {f.message}"), Plugin


def _findings(text: str, path: pathlib.Path, noqa: bool) -> list[Finding]:
    settings = _configuration(noqa).of(path.parent)
    if any(globs.decide(str(path)) for globs in settings.exclude):
        return []  # flake8 has its own list of what to leave out and knows nothing of ours
    session = _session(settings)
    findings = list(session.check(text, path).findings)
    if session.baseline is not None:
        findings = session.baseline.new(findings)
    return grouped(findings, session.checker.project)


class _Session:
    """What the files of one project share in this process."""

    def __init__(self, settings: Settings) -> None:
        self.checker = Checker(settings, for_cache=True)
        self.baseline = Baseline.read(settings.baseline) if settings.baseline is not None else None
        self._cache = Cache(settings.cache_folder, settings, self.checker.project)
        # flake8 reports to nobody that it is done. This runs as a process ends, those of its pool as well.
        multiprocessing.util.Finalize(self, self._cache.save, exitpriority=1)

    def check(self, text: str, path: pathlib.Path) -> FileResult:
        file = SourceFile.of_text(self.checker.project.paths.shown(path), text, self.checker.project.paths.inside(path))
        on_disk = _is_on_disk(file, path)
        kept = self._cache.get(path) if on_disk else None
        if kept is not None:
            return kept
        with rare_collections():
            result = self.checker.check_file(file, path)
        if result.error:
            raise RuntimeError(result.error)
        if on_disk:
            self._cache.put(path, result)
        return result


def _is_on_disk(file: SourceFile, path: pathlib.Path) -> bool:
    """Whether the text is the file's, and not what an editor sends under its name."""
    try:
        return SourceFile.read(path, file.path).digest == file.digest
    except Unreadable:
        return False


@functools.lru_cache(maxsize=64)
def _session(settings: Settings) -> _Session:
    return _Session(settings)


@functools.cache
def _configuration(noqa: bool) -> Configuration:
    return Configuration(Overrides(noqa=noqa))


def _one_line(text: str) -> str:
    return " ".join(text.split())
