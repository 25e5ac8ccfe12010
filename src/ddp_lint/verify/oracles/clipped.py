"""Gradients that are clipped more than once before the optimizer takes them."""

from __future__ import annotations

import collections

from ddp_lint.verify.oracles import Case, Opinion
from ddp_lint.verify.trace import Call


def testify(case: Case) -> Opinion:
    times: collections.Counter[tuple[int, int]] = collections.Counter()
    for rank, event, frame in case.hits(Call):
        if event.name == "clip_grad_norm_":
            times[rank, event.step] += 1
            if times[rank, event.step] > 1:
                text = f"clips for the second time before optimizer step {event.step + 1}"
                return Opinion((case.evidence("clipped", text, rank=rank, frame=frame),))
    if not times:
        return Opinion(silent="no gradients were clipped here")
    return Opinion(silent="the gradients were clipped once before each step")
