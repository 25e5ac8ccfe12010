"""What a CPU run cannot decide (`backends.toml`)."""

from __future__ import annotations

import functools
import re

from ddp_lint.knowledge import table


@functools.lru_cache(maxsize=1024)
def cpu_limit(text: str) -> str:
    """Why an error on CPU says nothing about CUDA; '' when it may."""
    rows = table("backends")["cpu_error"]
    return next((str(row["reason"]) for row in rows if re.search(row["pattern"], text)), "")


def undecided(fact: str) -> str:
    """Why a CPU run with this fact decides nothing: the reason of an entry of `[undecided]`."""
    return str(table("backends")["undecided"][fact])
