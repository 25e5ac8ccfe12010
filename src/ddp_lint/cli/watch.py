"""`ddp-lint check --watch`: check again whenever a file changes."""

from __future__ import annotations

import contextlib
import fnmatch
import importlib.util
import pathlib
import sys
import time
from collections.abc import Callable, Collection, Iterable

import click

from ddp_lint.cli.console import INTERRUPTED, count, say
from ddp_lint.config import DEFAULT_EXCLUDE, FILES, ConfigError
from ddp_lint.files import exists
from ddp_lint.rules.registry import text_globs

#: Milliseconds without a change after which the watch comes back; the first time it has begun by then.
_TICK = 200


def watch(paths: Iterable[str], run: Callable[[], None], color: str) -> int:
    """Run at once and after every change of a file below `paths` that a run may depend on, until Ctrl-C; the exit
    status for that. Raises ConfigError."""
    if importlib.util.find_spec("watchfiles") is None:
        raise ConfigError("--watch needs watchfiles: pip install 'ddp-lint[watch]'")
    import watchfiles

    roots = [pathlib.Path(path) for path in paths]
    missing = [str(root) for root in roots if not exists(root)]
    if missing:
        raise ConfigError(f"{missing[0]}: no such file or folder")
    changes = watchfiles.watch(
        *roots,
        watch_filter=lambda _, path: concerns(path),
        raise_interrupt=False,
        rust_timeout=_TICK,
        yield_on_timeout=True,
    )
    _each_time(changes, run, color)
    return INTERRUPTED


def _each_time(changes: Iterable[Collection[object]], run: Callable[[], None], color: str) -> None:
    first = True
    with contextlib.suppress(KeyboardInterrupt):
        for changed in changes:
            if changed and not first:
                if sys.stdout.isatty():
                    click.clear()
                say(f"{count(len(changed), 'file')} changed at {time.strftime('%H:%M:%S')}", color)
            if changed or first:  # the first time in any case: from here on no change is missed
                _once(run, color)
            first = False


def _once(run: Callable[[], None], color: str) -> None:
    """A configuration that is being written must not end the watch."""
    try:
        run()
    except ConfigError as e:
        say(f"error: {e}", color)
    finally:
        sys.stdout.flush()


def concerns(path: str) -> bool:
    """Whether what is found may depend on a file, by its name."""
    *folders, name = pathlib.PurePath(path).parts
    if not set(DEFAULT_EXCLUDE).isdisjoint(folders):
        return False
    return name in (*FILES, ".gitignore") or any(fnmatch.fnmatch(name, g) for g in ("*.py", "*.ipynb", *text_globs()))
