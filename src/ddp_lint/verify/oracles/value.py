"""Values that are wrong without an error: read before they were complete, or a shard's taken for the whole."""

from __future__ import annotations

import collections
import math
from collections.abc import Iterator

from ddp_lint.verify.oracles import Case, Opinion, real
from ddp_lint.verify.results import Evidence
from ddp_lint.verify.trace import Collective, Frame, Race, Sync, Value

_RELATIVE = 1e-4
#: Values of which every rank must hold the same.
_AGREED = ("clip_grad_norm_", "scale")


def testify(case: Case) -> Opinion:
    fired = [*_races(case), *_disagreements(case)]
    if fired:
        return Opinion(tuple(fired))
    seen = [event for _, event, _ in case.hits(Value)] + [event for _, event, _ in case.hits(Sync)]
    if not seen:
        return Opinion(silent="no value was read here before it was complete, nor from a shard")
    return Opinion(silent="the values read here are those of the whole tensor, the same on all ranks")


def _races(case: Case) -> Iterator[Evidence]:
    """The order of events proves the race; that this time the value was complete already would not disprove it."""
    hits = list(_hits(case))
    waits = {(rank, event.of): event for rank, event, _ in hits if event.waited}
    for rank, event, frame in hits:
        if event.waited:
            continue
        later = waits.get((rank, event.of))
        if event.access == "write":
            text = f"{event.op} wrote into a tensor that an unfinished collective still works on"
        elif later and event.before is not None and later.after is not None and _differ(event.before, later.after):
            text = f"read before wait(): its first element was {event.before:g} then, and {later.after:g} afterwards"
        else:
            text = f"{event.op} read a tensor before the wait() of the collective that fills it"
        yield case.evidence("value", text, rank=rank, frame=frame)


def _hits(case: Case) -> Iterator[tuple[int, Race, Frame]]:
    """Races at the finding's lines, or of a collective that was started there."""
    for trace in case.traces:
        started = {event.n for event in trace.of(Collective) if case.hit(event)}
        for race in trace.of(Race):
            frame = case.hit(race) or (race.site if race.of in started else None)
            if frame is not None:
                yield trace.rank, race, frame


def _disagreements(case: Case) -> Iterator[Evidence]:
    """The k-th value of one place, rank by rank: of shards, or of what the ranks must agree on."""
    table: dict[tuple[str, int, str, int], dict[int, tuple[float, Frame]]] = collections.defaultdict(dict)
    times: collections.Counter[tuple[int, str, int, str]] = collections.Counter()
    for rank, what, number, frame in _numbers(case):
        key = (frame.path, frame.line, what)
        table[(*key, times[(rank, *key)])][rank] = (number, frame)
        times[(rank, *key)] += 1
    for (_, _, what, _), row in table.items():
        numbers = {rank: number for rank, (number, _) in row.items()}
        first = next(iter(numbers.values()))
        if any(_differ(first, number) for number in numbers.values()):
            described = ", ".join(f"{number:g} on rank {rank}" for rank, number in numbers.items())
            frame = next(iter(row.values()))[1]
            linked = frame.line in case.situation.lines and real(frame.path) == case.situation.path
            yield case.evidence("value", f"{what} is {described}", frame=frame, linked=linked)
            return


def _numbers(case: Case) -> Iterator[tuple[int, str, float, Frame]]:
    for trace in case.traces:
        for event in trace.of(Value):
            # The total norm and the scale must be the same on all ranks wherever they are computed.
            if event.local is not None and event.what in _AGREED and event.site:
                yield trace.rank, event.what, event.local, event.site
    for rank, read, frame in case.hits(Sync):
        if read.value is not None and (read.sharded or case.sharded):
            yield rank, f"the value that {read.cause} reads here", read.value, frame


def _differ(a: float, b: float) -> bool:
    return not math.isclose(a, b, rel_tol=_RELATIVE, abs_tol=1e-6) and not (math.isnan(a) and math.isnan(b))
