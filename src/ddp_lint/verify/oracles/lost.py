"""Collectives whose result nothing keeps: one tensor is filled for several ranks, or a new one that is dropped."""

from __future__ import annotations

from collections.abc import Iterator

from ddp_lint.verify.oracles import Case, Opinion
from ddp_lint.verify.results import Evidence
from ddp_lint.verify.trace import Collective


def testify(case: Case) -> Opinion:
    fired = tuple(_lost(case))
    if fired:
        return Opinion(fired)
    calls = [event for _, event, _ in case.hits(Collective)]
    if not calls:
        return Opinion(blind="no collective ran here")
    if not any(event.outputs for event in calls):
        return Opinion(blind="whether the program takes what this call returns cannot be seen")
    return Opinion(silent="the tensors that the collective fills here are all different")


def _lost(case: Case) -> Iterator[Evidence]:
    for rank, event, frame in case.hits(Collective):
        if event.overlapping:
            text = f"{event.api or event.op} puts what comes from {len(event.outputs)} ranks into one tensor"
            yield case.evidence("lost", text, rank=rank, frame=frame)
        elif event.functional:
            text = f"{event.api or event.op} leaves its argument as it is, and the line drops what it returns"
            yield case.evidence("lost", text, rank=rank, frame=frame)
