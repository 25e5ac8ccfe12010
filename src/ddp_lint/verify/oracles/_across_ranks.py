"""Shared by `gradient` and `parameter`: tensors that DDP keeps equal on all ranks, and are not."""

from __future__ import annotations

from ddp_lint.verify.causes import written_alone
from ddp_lint.verify.compare import Desync, averaged_now_and_then, compared, desyncs, spoken
from ddp_lint.verify.oracles import Case, Opinion, real
from ddp_lint.verify.trace import COPY, Write


def compare(case: Case, what: str, when: tuple[str, ...], wraps: tuple[str, ...] = ("ddp",)) -> Opinion:
    """Fires at the first moment at which `what` differs between the ranks."""
    found = next(desyncs(case.traces, what, when, wraps), None)
    if found:
        ranks = " and ".join(f"rank {rank}" for rank in found.ranks)
        text = f"{what} differ between {ranks} {moment(found)}: {spoken(found.names)}"
        writes = written_alone(case.traces, found)
        if writes and not any(_speaks_of(case, write) for write in writes.values()):
            rank, write = next(iter(writes.items()))
            elsewhere = f"{write.op} at line {write.frames[0].line} writes {write.name} on rank {rank} only"
            return Opinion(doubt=f"{text}; another line causes that: {elsewhere}")
        return Opinion((case.evidence(what.removesuffix("s"), text, linked=case.speaks_of(found.names)),))
    looked = compared(case.traces, what, when, wraps)
    if not looked.times and averaged_now_and_then(case.traces):
        return Opinion(blind=f"parameters are averaged by hand now and then: in between {what} differ on purpose")
    if not looked.times:
        return Opinion(blind=f"no {what} of a model wrapped with {' or '.join(wraps)} to compare between the ranks")
    return Opinion(silent=f"{what} were equal on all ranks, {looked}")


def _speaks_of(case: Case, write: Write) -> bool:
    """The finding is about what happens here, or names this very line."""
    at = write.frames[0]
    return case.hit(write) is not None or (real(at.path), at.line) in case.situation.named


def moment(desync: Desync) -> str:
    if desync.wrap == COPY and desync.when != "at_end":
        return "from its first forward on" if desync.when == "after_wrap" else f"after optimizer step {desync.step}"
    relation = {"before_step": "before", "after_step": "after"}.get(desync.when)
    if not relation:
        return desync.when.replace("_", " the ")
    since = " since Join ended" if desync.joins else ""
    if relation == "after" and not desync.update and not since:
        return "before the first optimizer step"
    return f"{relation} optimizer step {desync.update + (relation == 'before')}{since}"
