"""The thread that notices a stall, dumps all stacks and ends the rank; and the dump when another rank dies."""

from __future__ import annotations

import json
import os
import pickle
import sys
import threading
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any

from ddp_lint.verify import trace
from ddp_lint.verify.child.observers.locks import waits_for_ever, waits_in_calls
from ddp_lint.verify.child.observers.progress import Activity, Peers, Sleeps
from ddp_lint.verify.child.recorder import Recorder
from ddp_lint.verify.frames import as_frame, outwards, user_frames
from ddp_lint.verify.polling_delay import Lateness
from ddp_lint.verify.spec import STALLED, longest_wait

#: Seconds between two polls, and by how many one may be late before that counts as a stall of the machine.
_POLL, _SLACK = 0.1, 0.5
#: Seconds that ranks wait for each other's dumps before they end (torchrun ends the others with the first that fails).
_PEER_WAIT = 3.0
#: The same where the launcher notified all ranks at once that their calls have diverged: one that is silent by then is
#: in a call that keeps the interpreter (NCCL's teardown), and its stacks come from the signal that ends it.
_NOTIFIED_WAIT = 1.0
#: Seconds that a peer may take to import torch.
_START_LIMIT = 90.0
#: Marks of a rank that ends, and of one that has nothing more to say.
_ENDED = ("dying", "over", "exit")
_SILENT = ("dumped", *_ENDED)
#: A rank that another one's death interrupts after this share of the timeout was stuck itself.
_STUCK_SHARE = 0.7
#: Seconds without progress after which it is checked whether a rank waits for a lock, or in collectives alone.
_LOCKED_AFTER = 0.3
_RECORDER_ENTRIES = 5
#: Seconds between two questions what this rank does, which cost more than waiting; and their least number in a timeout.
_ASK, _ASKED = 2.0, 4


def verdict(idle: float, recorded: float, peers_idle: float, timeout: float) -> str:
    """Why a rank has to end: "timeout" (no rank moves), "slow" (it is busy for too long), "peer" (it waits for one that
    moves), "" as long as it need not.

    `idle` and `peers_idle` are the seconds since this rank and since the liveliest of its peers recorded something or
    was busy, `recorded` those since this rank recorded something.
    """
    if min(idle, peers_idle) >= timeout:
        return "timeout"
    if recorded < longest_wait(timeout):
        return ""
    return "slow" if idle < timeout else "peer"


def reason_to_end(idle: float, timeout: float, peers: Collection[str]) -> str:
    """Why a rank ends because peers do, for the reasons `peers` ("failed" for an exception): it was stuck as well, or
    it is the slow one that they gave up."""
    if idle >= _STUCK_SHARE * timeout:
        return "timeout"
    return "slow" if "peer" in peers else "peer"


