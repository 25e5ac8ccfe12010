"""Where tensors land: checkpoints on another rank's GPU, CUDA tensors handed to workers, foreign device indices."""

from __future__ import annotations

from collections.abc import Iterator

from ddp_lint.verify.cpu_limits import undecided
from ddp_lint.verify.oracles import Case, Opinion
from ddp_lint.verify.results import Evidence
from ddp_lint.verify.trace import Call

_WATCHED = ("torch.load", "share_memory_", "set_device")


def testify(case: Case) -> Opinion:
    calls = [(rank, event, frame) for rank, event, frame in case.hits(Call) if event.name in _WATCHED]
    landed = case.run.device == "cuda" and not case.run.shared_gpus
    fired = [
        case.evidence("device", text, rank=rank, frame=frame)
        for rank, event, frame in calls
        for text in _wrong(rank, event)
        if landed or event.name == "share_memory_"
    ]
    fired += _collisions(case)
    if fired:
        return Opinion(tuple(fired))
    if case.run.device == "cpu":
        return Opinion(backend=undecided("placement"))
    if case.run.shared_gpus:
        return Opinion(backend=undecided("shared"))
    if not calls:
        return Opinion(silent="nothing was put on another rank's device here")
    return Opinion(silent=f"{calls[0][1].name} left its tensors on the CPU or on the rank's own device")


def _wrong(rank: int, event: Call) -> Iterator[str]:
    own = f"cuda:{rank}"
    if event.name == "torch.load":
        foreign = sorted({at for at in event.arguments.get("landed", ()) if at.startswith("cuda") and at != own})
        if foreign:
            yield f"torch.load put tensors on {', '.join(foreign)}; this rank's device is {own}"
    elif event.name == "share_memory_" and str(event.arguments.get("device", "")).startswith("cuda"):
        yield f"what the line shares is on {event.arguments['device']}, where share_memory_ does nothing"


def _collisions(case: Case) -> Iterator[Evidence]:
    """Two ranks that choose the same device."""
    chosen: dict[str, int] = {}
    for rank, event, frame in case.hits(Call):
        device = str(event.arguments.get("device", "")) if event.name == "set_device" else ""
        if device and chosen.setdefault(device, rank) != rank:
            text = f"rank {rank} chooses {device}, as rank {chosen[device]} does"
            yield case.evidence("device", text, rank=rank, frame=frame)
