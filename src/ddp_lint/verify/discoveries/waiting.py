"""Ranks that wait outside of a mismatch: for a lock, a key, a group, or in the wrong thread or process."""

from __future__ import annotations

from collections.abc import Iterator

from ddp_lint.verify.branches import polling
from ddp_lint.verify.damage import Cause
from ddp_lint.verify.discoveries._evidence import discovery
from ddp_lint.verify.match import Mismatch, describe, place, present
from ddp_lint.verify.options import RankOutcome
from ddp_lint.verify.results import Discovery, Examined
from ddp_lint.verify.trace import Call, Crossing, Frame, Orphaned, Stall
from ddp_lint.verify.wording import at_line


def crossing_threads(examined: Examined) -> Iterator[Discovery]:
    """A thread that calls on a group while another one is in a call on it: the first time."""
    for outcome in examined.run.ranks:
        event = next(outcome.trace.of(Crossing), None)
        if event is not None:
            message = f"rank {outcome.rank} calls {event.op} in thread {event.thread} while another thread is in "
            message += f"{event.amid}{at_line(next(iter(event.earlier), None))} of the same group"
            yield discovery(
                examined, ("race", "sequence"), message, event.site, Cause.of("two-threads"), rank=outcome.rank
            )
            return


def calls_of_forks(examined: Examined) -> Iterator[Discovery]:
    """A process that a rank has forked calls on the rank's group: the first one."""
    for outcome in examined.run.ranks:
        event = next(outcome.trace.of(Orphaned), None)
        if event is not None:
            message = f"a process that rank {outcome.rank} has forked calls {event.op} on a group of the rank's"
            cause = Cause.of("forked")
            yield discovery(examined, ("stall", "sequence"), message, event.site, cause, rank=outcome.rank)
            return


def stuck_elsewhere(examined: Examined, first: Mismatch) -> Discovery | None:
    """A rank that is stuck outside of any collective is what its peers wait for: its line is the place."""
    for outcome in examined.run.ranks:
        waiting = present(first.calls)
        frame = outcome.last.frame
        if outcome.rank in first.absent and outcome.how == "stalled" and not first.direct and frame is not None:
            rank, call = waiting[0]
            message = (
                f"rank {outcome.rank} is stuck at line {frame.line} in {frame.function}; "
                f"rank {rank} waits for it in {describe(call)} (line {place(call)[1]})"
            )
            stall = outcome.trace.last(Stall)
            locked = stall is not None and stall.reason == "lock"
            cause = Cause.of("lock") if locked else _keyless(outcome, frame) or _polls(frame)
            return discovery(examined, ("stall", "stall"), message, frame, cause, rank=outcome.rank)
    return None


def _keyless(outcome: RankOutcome, frame: Frame) -> Cause | None:
    """It waits for a key of a store."""
    call = next((call for call in reversed([*outcome.trace.calls("store")]) if call.site == frame), None)
    return Cause.of("key", **call.arguments) if call is not None else None


def _polls(frame: Frame) -> Cause | None:
    """It looks again and again for what does not come."""
    loop = polling(frame)
    return Cause.of("polling", why=loop) if loop else None


def stalls_of(examined: Examined) -> Iterator[Discovery]:
    for outcome in examined.run.ranks:
        if outcome.how == "stalled":
            waiting = f" in {outcome.last.collective}" if outcome.last.collective else ""
            joining = _joining(examined, outcome)
            message = f"rank {outcome.rank} is stuck{waiting or joining}"
            cause = _why_incomplete(outcome) if joining and not waiting else None
            frame = outcome.last.frame
            yield discovery(examined, ("stall", "stall"), message, frame, cause, rank=outcome.rank)
            return


def _why_incomplete(outcome: RankOutcome) -> Cause:
    call = outcome.trace.last(Call)
    unserved = call.arguments.get("unserved") if call is not None else None
    return Cause.of("unserved", address=unserved) if unserved else Cause.of("too-many-ranks")


def _joining(examined: Examined, outcome: RankOutcome) -> str:
    """It waits for the group to be complete."""
    call = outcome.trace.last(Call)
    if call is None or call.name != "init_process_group":
        return ""
    asked = call.arguments.get("world_size", -1)
    expected = f" for {asked} ranks" if isinstance(asked, int) and asked > examined.world else ""
    return f" in init_process_group, which waits{expected}: {examined.world} were started"
