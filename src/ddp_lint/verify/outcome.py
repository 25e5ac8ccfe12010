"""How a run ended, read from the ranks' traces, the marks of their supervisors and torchrun's log."""

from __future__ import annotations

import dataclasses
import pathlib
import re
import signal
from collections.abc import Mapping, Sequence
from typing import Any

from ddp_lint.knowledge.signatures import secondary
from ddp_lint.verify.frames import is_user
from ddp_lint.verify.match import Ending, Kind, mismatches
from ddp_lint.verify.options import Last, RankOutcome
from ddp_lint.verify.spec import STALLED, Marks
from ddp_lint.verify.trace import Call, Collective, Done, Event, Exit, Frame, Raised, Stall, Start, Trace
from ddp_lint.verify.wording import of_ranks, on_one_line

_FAULT_FRAME = re.compile(r'File "(?P<path>[^"]+)", line (?P<line>\d+) in (?P<function>.+)')
_NO_PEER = "stuck in a call that no peer answers"
_PORT_IN_USE = re.compile(r"EADDRINUSE|address already in use", re.IGNORECASE)
#: Characters of a message that a table has room for.
_SHOWN = 200
#: Where a rank was that neither ended nor ran its watchdog, by whether the last line of its program had run.
_WHERE = {True: "in the teardown after its last line", False: "where the watchdog could not end it"}
#: What a run is called by what happened to the rank that failed first.
_OUTCOMES = {
    "stalled": "hang",
    "slow": "slow",
    "oom": "oom",
    "signal": "crash",
    "exception": "exception",
    "exit": "exit",
    "not_started": "not_started",
}
#: What the end of a rank says of the calls that it did not make; of the others each counts as failed.
_ENDINGS = {
    "completed": Ending.COMPLETED,
    "stalled": Ending.STALLED,
    "stopped": Ending.UNKNOWN,
    "not_started": Ending.UNKNOWN,
}
#: Seconds by which the time of a file may lie before that of an event that was written before it.
_COARSE = 0.02
#: What a rank does itself; the rest of a trace may be written on its way out.
_STEPS = Call | Collective | Done | Exit | Raised


def rank_outcome(directory: pathlib.Path, rank: int) -> RankOutcome:
    """How one rank ended, from what it left in the run's directory."""
    marks = Marks(directory)
    diverged = marks.time(rank, "diverged")
    trace = _until(diverged, Trace.load(directory, rank))
    end = marks.content(rank, "exit")
    code = end.get("code")
    name = _signal_name(-code) if code is not None and code < 0 else ""
    how, message = _how(trace, end, code, name)
    if how in ("completed", "exit") and 0 < diverged < max(marks.time(rank, "over"), float(end.get("time", 0.0))):
        how, message = "stalled", _NO_PEER  # it was stuck until its peers were ended
    if marks.has(rank, "overdue") and how in ("completed", "stopped", "signal"):
        how, message = "stalled", f"hung outside of Python code, {_WHERE[marks.has(rank, 'leaving')]}"
    if how == "stalled":
        message += _in_flight(trace)
    return RankOutcome(
        rank=rank,
        how=how,
        exit=code if code is not None and code >= 0 else None,
        signal=name,
        message=message,
        last=_last(trace, marks.text(rank, "module").strip("\0"), marks.text(rank, "fault")),
        trace=trace,
        log=marks.text(rank, "log"),
        ended_at=_time(trace, end),
    )


def _in_flight(trace: Trace) -> str:
    """The rank's own exception, where it waits in what it calls on the way out (`finally`): nothing else shows it."""
    call = trace.last(Collective)
    if call is None or not call.amid or not call.raised:
        return ""
    at = call.raised[0]
    return f", after it raised {on_one_line(call.amid, _SHOWN)} at line {at.line} in {at.function}"


def _until(diverged: float, trace: Trace) -> Trace:
    """Without what the rank did after it had to end (seconds since the epoch; 0: it had not).

    The peers' ends fail the calls that it waits in: a thread lets go, and the program goes on to the next call.
    """
    if not diverged:
        return trace
    kept = (event for event in trace.events if event.t <= diverged + _COARSE or not isinstance(event, _STEPS))
    return dataclasses.replace(trace, events=tuple(kept))


def _time(trace: Trace, end: Mapping[str, Any]) -> float:
    """When the rank's fate was sealed: a rank that raised or left waits for its peers before its process ends."""
    fatal = [event.t for event in trace.events if isinstance(event, Exit | Stall) or _uncaught(event)]
    return min([*fatal, float(end.get("time", float("inf")))])


