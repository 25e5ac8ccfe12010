"""A progress bar on the terminal for runs that take longer than a moment."""

from __future__ import annotations

import os
import sys
import time
from typing import Any

import click

#: Seconds before a bar is shown.
_PATIENCE = 1.0


class Progress:
    """Counts files; shows a bar on standard error once a run has taken a second, where someone looks at it."""

    def __init__(self, total: int, *, quiet: bool = False) -> None:
        self._total = total
        self._started = time.monotonic()
        self._shown = not quiet and sys.stderr is not None and sys.stderr.isatty() and not os.environ.get("CI")
        self._done = 0
        self._bar: Any = None

    def __call__(self, files: int = 1) -> None:
        """So many files more are done."""
        self._done += files
        if not self._shown:
            return
        if self._bar is not None:
            self._bar.update(files)
        elif time.monotonic() - self._started >= _PATIENCE:
            self._bar = click.progressbar(
                length=self._total, label="checking", file=sys.stderr, show_pos=True, item_show_func=None
            )
            self._bar.__enter__()
            self._bar.update(self._done)

    def close(self) -> None:
        """Leave the line as it was before."""
        if self._bar is not None:
            self._bar.render_finish()
            click.echo("\r\x1b[2K", nl=False, file=sys.stderr)
            self._bar = None
