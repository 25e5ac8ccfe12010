"""Gradients across ranks before each optimizer step: DDP has averaged them, so they are bit-equal, or it has not."""

from __future__ import annotations

from ddp_lint.verify.oracles import Case, Opinion, _across_ranks


def testify(case: Case) -> Opinion:
    return _across_ranks.compare(case, "gradients", ("before_step",))
