"""Ranks that wait outside of a mismatch: for a lock, a key, a group, or in the wrong thread or process."""

from __future__ import annotations

from collections.abc import Iterator

from ddp_lint.verify.branches import polling
from ddp_lint.verify.discoveries._evidence import evidence_of
from ddp_lint.verify.match import Mismatch, describe, place, present
from ddp_lint.verify.options import RankOutcome
from ddp_lint.verify.results import Discovery, Examined
from ddp_lint.verify.trace import Call, Crossing, Frame, Orphaned, Stall

#: Cause and fix where a rank waits for a lock that nothing releases.
_LOCKED = (
    "no thread is left to release the lock: the thread that took it has not released it (an exception in between?)",
    "use `with lock:`, which always releases it",
)
#: What to do where a rank waits for a key.
_SET_KEY = "set it under the very name, and prefix, that the others use (without a rank in it), on every path"
#: What to do where a rank looks again and again for what does not come.
_WAIT_TOGETHER = "wait in a dist.barrier() that the other rank calls after its part, and use the same path on all ranks"
#: Cause and fix where a group is never complete.
_TOO_MANY = (
    "a group is complete when world_size processes have called init_process_group",
    "pass the number of started processes as world_size, or start those of the other nodes as well",
)
#: Cause and fix where two threads communicate in one group.
_TWO_THREADS = (
    "calls in one group meet in the order in which each rank makes them, and two threads make them in any order",
    "give the thread a separate group: dist.new_group() on all ranks, and group=... in its calls",
)
#: Cause and fix where a process communicates that a rank has forked.
_FORKED = (
    "a process group belongs to the process that created it: in a fork (a DataLoader worker) no peer answers",
    "communicate in the rank itself, and pass the result to the workers",
)


def crossing_threads(examined: Examined) -> Iterator[Discovery]:
    """A thread that calls on a group while another one is in a call on it: the first time."""
    for outcome in examined.run.ranks:
        event = next(outcome.trace.of(Crossing), None)
        if event is not None:
            line = f" (line {event.earlier[0].line})" if event.earlier else ""
            message = f"rank {outcome.rank} calls {event.op} in thread {event.thread} while another thread is in "
            message += f"{event.amid}{line} of the same group"
            evidence = evidence_of(examined, outcome.rank, "sequence", message, event.site)
            yield Discovery("race", message, "", *_TWO_THREADS, evidence=(evidence,))
            return


def calls_of_forks(examined: Examined) -> Iterator[Discovery]:
    """A process that a rank has forked calls on the rank's group: the first one."""
    for outcome in examined.run.ranks:
        event = next(outcome.trace.of(Orphaned), None)
        if event is not None:
            message = f"a process that rank {outcome.rank} has forked calls {event.op} on a group of the rank's"
            evidence = evidence_of(examined, outcome.rank, "sequence", message, event.site)
            yield Discovery("stall", message, "", *_FORKED, evidence=(evidence,))
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
            waits = _LOCKED if stall is not None and stall.reason == "lock" else _keyless(outcome, frame)
            why = waits if waits[0] else (polling(frame), _WAIT_TOGETHER)
            why = why if why[0] else ("", "")
            evidence = (evidence_of(examined, outcome.rank, "stall", message, frame),)
            return Discovery("stall", message, "", *why, evidence=evidence)
    return None


def _keyless(outcome: RankOutcome, frame: Frame) -> tuple[str, str]:
    """It waits for a key of a store."""
    call = next((c for c in reversed([*outcome.trace.of(Call)]) if c.name == "store" and c.site == frame), None)
    if call is None:
        return "", ""
    return f"{call.arguments['asks']}() waits until a rank has set {call.arguments['key']!r} in this store", _SET_KEY


def stalls_of(examined: Examined) -> Iterator[Discovery]:
    for outcome in examined.run.ranks:
        if outcome.how == "stalled":
            waiting = f" in {outcome.last.collective}" if outcome.last.collective else ""
            joining = _joining(examined, outcome)
            message = f"rank {outcome.rank} is stuck{waiting or joining}"
            evidence = evidence_of(examined, outcome.rank, "stall", message, outcome.last.frame)
            why = _TOO_MANY if joining and not waiting else ("", "")
            yield Discovery("stall", message, "", *why, evidence=(evidence,))
            return


def _joining(examined: Examined, outcome: RankOutcome) -> str:
    """It waits for the group to be complete."""
    call = outcome.trace.last(Call)
    if call is None or call.name != "init_process_group":
        return ""
    asked = call.arguments.get("world_size", -1)
    expected = f" for {asked} ranks" if isinstance(asked, int) and asked > examined.world else ""
    return f" in init_process_group, which waits{expected}: {examined.world} were started"
