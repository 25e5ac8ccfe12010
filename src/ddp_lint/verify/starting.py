"""The processes of a verification come up before anything else is imported: they take longest."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from ddp_lint.verify.options import Options
from ddp_lint.verify.pool import Pool, workspace


@contextlib.contextmanager
def started(text: str, options: Options) -> Iterator[Pool | None]:
    """A pool whose processes start, and import torch, while the caller makes ready what proves and judges; None where
    the target needs another one.

    Raises UsageError where there is no target or no torch, or not the devices that were asked for.
    """
    if options.world or options.several_nodes:
        yield None
        return
    with workspace(None) as folder, Pool(folder, options) as pool:
        pool.start()
        from ddp_lint.verify import launch, preload, self_launching, target  # while torch is imported there

        found = target.resolve(text, options)
        device, _, _ = launch.device_of(options)
        if self_launching.starts_own_ranks(found):
            pool.close()
            yield None
            return
        pool.settle(device, fork=preload.may_fork(found, options.nproc))
        yield pool
