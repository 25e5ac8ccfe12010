"""How often Python looks for garbage while files are checked."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def rare_collections() -> Iterator[None]:
    """Syntax trees are many objects without cycles: the default makes the collector go over them again and again."""
    threshold = gc.get_threshold()
    gc.freeze()  # what is imported by now stays
    gc.set_threshold(1_000_000, 20, 50)
    try:
        yield
    finally:
        gc.freeze()  # what is left is old, and not to be gone over now because the threshold is low again
        gc.set_threshold(*threshold)
        gc.unfreeze()
