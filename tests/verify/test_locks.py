"""Which waits for a lock can have no end."""

from __future__ import annotations

import _thread
import contextlib
import operator
import queue
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType, SimpleNamespace

import pytest

from ddp_lint.verify.child.observers import locks


def plain(held: threading.Lock) -> None:
    held.acquire()


def inside(held: threading.Lock) -> None:
    owner = SimpleNamespace(lock=held)
    with owner.lock:
        pass


def event(_: threading.Lock) -> None:
    threading.Event().wait()


def limited(held: threading.Lock) -> None:
    held.acquire(timeout=5)


def items(_: threading.Lock) -> None:
    with contextlib.suppress(queue.Empty):
        queue.Queue().get(timeout=5)


def asleep(_: threading.Lock) -> None:
    time.sleep(5)


@pytest.mark.skipif(sys.version_info < (3, 11), reason="tells no positions in a line")
@pytest.mark.parametrize(
    ("wait", "expected"),
    [
        (plain, True),
        (inside, sys.version_info < (3, 14)),
        (event, True),
        (limited, False),
        (items, False),
        (asleep, False),
    ],
)
def test_what_waits_for_ever(
    monkeypatch: pytest.MonkeyPatch, wait: Callable[[threading.Lock], None], expected: bool
) -> None:
    held = threading.Lock()
    monkeypatch.setattr(locks, "_may_release", lambda _: False)
    with held:
        thread = threading.Thread(target=wait, args=(held,), daemon=True)
        thread.start()
        assert found(thread, expected) is expected
        monkeypatch.setattr(locks, "_may_release", lambda _: True)
        assert not locks.waits_for_ever(frame_of(thread)), "another thread may release it"


@pytest.mark.skipif(sys.version_info < (3, 11), reason="has no operator.call")
@pytest.mark.parametrize("runs_python", [False, True])
def test_a_thread_of_autograd_releases_a_lock_only_when_it_runs_python(runs_python: bool) -> None:
    """It is in the list of threads since a hook asked which thread it is on."""
    gate = threading.Lock()
    ended = threading.Lock()
    seen: list[threading.Thread] = []

    def known() -> None:
        seen.append(threading.current_thread())

    def wait() -> None:
        gate.acquire()

    with gate, ended:
        # `list` calls them one after the other, and has no frame of Python itself.
        calls = [known, wait if runs_python else gate.acquire, gate.release, ended.release]
        _thread.start_new_thread(list, (map(operator.call, calls),))
        until = time.monotonic() + 20.0
        while not (seen and (seen[0].ident in sys._current_frames()) is runs_python) and time.monotonic() < until:
            time.sleep(0.01)
        assert isinstance(seen[0], threading._DummyThread) and seen[0] in threading.enumerate()
        assert locks._may_release(seen[0]) is runs_python
        gate.release()
        ended.acquire()  # it has ended
        gate.acquire()


def frame_of(thread: threading.Thread) -> FrameType | None:
    return sys._current_frames().get(thread.ident or 0)


def found(thread: threading.Thread, expected: bool) -> bool:
    """What is told once the thread has come to its wait, which takes as long as the machine takes."""
    until = time.monotonic() + (20.0 if expected else 0.3)
    while time.monotonic() < until:
        if locks.waits_for_ever(frame_of(thread)):
            return True
        time.sleep(0.01)
    return False
