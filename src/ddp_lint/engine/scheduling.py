"""How the work is distributed: how many processes, which files together."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Iterator, Sequence

#: Below this many bytes of source a second process costs more than it saves.
_WORTH_A_PROCESS = 400_000
#: Chunks per process: enough to share the work evenly, few enough to keep files of one package together.
_CHUNKS = 8


def processes_for(jobs: int | None, size: int, count: int) -> int:
    """How many processes to use for `count` files of `size` bytes in all; `jobs` is the user's choice."""
    if jobs:
        return max(1, min(jobs, count))
    return max(1, min(_cores(), size // _WORTH_A_PROCESS, count))


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def size_of(path: str | pathlib.Path) -> int:
    try:
        return os.stat(path).st_size  # noqa: PTH116 - of thousands of files, most given as text
    except OSError:
        return 0


def chunks_of(paths: Sequence[pathlib.Path], jobs: int) -> Iterator[list[pathlib.Path]]:
    """Neighbours together: they import the same modules, whose facts a worker keeps."""
    sizes = [size_of(path) for path in paths]
    enough = sum(sizes) // (jobs * _CHUNKS) + 1
    chunk: list[pathlib.Path] = []
    filled = 0
    for path, size in zip(paths, sizes, strict=True):
        chunk.append(path)
        filled += size
        if filled >= enough:
            yield chunk
            chunk, filled = [], 0
    if chunk:
        yield chunk
