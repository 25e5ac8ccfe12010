"""Work on CUDA streams that nothing orders: what was read before all streams had finished.

The race shows when it happens. A value that was complete in time proves no order, so silence never refutes.
"""

from __future__ import annotations

import math

from ddp_lint.verify.oracles import Case, Opinion
from ddp_lint.verify.trace import Sync


def testify(case: Case) -> Opinion:
    for trace in case.traces:
        for read in trace.of(Sync):
            if case.ran and read.value is not None and read.again is not None and _differ(read.value, read.again):
                text = f"{read.cause} read {read.value:g}, and {read.again:g} when all streams had finished"
                linked = case.hit(read) is not None
                return Opinion((case.evidence("streams", text, rank=trace.rank, frame=read.site, linked=linked),))
    return Opinion(blind="no read was too early this time, which proves no order: races of streams depend on timing")


def _differ(a: float, b: float) -> bool:
    return not math.isclose(a, b, rel_tol=1e-6) and not (math.isnan(a) and math.isnan(b))
