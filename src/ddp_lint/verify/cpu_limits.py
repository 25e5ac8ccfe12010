"""What a CPU run cannot decide (`backends.toml`)."""

from __future__ import annotations

import functools
import re

from ddp_lint.knowledge import table


@functools.lru_cache(maxsize=1024)
def cpu_limit(text: str, phase: str = "") -> str:
    """Why an error on CPU (in this phase of the training) says nothing about CUDA; '' when it may."""
    rows = (row for row in table("backends")["cpu_error"] if not phase or row.get("not_in") != phase)
    return next((str(row["reason"]) for row in rows if re.search(row["pattern"], text)), "")


def undecided(fact: str) -> str:
    """Why a CPU run with this fact decides nothing: the reason of an entry of `[undecided]`."""
    return str(table("backends")["undecided"][fact])
