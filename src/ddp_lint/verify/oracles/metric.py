"""A number of which every rank must hold the same, and that each takes from its own data."""

from __future__ import annotations

import collections
import math

from ddp_lint.verify.oracles import Case, Opinion
from ddp_lint.verify.trace import Frame, Sync

_RELATIVE = 1e-6


def testify(case: Case) -> Opinion:
    """Compares what the ranks read at the finding's line, the first time each, the second time each, and so on."""
    read: dict[int, list[tuple[float, str, Frame]]] = collections.defaultdict(list)
    for rank, event, frame in case.hits(Sync):
        if event.value is not None:
            read[rank].append((event.value, event.cause, frame))
    if len(read) < 2:
        return Opinion(blind="the ranks did not read a tensor's value here; only such reads are recorded")
    for row in zip(*read.values(), strict=False):
        first, cause, frame = row[0]
        if any(not math.isclose(first, value, rel_tol=_RELATIVE, abs_tol=1e-9) for value, _, _ in row):
            described = ", ".join(f"{value:g} on rank {rank}" for rank, (value, _, _) in zip(read, row, strict=True))
            return Opinion((case.evidence("metric", f"what {cause} reads here is {described}", frame=frame),))
    return Opinion(silent="the ranks read the same values here")
