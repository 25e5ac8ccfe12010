"""Messages that show by themselves that the ranks did different things."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from ddp_lint.diagnose.patterns import prints_in
from ddp_lint.diagnose.records import Diagnosis, Event, Print, Reading, site_of
from ddp_lint.knowledge.signatures import signature
from ddp_lint.verify.trace import Frame

_OF_GRADIENTS = frozenset({"ALLREDUCE", "ALLREDUCE_COALESCED", "REDUCE_SCATTER", "_REDUCE_SCATTER_BASE"})
_ORDER = ("collective-mismatch", "fr-mismatch", "fr-missing-rank", "gloo-size-mismatch", "shape-mismatch-gather")


def diverged(events: Sequence[Event], reading: Reading) -> Diagnosis:
    """From the message with the most information."""
    event = min(events, key=lambda e: (_ORDER.index(e.kind) if e.kind in _ORDER else 9, not e.frames, e.order))
    alike = [e for e in events if e.kind == event.kind]
    prints = {p.rank: p for e in alike for p in prints_in(e.text)}
    rank, subkind = None, ""
    if prints:
        rank, subkind = _of_prints(prints, alike)
        event = next((e for e in alike if e.rank == rank and e.frames), event)
    elif len(event.named) == 1:
        rank = event.named[0]
    if _counted_otherwise(prints):
        known = signature("collective-count")
        return Diagnosis.of(event, known=known, subkind=known.subkind, rank=None, who=calls_text(prints.values()))
    if event.kind == "fr-missing-rank":
        subkind = "rank-conditional"
        if rank is None and reading.size and len(event.named) == reading.size - 1:
            rank = next(iter(set(range(reading.size)) - set(event.named)))
    if event.known is not None and not prints:
        subkind = subkind or event.known.subkind
    if event.kind == "gloo-size-mismatch":
        subkind = subkind or "shape"
    if event.kind in ("fr-mismatch", "fr-missing-rank"):
        telling = [q for q in event.quotes if "missing ranks" in q.text or "error msg" in q.text]
        event.quotes = list(dict.fromkeys([*telling, *event.quotes]))
    if event.kind == "fr-mismatch" and (reading.size or 0) <= 2:
        rank = None  # of two that differ the recorder's own tool blames the second
    if event.kind == "fr-mismatch":
        subkind = "shape" if "SIZE" in event.text else "mismatch"
    # Who aborts says no line; who lost its peer was in the same collective.
    framed = [e for e in (event, *alike, *reading.events) if e.frames and e.role in ("diverged", "secondary", "hang")]
    place = next((e.site.user for e in framed if e.site.user), None) or _library(framed)
    root = (*event.quotes[:8], *(event.code if place is not None and place in event.frames else ()))
    who, what = calls_text(prints.values()), event.text.partition("\n")[0]
    fields = {"subkind": subkind, "rank": rank, "place": place, "root": root, "who": who, "what": what}
    return Diagnosis.of(event, sure="high", **fields)


def _counted_otherwise(prints: dict[int, Print]) -> bool:
    """The two sides are one call, with one size, and only the numbers that the check gives it differ."""
    calls = {(p.op, p.shape, p.dtype) for p in prints.values()}
    numbers = {p.seq for p in prints.values()}
    return len(prints) > 1 and len(calls) == 1 and len(numbers) > 1 and None not in numbers


def _library(events: Sequence[Event]) -> Frame | None:
    """No line of the user's own: the library's that made the call, where it is no general one."""
    return next((site.library for e in events if (site := site_of(e.frames)).library), None)


def calls_text(prints: Any) -> str:
    return "; ".join(f"rank {p.rank} calls {p.op}{f' [{p.shape}]' if p.shape else ''}" for p in sorted(prints))


def _of_prints(prints: dict[int, Print], events: Sequence[Event]) -> tuple[int | None, str]:
    """The rank that is elsewhere, and how the two calls differ."""
    ops = Counter(p.op for p in prints.values())
    if len(prints) == 1:  # the rest of the message is cut off
        return None, "" if any(map(_is_gradient, prints.values())) else "rank-conditional"
    if len(ops) == 1:
        backward = any("backward" in f.function or "run_backward" in f.function for e in events for f in e.frames)
        large = any(_elements(p.shape) > 4096 for p in prints.values())
        return None, "data-dependent-forward" if backward or (large and "ALLREDUCE" in ops) else "shape"
    if len(prints) == 2 and len({p.seq for p in prints.values()} - {None}) == 2:
        return None, "rank-conditional"  # the two have parted before these calls
    rarest = min(ops.values())
    few = [p for p in prints.values() if ops[p.op] == rarest]
    if len(prints) > 2 and len(few) == 1:
        return few[0].rank, "rank-conditional"
    # Of two, the one whose call is no step of training: gradients are what everybody reduces.
    odd = [p for p in prints.values() if not _is_gradient(p)]
    if len(odd) == 1 and len(prints) == 2:
        return odd[0].rank, "rank-conditional"
    zero = [p for p in odd if p.rank == 0]
    return (0 if zero and len(prints) == 2 else None), "rank-conditional"


def _is_gradient(p: Print) -> bool:
    return p.op.upper() in _OF_GRADIENTS and p.dtype not in ("Long", "Int", "Byte", "Bool")


def _elements(shape: str) -> int:
    total = 1
    for part in shape.split(","):
        if part.strip().isdigit():
            total *= int(part)
    return total if shape.strip() else 0
