"""Recompilations of TorchDynamo that the finding's line makes, over and over."""

from __future__ import annotations

import collections

from ddp_lint.verify.oracles import Case, Opinion
from ddp_lint.verify.trace import Call, Recompile

#: A second version of a function is usual: another shape, training and evaluation.
_OFTEN = 3


def testify(case: Case) -> Opinion:
    hits = list(case.hits(Recompile))
    ranks = collections.Counter(rank for rank, _, _ in hits)
    for rank, event, frame in hits:
        if ranks[rank] >= _OFTEN:
            text = f"TorchDynamo recompiled `{frame.function}` {ranks[rank]} times, first where `{event.reason}` failed"
            return Opinion((case.evidence("recompile", text, rank=rank, frame=frame),))
    if any(call.name == "compile" for trace in case.traces for call in trace.of(Call)):
        return Opinion(silent="TorchDynamo did not compile the function again and again")
    if case.ran:
        return Opinion(silent="the line ran, and nothing was compiled again for it")
    return Opinion(blind="nothing was compiled in this run")
