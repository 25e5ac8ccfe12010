"""The flake8 plugin: the findings of `ddp-lint check` at the same lines, under `flake8 --select DDP`.

Which rules run, and where, is decided by the project's ddp-lint configuration; flake8's own --select, --ignore and
per-file-ignores apply on top. Suppressions work as in `check`; with flake8's --disable-noqa, `# noqa` hides nothing.
"""

from __future__ import annotations

import argparse
import functools
import pathlib
from collections.abc import Iterator
from typing import ClassVar

from ddp_lint import __version__
from ddp_lint.config import ConfigError, Configuration, Overrides
from ddp_lint.engine.runner import check_text
from ddp_lint.findings import Finding


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
        cls.noqa = not options.disable_noqa

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
    return check_text(text, path, settings).findings


@functools.cache
def _configuration(noqa: bool) -> Configuration:
    return Configuration(Overrides(noqa=noqa))


def _one_line(text: str) -> str:
    return " ".join(text.split())
