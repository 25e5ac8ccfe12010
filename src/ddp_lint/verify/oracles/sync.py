"""Host synchronisation: reads that make the CPU wait for the GPU. On CPU they are seen too, without a wait."""

from __future__ import annotations

import collections

from ddp_lint.verify.oracles import Case, Opinion
from ddp_lint.verify.trace import Frame, Sync


def testify(case: Case) -> Opinion:
    times: collections.Counter[str] = collections.Counter()
    where: dict[str, tuple[int, Sync, Frame]] = {}
    for rank, event, frame in case.hits(Sync):
        times[event.cause] += 1
        where.setdefault(event.cause, (rank, event, frame))
    if not times:
        return Opinion(silent="nothing was read from the device here")
    cause, count = times.most_common(1)[0]
    rank, event, frame = where[cause]
    wait = "the host waits for the device" if event.device != "cpu" else "on CUDA the host waits for the device"
    text = f"{cause}, {count} times over all ranks: {wait} each time"
    return Opinion((case.evidence("sync", text, rank=rank, frame=frame),))
