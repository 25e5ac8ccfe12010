"""The thread that notices a stall, dumps all stacks and ends the rank; and the dump when another rank dies."""

from __future__ import annotations

import json
import os
import pickle
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from ddp_lint.verify import trace
from ddp_lint.verify.child.observers.progress import Sleeps, Still
from ddp_lint.verify.child.recorder import Recorder
from ddp_lint.verify.frames import as_frame, outwards, user_frames
from ddp_lint.verify.spec import STALLED, longest_wait

_POLL = 0.1
#: Seconds that ranks wait for each other's dumps before they end (torchrun ends the others with the first that fails).
_PEER_WAIT = 3.0
#: The same where the launcher told all ranks at once that their calls have parted: one that is silent by then is in
#: a call that keeps the interpreter (NCCL's teardown), and its stacks come from the signal that ends it.
_TOLD_WAIT = 1.0
#: Seconds that a peer may take to import torch.
_START_LIMIT = 90.0
#: A rank that another one's death interrupts after this share of the timeout was stuck itself.
_STUCK_SHARE = 0.7
_RECORDER_ENTRIES = 5


class Watchdog:
    """Polls the recorder's ticks. A rank counts as stuck when no rank of this machine has moved for the timeout:
    one that waits in a collective for a peer that still computes is not stuck."""

    def __init__(self, recorder: Recorder, pending: Callable[[], tuple[int, ...]], flush: Callable[[], None]) -> None:
        self._recorder = recorder
        self._pending = pending
        self._flush = flush
        self._timeout = recorder.spec.timeout
        self._main = threading.main_thread()
        self._sleeps = Sleeps(recorder, longest_wait(recorder.spec.timeout))
        #: How often the processor and the disk are asked what this rank does: asking costs more than waiting.
        self._asked = 0.0
        self._doing = ""
        self._dumped = False
        self._dump_lock = threading.Lock()
        self._stopped = threading.Event()
        self._flushed = time.monotonic()

    def start(self) -> None:
        self._sleeps.install()
        self._beat()
        threading.Thread(target=self._watch, name="ddp-lint-watchdog", daemon=True).start()

    def stop(self) -> None:
        self._stopped.set()

    # ---- the thread

    def _watch(self) -> None:
        began = time.monotonic()
        main = self._main.ident or 0
        still = Still(began, main)
        while not self._stopped.wait(_POLL):
            now = time.monotonic()
            if self._recorder.ticks != still.ticks:
                still = Still(now, main, self._recorder.ticks)
                self._doing = ""
                self._beat()
            still.look()
            self._flush_often(now)
            seconds = now - still.since
            if seconds > self._timeout / 2 and self._busy(still, seconds):
                self._beat()
            ready = self._ready(self._recorder.rank, now - began)
            if self._recorder.marks.has(self._recorder.rank, "parted"):
                self._end("mismatch", seconds)
            if self._a_peer_is_dying():
                stuck = ready and seconds >= _STUCK_SHARE * self._timeout and not self._doing
                self.dump("timeout" if stuck else "peer", seconds)
            if seconds < self._timeout or not ready:
                continue
            everywhere = self._stuck_everywhere() and all(self._ready(rank, now - began) for rank in self._peers())
            if everywhere and not self._doing:
                self._end("timeout", seconds)
            elif seconds > longest_wait(self._timeout):
                self._end("slow" if self._doing else "peer" if self._a_peer_is_busy() else "timeout", seconds)

    def _flush_often(self, now: float) -> None:
        if now - self._flushed > 1.0:
            self._flushed = now
            self._flush()

    def _beat(self) -> None:
        """Tell that this rank moves, or what it is busy with."""
        self._recorder.marks.set(self._recorder.rank, "beat", self._doing)

    def _a_peer_is_busy(self) -> bool:
        return any(self._recorder.marks.path(rank, "beat").stat().st_size for rank in self._peers())

    def _peers(self) -> list[int]:
        return [rank for rank in self._recorder.local_ranks if rank != self._recorder.rank]

    def _ready(self, rank: int, waited: float) -> bool:
        """The rank has imported torch (or has ended), or has had its time to."""
        marks = self._recorder.marks
        return marks.has(rank, "ready") or marks.has(rank, "exit") or waited > _START_LIMIT

    def _stuck_everywhere(self) -> bool:
        """No living peer has moved within the timeout."""
        marks = self._recorder.marks
        for rank in self._peers():
            if marks.has(rank, "over") or marks.has(rank, "exit"):
                continue
            if time.time() - marks.time(rank, "beat") < self._timeout:
                return False
        return True

    def _a_peer_is_dying(self) -> bool:
        return not self._dumped and any(self._recorder.marks.has(rank, "dying") for rank in self._peers())

    def _busy(self, still: Still, seconds: float) -> bool:
        """The rank computes, reads, compiles, runs Python or sleeps for a time that it has set itself.

        On CUDA a rank that waits for its GPU computes all the time: there it counts only where no collective is
        under way.
        """
        now = time.monotonic()
        if now < self._sleeps.until:
            self._doing = "sleeps"
        elif now - self._asked > 1.0:
            self._asked = now
            counts = self._recorder.spec.device == "cpu" or not self._pending()
            self._doing = still.doing(seconds, computing_counts=counts)
        return bool(self._doing)

    def _end(self, reason: str, seconds: float) -> None:
        self.dump(reason, seconds)
        self.wait_for_peers(_TOLD_WAIT if reason == "mismatch" else _PEER_WAIT)
        os._exit(STALLED)

    # ---- dumps

    def dump(self, reason: str, seconds: float) -> None:
        """Write the stacks of all threads, once; the mark tells the peers that the dump is there."""
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

    def die(self) -> None:
        """This rank is about to end abnormally: let the peers dump first."""
        self._recorder.marks.set(self._recorder.rank, "dying")
        self.wait_for_peers()

    def wait_for_peers(self, limit: float = _PEER_WAIT) -> None:
        """Until every living peer has dumped, for `limit` seconds at most."""
        marks = self._recorder.marks
        until = time.monotonic() + limit
        self._recorder.marks.set(self._recorder.rank, "dying")
        while time.monotonic() < until:
            waiting = [
                rank
                for rank in self._peers()
                if marks.has(rank, "ready")
                and not any(marks.has(rank, mark) for mark in ("dumped", "dying", "over", "exit"))
            ]
            if not waiting:
                return
            time.sleep(0.05)


def flight_recorder() -> tuple[Mapping[str, Any], ...]:
    """The last entries of torch's Flight Recorder: on NCCL the states of collectives, which no Python object tells.

    Builds differ in which of the two dumps is filled: both are asked.
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
