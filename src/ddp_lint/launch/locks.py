"""Locks under which the processes of a machine come one after the other."""

from __future__ import annotations

import re

#: Of filelock, fasteners, portalocker, and what projects name so: a `threading.Lock` holds in one process alone.
_LOCK = re.compile(r"file_?lock$|(\b|_)inter_?process_?lock$|^portalocker\.([\w.]*\.)?R?Lock$", re.IGNORECASE)


def is_machine_lock(name: str) -> bool:
    """Whether a class or function of that dotted name gives a lock for all processes: ``filelock.FileLock``."""
    return _LOCK.search(name) is not None