class Watchdog:
    """Polls the recorder's ticks. A rank counts as stuck when no rank of this machine has moved for the timeout:
    one that waits in a collective for a peer that still computes is not stuck."""

    def __init__(self, recorder: Recorder, pending: Callable[[], tuple[int, ...]], flush: Callable[[], None]) -> None:
        self._recorder = recorder
        self._pending = pending
        self._flush = flush
        self._timeout = recorder.spec.timeout
        self._main = threading.main_thread()
        self._sleeps = Sleeps(recorder, longest_wait(recorder.spec.timeout), 2 * recorder.spec.timeout)
        self._doing = ""
        #: When the activity of this rank was last sampled, and when it was last seen to record or to do something.
        self._asked = self._moved = time.monotonic()
        self._late = Lateness(_POLL, _SLACK)
        self._others = Peers(recorder.marks)
        #: When all threads of this rank were seen to wait in collectives.
        self._waits = 0.0
        self._locked = False
        self._dumped = False
        self._dump_lock = threading.Lock()
        self._stopped = threading.Event()
        self._flushed = time.monotonic()

    def start(self) -> None:
        self._sleeps.install()
        self._recorder.marks.set(self._recorder.rank, "beat")
        threading.Thread(target=self._watch, name="ddp-lint-watchdog", daemon=True).start()

    def stop(self) -> None:
        self._stopped.set()

    # ---- the thread

    def _watch(self) -> None:
        began = recorded = time.monotonic()
        activity = Activity(self._main.ident or 0)
        self._others.register(self._recorder.rank)
        ticks = -1
        while not self._stopped.wait(_POLL):
            now = time.monotonic()
            self._late.poll(now)
            if self._recorder.ticks != ticks:
                ticks = self._recorder.ticks
                recorded = self._moved = now
                self._recorder.marks.set(self._recorder.rank, "beat")
            activity.look()
            self._ask(activity, now)
            written = self._recorder.ticks
            self._flush_often(now)
            if ticks == written and self._recorder.ticks == written + 1:
                ticks += 1  # what is written here is no progress of the rank
            self._decide(now, recorded, now - began)

    def _decide(self, now: float, recorded: float, waited: float) -> None:
        """End the rank, or dump its stacks, where there is a reason to. `recorded`: when it recorded something last."""
        idle, silent = self._late.age(self._moved, now), self._late.age(recorded, now)
        self._look_for_lock(idle)
        if self._recorder.marks.has(self._recorder.rank, "diverged"):
            self._end("lock" if self._locked else "mismatch", silent)
        dying = self._dying()
        if dying and not self._dumped:
            ready = self._ready(self._recorder.rank, waited)
            self.dump(reason_to_end(idle if ready else 0.0, self._timeout, dying), silent)
        if all(self._ready(rank, waited) for rank in self._recorder.local_ranks):
            reason = verdict(idle, silent, self._peers_idle(now), self._timeout)
            if reason:
                self._end(reason, idle if reason == "timeout" else silent)

    def _ask(self, activity: Activity, now: float) -> None:
        """Note whether the rank computes, reads, compiles, runs Python or sleeps for a time that it has set itself.

        On CUDA a rank that waits for its GPU computes all the time: there it counts only where no collective is
        under way.
        """
        sleeps = now < self._sleeps.until
        if now - self._asked < min(_ASK, self._timeout / _ASKED):
            return
        counts = self._recorder.spec.device == "cpu" or not self._pending()
        self._doing = activity.ask(now - self._asked, computing_counts=counts) or ("sleeps" if sleeps else "")
        self._asked = now
        if self._doing:
            self._moved = now
            self._recorder.marks.set(self._recorder.rank, "busy")

    def _look_for_lock(self, idle: float) -> None:
        if idle > _LOCKED_AFTER and not self._locked:
            self._locked = waits_for_ever(sys._current_frames().get(self._main.ident or 0))
            if self._locked:
                self._recorder.marks.set(self._recorder.rank, "locked")
        if idle > _LOCKED_AFTER and self._recorder.spec.device == "cpu" and self._waits < self._moved:
            waits = waits_in_calls()
            if waits:
                self._waits = time.monotonic()
                self._recorder.marks.set(self._recorder.rank, "waits", waits)

    def _flush_often(self, now: float) -> None:
        if now - self._flushed > 1.0:
            self._flushed = now
            self._flush()

    def _peers(self) -> list[int]:
        return [rank for rank in self._recorder.local_ranks if rank != self._recorder.rank]

    def _ready(self, rank: int, waited: float) -> bool:
        """The rank has imported torch (or has ended), or has had its time to."""
        marks = self._recorder.marks
        return marks.has(rank, "ready") or marks.has(rank, "exit") or waited > _START_LIMIT

    def _peers_idle(self, now: float) -> float:
        """Seconds since a peer has moved, or has ended; no end where there is none.

        A peer shows it by its marks. Where they grow old, its CPU time is read: its watchdog may get none. What one
        that has just ended did last may not have woken this rank yet.
        """
        marks = self._recorder.marks
        ended = {rank: max(marks.time(rank, "over"), marks.time(rank, "exit")) for rank in self._peers()}
        living = [rank for rank, at in ended.items() if not at]
        last = {rank: max(marks.moved(rank), at) for rank, at in ended.items()}
        moved = {rank: max(now - (time.time() - at), self._others.worked(rank)) for rank, at in last.items()}
        ages = {rank: self._late.age(at, now) for rank, at in moved.items()}
        often = min(_ASK, self._timeout / _ASKED)
        if self._recorder.spec.device == "cpu" and ages and min(ages.values()) > often:
            self._others.ask(living, now, often)
        return min(ages.values(), default=float("inf"))

    def _dying(self) -> tuple[str, ...]:
        """The reasons of peers that have announced their end."""
        return tuple(filter(None, (self._recorder.marks.text(rank, "dying") for rank in self._peers())))

    def _end(self, reason: str, seconds: float) -> None:
        self.dump(reason, seconds)
        self.wait_for_peers(reason, _NOTIFIED_WAIT if reason in ("mismatch", "lock") else _PEER_WAIT)
        os._exit(STALLED)

    # ---- dumps

    def dump(self, reason: str, seconds: float) -> None:
        """Write the stacks of all threads, once; the mark shows the peers that the dump is there."""
        with self._dump_lock:
            if self._dumped:
                return
            self._dumped = True
            self._flush()
            names = {thread.ident: thread.name for thread in threading.enumerate()}
            current = sys._current_frames()
            me = threading.get_ident()
            self._recorder.emit(
                trace.Stall,
                frames=user_frames(current.get(self._main.ident or 0)),
                reason=reason,
                doing=self._doing,
                seconds=seconds,
                pending=self._pending(),
                stacks={
                    "main" if ident == self._main.ident else names.get(ident, str(ident)): [
                        as_frame(here) for here in outwards(frame)
                    ]
                    for ident, frame in current.items()
                    if ident != me
                },
                recorder=flight_recorder(),
            )
            self._recorder.marks.set(self._recorder.rank, "dumped")

    def die(self, *, others_may_follow: bool = False) -> None:
        """This rank is about to end abnormally: let the peers dump first, or fail as it does where they may."""
        self.wait_for_peers("failed", enough=_ENDED if others_may_follow else _SILENT)

    def wait_for_peers(self, reason: str, limit: float = _PEER_WAIT, enough: Collection[str] = _SILENT) -> None:
        """Tell the peers why this rank ends, and wait until all of them have set one of the marks `enough`, for `limit`
        seconds at most."""
        marks = self._recorder.marks
        until = time.monotonic() + limit
        marks.set(self._recorder.rank, "dying", reason)
        while time.monotonic() < until:
            waiting = [
                rank
                for rank in self._peers()
                if marks.has(rank, "ready") and not any(marks.has(rank, mark) for mark in enough)
            ]
            if not waiting:
                return
            time.sleep(0.05)


def flight_recorder() -> tuple[Mapping[str, Any], ...]:
    """The last entries of torch's Flight Recorder: on NCCL the states of collectives, which no Python object has.

    Builds differ in which of the two dumps is filled: both are read.
    """
    if "torch" not in sys.modules:
        return ()
    try:
        from torch._C import _distributed_c10d as c10d
    except ImportError:
        return ()
    for name in ("_dump_fr_trace", "_dump_nccl_trace"):
        if not hasattr(c10d, name):
            continue
        try:
            entries = pickle.loads(getattr(c10d, name)(True, False, False)).get("entries", [])
        except (RuntimeError, TypeError, pickle.UnpicklingError):
            continue
        if entries:
            return tuple(json.loads(json.dumps(_entry(entry), default=str)) for entry in entries[-_RECORDER_ENTRIES:])
    return ()


def _entry(entry: Mapping[str, Any]) -> dict[str, Any]:
    keys = ("profiling_name", "state", "collective_seq_id", "input_sizes", "output_sizes", "process_group", "retired")
    return {key: entry[key] for key in keys if key in entry}
