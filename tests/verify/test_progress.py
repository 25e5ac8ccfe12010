"""What keeps a rank busy that records nothing."""

from __future__ import annotations

import subprocess
import sys
import time
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ddp_lint.verify import frames
from ddp_lint.verify.child.observers import progress, watchdog
from ddp_lint.verify.child.recorder import Recorder


@pytest.fixture
def counters(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """What the system would tell of this process."""
    told = SimpleNamespace(cpu=0.0, bytes=0)
    monkeypatch.setattr(progress, "cpu_seconds", lambda: told.cpu)
    monkeypatch.setattr(progress, "bytes_moved", lambda: told.bytes)
    return told


@pytest.mark.parametrize(
    ("cpu", "moved", "computing_counts", "doing"),
    [
        (0.0, 0, True, ""),
        (0.03, 0, True, ""),
        (1.0, 0, True, "computes"),
        (1.0, 0, False, ""),
        (1.0, 1 << 20, False, "reads or writes"),
        (0.0, 1 << 10, True, ""),
    ],
)
def test_what_a_rank_does(
    counters: SimpleNamespace, cpu: float, moved: int, computing_counts: bool, doing: str
) -> None:
    activity = progress.Activity(main=0)
    counters.cpu, counters.bytes = cpu, moved
    assert activity.ask(2.0, computing_counts=computing_counts) == doing
    assert activity.ask(2.0, computing_counts=computing_counts) == "", "what it did before does not count"


@pytest.mark.parametrize(("instructions", "doing"), [((1, 2, 3, 4), "runs Python"), ((7, 7, 7, 7), "")])
def test_a_rank_that_is_elsewhere_at_each_look_runs_python(
    counters: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, instructions: tuple[int, ...], doing: str
) -> None:
    code = SimpleNamespace(co_filename="train.py", co_name="main")
    frame = SimpleNamespace(f_lasti=0, f_code=code, f_back=None)
    monkeypatch.setattr(progress, "sys", SimpleNamespace(_current_frames=lambda: {5: frame}))
    activity = progress.Activity(main=5)
    for frame.f_lasti in instructions:
        activity.look()
    assert activity.ask(2.0, computing_counts=True) == doing


def test_the_time_and_the_transfers_of_children_count() -> None:
    """That of a process which has not ended: what ended belongs to nobody any more."""
    code = (
        "import sys, time\nsys.stdout.write('x' * (4 << 20))\nwhile time.process_time() < 0.3: pass\n"
        "print('\\ndone', flush=True); input()"
    )
    cpu, moved = progress.cpu_seconds(), progress.bytes_moved()
    with subprocess.Popen(
        [sys.executable, "-S", "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None and child.stdin is not None
        while child.stdout.readline() != "done\n":
            pass
        assert progress.cpu_seconds() - cpu >= 0.25
        assert progress.bytes_moved() - moved >= 4 << 20
        child.stdin.close()


@pytest.mark.parametrize(
    ("idle", "recorded", "peers_idle", "reason"),
    [
        (19.0, 19.0, 99.0, ""),
        (20.0, 20.0, 20.0, "timeout"),
        (20.0, 20.0, float("inf"), "timeout"),
        (99.0, 99.0, 1.0, ""),
        (120.0, 120.0, 1.0, "peer"),
        (1.0, 120.0, 120.0, "slow"),
        (1.0, 120.0, 1.0, "slow"),
        (20.0, 119.0, 20.0, "timeout"),
    ],
)
def test_why_a_rank_ends(idle: float, recorded: float, peers_idle: float, reason: str) -> None:
    assert watchdog.verdict(idle, recorded, peers_idle, timeout=20.0) == reason


@pytest.mark.parametrize(
    ("idle", "peers", "reason"),
    [
        (18.0, {"failed"}, "timeout"),
        (18.0, {"peer"}, "timeout"),
        (1.0, {"peer"}, "slow"),
        (1.0, {"failed"}, "peer"),
        (1.0, {"timeout"}, "peer"),
    ],
)
def test_why_a_rank_ends_whose_peers_do(idle: float, peers: set[str], reason: str) -> None:
    assert watchdog.told(idle, 20.0, peers) == reason


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
    patient = progress.Sleeps(cast(Recorder, recorder), longest=90.0, patience=40.0)

    def wait(seconds: float) -> None:
        patient._sleeps(seconds)

    for seconds in (0.0, 15.0, 60.0):
        wait(seconds)
    assert 30.0 < patient.until - now < 50.0, "it is excused for so long, and no longer"
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

    def set(self, rank: int, mark: str, text: str = "") -> None:
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
