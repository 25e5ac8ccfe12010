"""Gradients that a GradScaler has multiplied and not divided again when they are clipped."""

from __future__ import annotations

from ddp_lint.verify.oracles import Case, Opinion
from ddp_lint.verify.trace import Call


def testify(case: Case) -> Opinion:
    clips = [(rank, event, frame) for rank, event, frame in case.hits(Call) if event.name == "clip_grad_norm_"]
    if not clips:
        return Opinion(silent="no gradients were clipped here")
    for rank, event, frame in clips:
        scale = float(event.arguments.get("scale", 1.0))
        if scale != 1.0:
            text = f"clips gradients that the GradScaler has multiplied by {scale:g}, and that were not unscaled"
            return Opinion((case.evidence("scaled", text, rank=rank, frame=frame),))
    return Opinion(silent="the gradients that were clipped here carried no loss scale")
