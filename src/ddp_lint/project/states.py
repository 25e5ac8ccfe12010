"""What changes whenever a file or the listing of a folder does."""

from __future__ import annotations

import hashlib
import os
import pathlib

from ddp_lint.project.layout import Layout

#: A file that has changed within so many nanoseconds may change again and keep its time: it is read again.
YOUNG = 2 * 10**9
#: The state of a file that is not there.
_MISSING = "-"
#: Entries of folders that say nothing of a project: what tools keep there comes and goes.
_NO_ENTRIES = frozenset({"__pycache__", ".ddp_lint_cache"})


def state_of(path: str | pathlib.Path, before: int) -> str:
    """What changes whenever a file does; '' where it may not, since the file has changed after `before` (in
    nanoseconds)."""
    try:
        state = os.stat(path)
    except (OSError, ValueError):
        return _MISSING
    changed = max(state.st_mtime_ns, state.st_ctime_ns)
    return "" if changed > before else f"{state.st_mtime_ns}:{state.st_ctime_ns}:{state.st_size}"


def listing_of(layout: Layout, folder: str) -> str:
    """What changes whenever the names in a folder do."""
    names = "\n".join(name for names in layout.entries(folder) for name in ("/", *names) if name not in _NO_ENTRIES)
    return hashlib.sha256(names.encode("utf-8", "surrogatepass")).hexdigest()[:32]