def _uncaught(event: Event) -> bool:
    # What a worker of a DataLoader raised is raised again in the rank.
    return isinstance(event, Raised) and event.where in ("main", "worker")


def _raised(trace: Trace) -> Raised | None:
    return next((event for event in trace.of(Raised) if _uncaught(event)), None)


def _how(trace: Trace, end: Mapping[str, Any], code: int | None, name: str) -> tuple[str, str]:
    """The rank's end in one word and in one line."""
    raised = _raised(trace)
    stall = next((event for event in trace.of(Stall) if event.stuck or event.reason == "slow"), None)
    left = trace.last(Exit)
    # A rank that has to end may raise or continue before it does: its peers have closed their connections.
    if stall is not None and (raised is None or raised.n > stall.n):
        return _describe_stall(stall)
    if trace.ended:
        return "completed", f"completed, then {name}" if name else "completed"
    if raised is not None:
        return "exception", f"{raised.type}: {_first_line(raised.message)}"
    if code is None and trace.last(Start) is None:
        return "not_started", "never started"
    if code is None or (end.get("stopped") and code is not None and code < 0):
        return "stopped", "was ended after another rank failed"
    if end.get("oom") and name == "SIGKILL":
        return "oom", "ended by the kernel's OOM killer"
    if code == STALLED:
        return "stopped", "waited for a rank that is slow"
    if name:
        return "signal", f"ended by {name}"
    if trace.last(Start) is None:
        return "not_started", f"ended with exit code {code} before it began"
    return "exit", f"left by {left.how}({left.status})" if left else f"left with exit code {code}"


def _describe_stall(stall: Stall) -> tuple[str, str]:
    if stall.reason == "slow":
        doing = stall.doing or "moves"
        return "slow", f"is slow, not stuck: it still {doing} after {stall.seconds:.0f} s; raise --timeout"
    if stall.reason == "lock":
        return "stalled", "waits for a lock that no remaining thread can release"
    if stall.reason == "mismatch":
        return "stalled", _NO_PEER
    return "stalled", f"no progress for {stall.seconds:.0f} s"


def aligned(ranks: Sequence[RankOutcome]) -> tuple[dict[int, tuple[Collective, ...]], dict[int, Ending]]:
    """Each rank's collectives, and what its end says of the calls that it did not make: what a rank would have called
    that the launcher stopped is unknown, not missing."""
    streams = {one.rank: tuple(one.trace.of(Collective)) for one in ranks}
    return streams, {one.rank: _ENDINGS.get(one.how, Ending.FAILED) for one in ranks}


def left_waiting(ranks: tuple[RankOutcome, ...]) -> tuple[RankOutcome, ...]:
    """The same with those ranks stalled that wait for one that completed without them.

    gloo raises as soon as its connection is closed, and NCCL lets them wait: it is the same hang.
    """
    absent = {}
    for mismatch in mismatches(*aligned(ranks)):
        ended = {one.rank for one in ranks if one.how == "completed"}
        if mismatch.kind is Kind.MISSING and ended.issuperset(mismatch.absent):
            absent.update({(rank, call.n): mismatch.absent for rank, call in mismatch.calls.items() if call})
    return tuple(_waiting(one, absent.get((one.rank, _latest(one)), ())) for one in ranks)


def ended_by_the_user(ranks: tuple[RankOutcome, ...]) -> tuple[RankOutcome, ...]:
    """The same without a rank that torchrun would have ended as another one failed."""
    return tuple(dataclasses.replace(one, message="interrupted") if one.how == "stopped" else one for one in ranks)


def ended_by_us(ranks: tuple[RankOutcome, ...]) -> tuple[RankOutcome, ...]:
    """The same where the launcher gave the run up: how the ranks ended says nothing of them."""
    given_up = ("signal", "stopped", "stalled")
    return tuple(
        dataclasses.replace(one, how="stopped", message="was given up") if one.how in given_up else one for one in ranks
    )


def _latest(rank: RankOutcome) -> int:
    call = rank.trace.last(Collective)
    return call.n if call else -1


def _waiting(rank: RankOutcome, absent: tuple[int, ...]) -> RankOutcome:
    if not absent or rank.how != "exception" or not secondary(rank.message):
        return rank
    peers = of_ranks(absent)
    # torch's words without the place in its own source and its advice: "Connection closed by peer [...]".
    error = re.sub(r"\[[^\]]*:\d+\]\s*", "", rank.message).partition(". ")[0]
    return dataclasses.replace(
        rank, how="stalled", message=f"waits for {peers}, which ended; the call failed with: {error}"
    )


