"""A process group of one: code that communicates runs as it would in a job of a single process."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

import torch.distributed as dist

_ALONE = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1", "GROUP_RANK": "0"}


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """Inside, this process is rank 0 of 1 (on gloo), also by its environment."""
    before = {name: os.environ.get(name) for name in _ALONE}
    os.environ.update(_ALONE)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        yield
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
