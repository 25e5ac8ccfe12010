"""What keeps a rank busy that records nothing."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
import time
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ddp_lint.verify import frames
from ddp_lint.verify.child.observers import progress, watchdog
from ddp_lint.verify.child.recorder import Recorder
from ddp_lint.verify.polling_delay import Lateness
from ddp_lint.verify.spec import Marks


@pytest.fixture
def counters(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """What the system would tell of this process."""
    told = SimpleNamespace(cpu=0.0, bytes=0, starved=0.0)
    monkeypatch.setattr(progress, "cpu_seconds", lambda: told.cpu)
    monkeypatch.setattr(progress, "bytes_moved", lambda: told.bytes)
    monkeypatch.setattr(progress, "starved_seconds", lambda *_: told.starved)
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


def test_a_rank_that_wants_a_processor_and_has_none_computes(counters: SimpleNamespace) -> None:
    activity = progress.Activity(main=0)
    counters.starved = 0.4
    assert activity.ask(2.0, computing_counts=True) == "", "the threads that wait wake now and then"
    counters.starved += 1.2
    assert activity.ask(2.0, computing_counts=True) == "computes"


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
    assert watchdog.reason_to_end(idle, 20.0, peers) == reason


COMPUTES = "import sys; print(flush=True)\nwhile True: pass"
WAITS = "import sys; print(flush=True); sys.stdin.read()"


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize(("code", "works"), [(COMPUTES, True), (WAITS, False)])
def test_a_peer_whose_watchdog_says_nothing_is_asked_by_its_cpu_time(
    tmp_path: pathlib.Path, code: str, works: bool
) -> None:
    """Its thread that watches may get no processor, or not the interpreter's lock."""
    marks = Marks(tmp_path)
    with subprocess.Popen([sys.executable, "-S", "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as peer:
        assert peer.stdout is not None
        peer.stdout.readline()
        marks.set(1, "watch", f"{peer.pid} 0")
        peers = progress.Peers(marks)
        for now in (100.0, 100.5):
            peers.ask((0, 1), now, often=0.5)
            time.sleep(0.5)
        peer.kill()
    assert (peers.worked(1) == 100.5) is works
    assert peers.worked(0) == float("-inf"), "it has told nothing"


def test_a_stall_of_the_machine_makes_nobody_idle() -> None:
    late = Lateness(interval=0.1, slack=0.5)
    for now in (10.0, 10.1, 10.4, 20.0, 20.1):
        late.poll(now)
    assert late.age(20.0, 20.1) == pytest.approx(0.1)
    assert late.age(10.4, 20.1) == pytest.approx(0.2), "it stood still for 9.5 of these seconds"
    assert late.age(15.0, 20.1) == pytest.approx(0.1)
    assert late.age(9.0, 10.4) == pytest.approx(1.4), "a little late is no stall"


def _watchdog(
    tmp_path: pathlib.Path, now: float, monkeypatch: pytest.MonkeyPatch
) -> tuple[watchdog.Watchdog, list[str]]:
    """Of rank 0, which waits, beside rank 1, whose marks are eight seconds old; and why it ends."""
    ended: list[str] = []
    marks = Marks(tmp_path)
    for rank in range(2):
        for mark in ("ready", "beat"):
            marks.set(rank, mark)
            os.utime(marks.path(rank, mark), (time.time() - 8.0,) * 2)
    spec = SimpleNamespace(timeout=5.0, device="cpu")
    recorder = SimpleNamespace(rank=0, local_ranks=range(2), marks=marks, spec=spec)
    observed = watchdog.Watchdog(cast(Recorder, recorder), lambda: (), lambda: None)
    observed._moved = now - 8.0
    monkeypatch.setattr(observed, "_end", lambda reason, _seconds: ended.append(reason))
    monkeypatch.setattr(observed, "_look_for_lock", lambda _: None)
    return observed, ended


@pytest.mark.parametrize(("stall", "works", "expected"), [(0.0, False, ["timeout"]), (6.0, False, []), (0.0, True, [])])
def test_a_late_watchdog_gives_nobody_up(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, stall: float, works: bool, expected: list[str]
) -> None:
    """Eight seconds without a mark are no hang where the machine stood still for six of them, nor where the peer got
    CPU time."""
    now = time.monotonic()
    observed, ended = _watchdog(tmp_path, now, monkeypatch)
    observed._late.poll(now - stall - 0.2)
    observed._late.poll(now - 0.1)
    monkeypatch.setattr(observed._others, "worked", lambda _: now - 1.0 if works else float("-inf"))
    observed._decide(now, now - 8.0, 20.0)
    assert ended == expected


@pytest.mark.parametrize(("seconds", "expected"), [(1.0, []), (6.0, ["timeout"])])
def test_a_peer_that_has_just_ended_may_have_moved_this_rank(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, seconds: float, expected: list[str]
) -> None:
    """It answered what this rank waits in, and came to its end before this rank was woken."""
    now = time.monotonic()
    observed, ended = _watchdog(tmp_path, now, monkeypatch)
    marks = Marks(tmp_path)
    marks.set(1, "over")
    os.utime(marks.path(1, "over"), (time.time() - seconds,) * 2)
    observed._decide(now, now - 8.0, 20.0)
    assert ended == expected


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
    monkeypatch.setattr(os, "_exit", lambda _code: None)
    recorder = SimpleNamespace(rank=0, local_ranks=range(2), marks=_Marks(), spec=SimpleNamespace(timeout=20.0))
    observed = watchdog.Watchdog(cast(Recorder, recorder), lambda: (), lambda: None)
    monkeypatch.setattr(observed, "dump", lambda *_: None)
    observed._end(reason, 1.2)
    assert least <= clock.now <= most
