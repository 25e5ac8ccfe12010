"""What keeps a rank busy that records nothing."""

from __future__ import annotations

import pathlib
import subprocess
import sys
import threading
import time
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ddp_lint.verify import frames
from ddp_lint.verify.child.observers import progress, watchdog
from ddp_lint.verify.child.recorder import Recorder


def doing(act: Any, *, computing_counts: bool = True) -> str:
    """What the watchdog's thread sees of this one while it acts."""
    seen: list[str] = []
    done = threading.Event()

    def watch() -> None:
        still = progress.Still(time.monotonic(), threading.main_thread().ident or 0)
        began = time.monotonic()
        while not done.wait(0.02):
            still.look()
            seen.append(still.doing(time.monotonic() - began, computing_counts=computing_counts))

    thread = threading.Thread(target=watch)
    thread.start()
    act()
    done.set()
    thread.join()
    return seen[-1]


def test_who_waits_does_nothing() -> None:
    assert doing(lambda: threading.Event().wait(0.4)) == ""


def test_a_child_that_computes_counts() -> None:
    code = "import time; t = time.monotonic()\nwhile time.monotonic() - t < 0.8: pass"
    assert doing(lambda: subprocess.run([sys.executable, "-S", "-c", code], check=True)) == "computes"


def test_reading_counts(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "data"
    path.write_bytes(bytes(1 << 20))

    def read() -> None:
        for _ in range(20):
            path.read_bytes()
            time.sleep(0.02)

    assert doing(read, computing_counts=False) == "reads or writes"


def test_a_wrapper_of_dynamo_is_no_compiler() -> None:
    def frame(path: str, function: str) -> Any:
        return SimpleNamespace(f_code=SimpleNamespace(co_filename=path, co_name=function))

    assert progress._compiles(frame("/x/torch/_dynamo/convert_frame.py", "_compile"))
    assert not progress._compiles(frame("/x/torch/_dynamo/eval_frame.py", "_fn"))
    assert not progress._compiles(frame("/x/torch/_inductor/output_code.py", "__call__"))


def test_each_sleep_is_excused_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "is_user", lambda path: path == __file__ or frames.is_user(path))
    recorder = SimpleNamespace(ticks=0)
    sleeps = progress.Sleeps(cast(Recorder, recorder), longest=90.0)
    now = time.monotonic()

    def poll(seconds: float) -> None:
        sleeps._sleeps(seconds)

    seen = []
    for _ in range(2):
        poll(35.0)
        seen.append(sleeps.until)
        time.sleep(0.05)
    first = seen[0]
    assert first == pytest.approx(now + 35.0, abs=5.0)
    assert seen[1] == first, "a loop that sleeps is no progress"
    recorder.ticks += 1
    poll(40.0)
    assert sleeps.until > first
    poll(600.0)
    assert sleeps.until < now + 90.0, "nobody waits for that long"


class _Clock:
    """Time that passes only while somebody sleeps."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class _Marks:
    """The peer has begun and dumps nothing: a call of C keeps its interpreter."""

    def has(self, rank: int, mark: str) -> bool:
        return rank == 1 and mark == "ready"

    def set(self, rank: int, mark: str) -> None:
        pass


@pytest.mark.parametrize(("reason", "least", "most"), [("mismatch", 0.9, 1.2), ("timeout", 2.5, 3.5)])
def test_how_long_a_dump_is_waited_for(reason: str, least: float, most: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks that part are told so at the same time: who is silent a second later will stay so."""
    clock = _Clock()
    monkeypatch.setattr(watchdog, "time", clock)
    monkeypatch.setattr(watchdog.os, "_exit", lambda _code: None)
    recorder = SimpleNamespace(rank=0, local_ranks=range(2), marks=_Marks(), spec=SimpleNamespace(timeout=20.0))
    observed = watchdog.Watchdog(cast(Recorder, recorder), lambda: (), lambda: None)
    monkeypatch.setattr(observed, "dump", lambda *_: None)
    observed._end(reason, 1.2)
    assert least <= clock.now <= most