def run_outcome(ranks: tuple[RankOutcome, ...], code: int, log: pathlib.Path) -> tuple[str, str]:
    """The run in one word and in one line."""
    text = log.read_text(encoding="utf-8", errors="replace") if log.is_file() else ""
    bound = [rank for rank in ranks if _PORT_IN_USE.search(rank.message)]
    if bound or (_PORT_IN_USE.search(text) and not any(rank.trace.events for rank in ranks)):
        return "port_in_use", "the port of the rendezvous is in use: it needs another one (MASTER_PORT, --master-port)"
    if ranks and all(rank.how == "completed" for rank in ranks):
        idle = "" if any(rank.trace.communicates for rank in ranks) else _idle(ranks[0])
        return "completed", f"completed{idle}"
    if all(rank.how == "not_started" and not rank.trace.events for rank in ranks) and code != 0:
        return "launch_failed", f"torchrun could not start the ranks: {_error_line(text)}"
    causes = [rank for rank in ranks if rank.how not in ("completed", "stopped")]
    if not causes:
        return _given_up(ranks), _describe_ends(list(ranks))
    first = min(causes, key=_precedence)
    return _OUTCOMES[first.how], _describe_ends(sorted(ranks, key=lambda rank: rank is not first))


def _given_up(ranks: Sequence[RankOutcome]) -> str:
    """No rank failed by itself: they gave each other up, or something from outside ended them."""
    stalls = [stall for rank in ranks for stall in rank.trace.of(Stall)]
    if not stalls:
        return "launch_failed"
    return "slow" if any(stall.doing for stall in stalls) else "hang"


def _precedence(rank: RankOutcome) -> tuple[bool, bool, float, int]:
    """The cause comes first: a rank that is slow lets its peers wait, one that fails lets them fail."""
    return rank.how != "slow", secondary(rank.message), rank.ended_at, rank.rank


def _describe_ends(ranks: list[RankOutcome]) -> str:
    """How each rank ended; one text for ranks whose texts differ in numbers only."""
    alike: dict[str, list[RankOutcome]] = {}
    for rank in ranks:
        alike.setdefault(re.sub(r"\d+", "0", rank.message), []).append(rank)
    return "; ".join(
        f"rank{'s' * (len(same) > 1)} {' and '.join(str(rank.rank) for rank in same)} {same[0].message}"
        for same in alike.values()
    )


def _idle(rank: RankOutcome) -> str:
    """What a rank printed that completed without a process group: many scripts leave where GPUs are missing."""
    printed = [line.strip() for line in rank.log.splitlines() if line.strip()]
    last = f"; the last that rank {rank.rank} printed: {printed[-1][:200]}" if printed else ""
    return f" without a process group: nothing distributed ran{last}"


def _last(trace: Trace, module: str, fault: str) -> Last:
    """Where the rank was last seen. What a crash handler wrote is the latest of all."""
    collective = trace.last(Collective)
    stall = trace.last(Stall)
    raised = _raised(trace)
    frames = [event for event in trace.events if event.frames and not event.attributed]
    crash = _crash_frames(fault)
    here: Frame | None = frames[-1].site if frames else None
    for seen in (stall, raised):
        here = seen.site or here if seen else here
    return Last(
        collective=_words(collective) if collective else "",
        module=module,
        frame=crash[0] if crash else here,
    )


def _words(event: Collective) -> str:
    sizes = ", ".join(f"{tensor.dtype}{list(tensor.shape)}" for tensor in event.tensors[:3])
    return f"{event.op}({sizes}) #{event.seq} on {event.group}"


def _crash_frames(fault: str) -> list[Frame]:
    """The user's frames in a dump of faulthandler, innermost first (the thread that crashed comes first)."""
    found = [_FAULT_FRAME.search(line) for line in fault.splitlines()]
    frames = [Frame(match["path"], int(match["line"]), match["function"]) for match in found if match]
    return [frame for frame in frames if is_user(frame.path)]


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _first_line(text: str) -> str:
    return on_one_line(next((line for line in text.splitlines() if line.strip()), ""), _SHOWN)


def _error_line(text: str) -> str:
    """The last line of a log that names an error."""
    lines = [line.strip() for line in text.splitlines() if re.search(r"\w*(Error|error:)", line)]
    return on_one_line(lines[-1], _SHOWN) if lines else _first_line(text[-300:]) or "no message"
