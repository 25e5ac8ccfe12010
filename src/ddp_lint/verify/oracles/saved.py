"""Sharded tensors that are saved by some of the ranks alone: the file has their parts, and no other has the rest."""

from __future__ import annotations

from ddp_lint.verify.oracles import Case, Opinion
from ddp_lint.verify.trace import Call


def testify(case: Case) -> Opinion:
    saves = [(rank, event, frame) for rank, event, frame in case.hits(Call) if event.name == "torch.save"]
    ranks = {rank for rank, _, _ in saves}
    for rank, event, frame in saves:
        parts, tensors = event.arguments["parts"], event.arguments["tensors"]
        if parts and len(ranks) < len(case.traces):
            text = f"saves {parts} of {tensors} tensors as the shards of this rank; the others save nothing here"
            return Opinion((case.evidence("saved", text, rank=rank, frame=frame),))
    if not saves:
        return Opinion(silent="nothing was saved here")
    return Opinion(silent="what was saved here is whole, or every rank saves its part")
