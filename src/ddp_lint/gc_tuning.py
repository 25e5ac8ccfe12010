"""How often Python looks for garbage while files are checked."""

from __future__ import annotations

import contextlib
import gc
import sys
from collections.abc import Iterator


def let_go_of_trees() -> None:
    """Empty the bounded caches, which hold syntax trees, and collect what is left of those that nobody uses: for a
    process that goes on while files change, or with other files. What is asked again is worked out again."""
    for name, module in list(sys.modules.items()):
        if name.startswith("ddp_lint."):
            for value in list(vars(module).values()):
                parameters = getattr(value, "cache_parameters", None)
                if parameters is not None and parameters()["maxsize"] is not None:
                    value.cache_clear()
    gc.collect()


@contextlib.contextmanager
def rare_collections() -> Iterator[None]:
    """Syntax trees are many objects without cycles: the default makes the collector go over them again and again."""
    threshold = gc.get_threshold()
    gc.freeze()  # what is imported by now stays
    gc.set_threshold(2_000_000, 20, 50)
    try:
        yield
    finally:
        gc.freeze()  # what is left is old, and not to be gone over now because the threshold is low again
        gc.set_threshold(*threshold)
        gc.unfreeze()
