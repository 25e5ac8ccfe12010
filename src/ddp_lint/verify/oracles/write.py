"""Writes to parameters and buffers at the finding's lines, and what became of them.

A write is no damage by itself: the same write on every rank trains right under DDP, an initialisation everywhere. It
is one when a rank wrote another value than its peers, when FSDP drops it, or when backward still needed the old value.
"""

from __future__ import annotations

from collections.abc import Iterator

from ddp_lint.verify.compare import REPLICAS_EQUAL, compared, desyncs, deviation, spoken
from ddp_lint.verify.oracles import Case, Opinion
from ddp_lint.verify.results import Evidence
from ddp_lint.verify.trace import Assign, Frame, Reference, Write

_COMPUTING = ("forward", "between", "backward")


def testify(case: Case) -> Opinion:
    writes = list(_writes(case))
    if not writes:
        return Opinion(silent="no parameter or buffer of the model was written at this line")
    fired = [evidence for rank, event, frame in writes if (evidence := _damage(case, rank, event, frame))]
    fired += _desynchronised(case, {event.name for _, event, _ in writes})
    fired += _deviating(case, {event.name for _, event, _ in writes})
    if fired:
        return Opinion(tuple({evidence.message: evidence for evidence in fired}.values()))
    names = spoken(dict.fromkeys(event.name for _, event, _ in writes))
    wrote = f"wrote {names} {len(writes)} times"
    looked = compared(case.traces, "parameters", REPLICAS_EQUAL, ("ddp",))
    if not looked.times and not case.sharded:
        return Opinion(blind=f"{wrote}, and no wrapper keeps the ranks equal: there was nothing to compare")
    equal = f"the ranks stayed equal ({looked}), " if looked.times else ""
    return Opinion(
        silent=f"{wrote}; {equal}no write was dropped, and backward used no value that had changed since forward"
    )


def _writes(case: Case) -> Iterator[tuple[int, Write | Assign, Frame | None]]:
    yield from case.hits(Write)
    words = case.situation.words
    for trace in case.traces:
        for assign in trace.of(Assign):
            # It is noticed afterwards and has no frame of its own.
            if case.ran and "data" in words:
                yield trace.rank, assign, None
        for write in trace.of(Write):
            # nn.Embedding(max_norm=...) writes in its own forward: the finding is where it was built.
            if "max_norm" in words and "renorm" in write.op and case.hit(write) is None:
                yield trace.rank, write, write.site


def _damage(case: Case, rank: int, event: Write | Assign, frame: Frame | None) -> Evidence | None:
    """What the write alone proves."""
    if not isinstance(event, Write) or event.phase not in _COMPUTING or event.role != "parameter":
        return None
    if event.after_use and event.through_data:
        text = f"{event.op} changed {event.name} after forward had used it: backward computes with the new value"
        return case.evidence("write", text, rank=rank, frame=frame)
    if case.sharded and not event.sharded:
        text = f"{event.op} wrote {event.name} into the copy that FSDP gathers for forward and frees after it: lost"
        return case.evidence("write", text, rank=rank, frame=frame)
    return None


def _desynchronised(case: Case, names: set[str]) -> Iterator[Evidence]:
    for what in ("parameters", "buffers"):
        for desync in desyncs(case.traces, what, REPLICAS_EQUAL, ("ddp",)):
            if names & set(desync.names):
                text = f"written here, {spoken(desync.names)} differ between the ranks after step {desync.update}"
                yield case.evidence("write", text)
                return


def _deviating(case: Case, names: set[str]) -> Iterator[Evidence]:
    for trace in case.traces:
        for reference in trace.of(Reference):
            found = deviation(reference) if reference.repeatable and not reference.error else None
            if found and names & set(found.differences):
                name, difference = found.largest
                text = f"written here; {name} ends up {difference:.2g} away from a single process on the full batch"
                yield case.evidence("write", text, rank=trace.rank)
