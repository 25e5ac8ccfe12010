"""The thread that notices a stall, dumps all stacks and ends the rank; and the dump when another rank dies."""

from __future__ import annotations

import json
import os
import pickle
import sys
import threading
import time
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any

from ddp_lint.verify import trace
from ddp_lint.verify.child.recorder import Recorder
from ddp_lint.verify.frames import as_frame, outwards, user_frames
from ddp_lint.verify.spec import STALLED

_POLL = 0.1
#: Seconds that ranks wait for each other's dumps before they end (torchrun ends the others with the first that fails).
_PEER_WAIT = 3.0
#: A rank that is busy in Python or whose peers still move counts as stuck only after this many timeouts.
_BUSY_FACTOR = 6
#: Seconds that a peer may take to import torch.
_START_LIMIT = 90.0
#: Share of the time that the main thread must compute to count as busy (it may have to share the machine).
_BUSY_SHARE = 0.05
#: A rank that another one's death interrupts after this share of the timeout was stuck itself.
_STUCK_SHARE = 0.7
_COMPILERS = ("torch/_dynamo/", "torch/_inductor/", "torch/_functorch/")
_RECORDER_ENTRIES = 5


class _Still:
    """A time in which nothing was recorded: since when, and what the main thread did meanwhile."""

    def __init__(self, since: float, cpu: float, ticks: int = -1) -> None:
        self.since = since
        self.cpu = cpu
        self.ticks = ticks
        self._looks = 0
        self._moves = 0
        self._position: tuple[int, int] | None = None

    def look(self, frame: FrameType | None) -> None:
        """Note whether the thread is at another instruction than at the last look."""
        position = (id(frame), frame.f_lasti) if frame is not None else None
        self._looks += 1
        self._moves += position != self._position
        self._position = position

    @property
    def runs_python(self) -> bool:
        """It was at another instruction at most looks: it is not stuck in one call."""
        return self._moves > self._looks / 2


class Watchdog:
    """Polls the recorder's ticks. A rank counts as stuck when no rank of this machine has moved for the timeout:
    one that waits in a collective for a peer that still computes is not stuck."""

    def __init__(self, recorder: Recorder, pending: Callable[[], tuple[int, ...]], flush: Callable[[], None]) -> None:
        self._recorder = recorder
        self._pending = pending
        self._flush = flush
        self._timeout = recorder.spec.timeout
        self._main = threading.main_thread()
        self._dumped = False
        self._dump_lock = threading.Lock()
        self._stopped = threading.Event()
        self._flushed = time.monotonic()

    def start(self) -> None:
        self._beat()
        threading.Thread(target=self._watch, name="ddp-lint-watchdog", daemon=True).start()

    def stop(self) -> None:
        self._stopped.set()

    # ---- the thread

    def _watch(self) -> None:
        began = time.monotonic()
        still = _Still(began, self._main_seconds())
        while not self._stopped.wait(_POLL):
            now = time.monotonic()
            if self._recorder.ticks != still.ticks:
                still = _Still(now, self._main_seconds(), self._recorder.ticks)
                self._beat()
            still.look(sys._current_frames().get(self._main.ident or 0))
            self._flush_often(now)
            seconds = now - still.since
            busy = seconds > self._timeout / 2 and self._busy(still, seconds)
            if busy:
                self._beat()
            ready = self._ready(self._recorder.rank, now - began)
            if self._a_peer_is_dying():
                stuck = ready and seconds >= _STUCK_SHARE * self._timeout
                self.dump("timeout" if stuck else "peer", seconds)
            if seconds < self._timeout or not ready:
                continue
            everywhere = self._stuck_everywhere() and all(self._ready(rank, now - began) for rank in self._peers())
            if (everywhere and not busy) or seconds > max(_BUSY_FACTOR * self._timeout, _START_LIMIT):
                self._end(seconds)

    def _flush_often(self, now: float) -> None:
        if now - self._flushed > 1.0:
            self._flushed = now
            self._flush()

    def _beat(self) -> None:
        self._recorder.marks.path(self._recorder.rank, "beat").touch()

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

    def _busy(self, still: _Still, seconds: float) -> bool:
        """The main thread runs Python, compiles, or (on the CPU: waiting for a GPU costs CPU time too) computes."""
        frame = sys._current_frames().get(self._main.ident or 0)
        compiles = any(part in here.f_code.co_filename for here in outwards(frame) for part in _COMPILERS)
        computes = self._recorder.spec.device == "cpu" and self._main_seconds() - still.cpu > _BUSY_SHARE * seconds
        return compiles or computes or still.runs_python

    def _main_seconds(self) -> float:
        """CPU time of the main thread, where the platform tells."""
        try:
            return time.clock_gettime(time.pthread_getcpuclockid(self._main.ident or 0))
        except (AttributeError, OSError):
            return 0.0

    def _end(self, seconds: float) -> None:
        self.dump("timeout", seconds)
        self.wait_for_peers()
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

    def wait_for_peers(self) -> None:
        """Until every living peer has dumped, for a few seconds at most."""
        marks = self._recorder.marks
        until = time.monotonic() + _PEER_WAIT
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
