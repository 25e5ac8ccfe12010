"""How a rank and a run ended, from the files that they leave."""

from __future__ import annotations

import json
import os
import pathlib
import time

import pytest

from ddp_lint.verify.options import RankOutcome
from ddp_lint.verify.outcome import ended_by_the_user, left_waiting, rank_outcome, run_outcome
from ddp_lint.verify.spec import STALLED, Marks
from ddp_lint.verify.trace import Call, Collective, End, Event, Frame, Raised, Stall, Start, Writer

PEER_LOST = Raised(type="RuntimeError", message="Connection closed by peer [127.0.0.1]:7575", where="main")


def rank(folder: pathlib.Path, number: int, *events: Event, **end: object) -> RankOutcome:
    """The outcome of a rank that wrote these events, and whose supervisor noted this end (none: it never ended)."""
    writer = Writer(folder / f"rank{number}.jsonl")
    for event in events:
        writer.write(event)
    if end:
        Marks(folder).set(number, "exit", json.dumps(end))
    return rank_outcome(folder, number)


def run(folder: pathlib.Path, *ranks: RankOutcome, code: int = 1, log: str = "") -> tuple[str, str]:
    (folder / "torchrun.log").write_text(log)
    return run_outcome(ranks, code, folder / "torchrun.log")


@pytest.mark.parametrize(
    ("events", "end", "how", "message"),
    [
        ((Start(), End()), {"code": 0}, "completed", "completed"),
        ((Start(), End()), {"code": -6}, "completed", "completed, then SIGABRT"),
        ((Start(),), {"code": -9, "oom": True}, "oom", "ended by the kernel's OOM killer"),
        ((Start(),), {"code": -9, "oom": False}, "signal", "ended by SIGKILL"),
        ((Start(),), {"code": -11, "oom": True}, "signal", "ended by SIGSEGV"),
        ((Start(),), {"code": -15, "stopped": True}, "stopped", "was ended after another rank failed"),
        ((Start(), Stall(seconds=5.0)), {"code": STALLED}, "stalled", "no progress for 5 s"),
        (
            (Start(), Stall(reason="mismatch"), PEER_LOST),
            {"code": 1},
            "stalled",
            "stuck in a call that no peer answers",
        ),
        # What it raised does not leave the `finally` in which it waits.
        (
            (
                Start(),
                Collective(op="barrier", amid="OSError: no sample", raised=(Frame("/p/train.py", 7, "read"),)),
                Stall(reason="mismatch"),
            ),
            {"code": STALLED},
            "stalled",
            "stuck in a call that no peer answers, after it raised OSError: no sample at line 7 in read",
        ),
        ((Start(), Stall(reason="peer")), {"code": STALLED}, "stopped", "waited for a rank that is slow"),
        # Its peer's end lets it go on while it waits for the dumps.
        ((Start(), Stall(reason="mismatch"), End()), {"code": 0}, "stalled", "stuck in a call that no peer answers"),
        ((Start(), PEER_LOST), {"code": 1}, "exception", "RuntimeError: Connection closed by peer [127.0.0.1]:7575"),
        ((Start(),), {"code": 3}, "exit", "left with exit code 3"),
        ((), {"code": 1}, "not_started", "ended with exit code 1 before it began"),
        ((), {}, "not_started", "never started"),
    ],
)
def test_a_ranks_end(
    tmp_path: pathlib.Path, events: tuple[Event, ...], end: dict[str, object], how: str, message: str
) -> None:
    outcome = rank(tmp_path, 0, *events, **end)
    assert (outcome.how, outcome.message) == (how, message)


def test_who_comes_to_its_end_after_it_was_told_that_the_ranks_part_has_not_completed(tmp_path: pathlib.Path) -> None:
    """On NCCL the teardown of one rank releases its peer, which ends before its own watchdog has looked."""
    marks = Marks(tmp_path)
    for number, order in enumerate((("diverged", "over"), ("over", "diverged"))):
        for at, mark in enumerate(order):
            marks.set(number, mark)
            os.utime(marks.path(number, mark), (100 + at, 100 + at))
    ranks = [rank(tmp_path, number, Start(), End(), code=0) for number in (0, 1)]
    assert [one.how for one in ranks] == ["stalled", "completed"]


@pytest.mark.parametrize("noticed", [True, False])
def test_what_a_rank_does_after_it_was_told_to_end_is_no_longer_its_program(
    tmp_path: pathlib.Path, noticed: bool
) -> None:
    """A thread waits in a collective; when the peer is ended its call fails, and the main thread makes its next.

    `noticed`: the rank's own watchdog came to its turn before.
    """
    writer = Writer(tmp_path / "rank0.jsonl")
    writer.write(Start())
    writer.write(Collective(ranks=(0, 1), op="new_group"))
    told = Marks(tmp_path).path(0, "diverged")
    told.touch()
    # The clock of files is coarser: what was written right before may seem to be later.
    os.utime(told, (time.time() - 0.005,) * 2)
    time.sleep(0.1)
    after = (Stall(reason="mismatch"),) if noticed else ()
    ended = rank(tmp_path, 0, *after, Collective(ranks=(0, 1), op="all_reduce"), PEER_LOST, code=1, time=time.time())
    assert (ended.how, ended.message) == ("stalled", "stuck in a call that no peer answers")
    assert [event.op for event in ended.trace.of(Collective)] == ["new_group"]


BARRIER = Collective(ranks=(0, 1), op="barrier")


@pytest.mark.parametrize(
    ("called", "raised", "how", "outcome"),
    [
        ((BARRIER, BARRIER), PEER_LOST, "stalled", "hang"),
        ((BARRIER,), PEER_LOST, "exception", "exception"),
        ((BARRIER, BARRIER), Raised(type="ValueError", message="boom", where="main"), "exception", "exception"),
    ],
)
def test_a_rank_whose_peer_came_to_its_end_waits_for_it(
    tmp_path: pathlib.Path, called: tuple[Event, ...], raised: Raised, how: str, outcome: str
) -> None:
    """gloo raises in the rank that waits, when it closes its peer's connections soon enough."""
    ranks = left_waiting(
        (
            rank(tmp_path, 0, Start(), *called, raised, code=1, time=2.0),
            rank(tmp_path, 1, Start(), BARRIER, End(), code=0, time=1.0),
        )
    )
    assert [one.how for one in ranks] == [how, "completed"]
    assert run(tmp_path, *ranks)[0] == outcome
    assert how == "exception" or ranks[0].message.startswith(
        "waits for rank 1, which ended; the call failed with: RuntimeError: "
    )


def test_a_rank_whose_peer_failed_does_not_wait_for_it(tmp_path: pathlib.Path) -> None:
    ranks = left_waiting(
        (
            rank(tmp_path, 0, Start(), BARRIER, PEER_LOST, code=1, time=1.0),
            rank(tmp_path, 1, Start(), code=-11, time=2.0),
        )
    )
    assert [one.how for one in ranks] == ["exception", "signal"]
    assert run(tmp_path, *ranks)[0] == "crash"


@pytest.mark.parametrize(("doing", "outcome"), [("computes", "slow"), ("", "hang")])
def test_ranks_that_gave_each_other_up(tmp_path: pathlib.Path, doing: str, outcome: str) -> None:
    ranks = [
        rank(tmp_path, number, Start(), Stall(reason="peer", doing=doing), code=STALLED, time=9.0) for number in (0, 1)
    ]
    assert [one.how for one in ranks] == ["stopped", "stopped"]
    assert run(tmp_path, *ranks) == (outcome, "ranks 0 and 1 waited for a rank that is slow")


def test_the_killed_rank_is_the_cause_and_not_the_one_that_lost_its_peer(tmp_path: pathlib.Path) -> None:
    lost = rank(tmp_path, 0, Start(), PEER_LOST, code=1, time=1.0)
    killed = rank(tmp_path, 1, Start(), code=-9, oom=True, time=2.0)
    outcome, message = run(tmp_path, lost, killed)
    assert outcome == "oom" and message.startswith("rank 1 ended by the kernel's OOM killer; rank 0 RuntimeError")


def test_what_all_ranks_died_of_is_told_once(tmp_path: pathlib.Path) -> None:
    ranks = [
        rank(tmp_path, n, Start(), Raised(type="ValueError", message=f"got device_ids [{n}]"), code=1) for n in (0, 1)
    ]
    assert run(tmp_path, *ranks) == ("exception", "ranks 0 and 1 ValueError: got device_ids [0]")


def test_a_rank_that_never_starts(tmp_path: pathlib.Path) -> None:
    waiting = rank(tmp_path, 0, Start(), Stall(seconds=5.0), code=STALLED, time=9.0)
    missing = rank(tmp_path, 1, code=127, time=1.0)
    assert run(tmp_path, waiting, missing) == (
        "not_started",
        "rank 1 ended with exit code 127 before it began; rank 0 no progress for 5 s",
    )


def test_ranks_that_come_to_their_end_without_a_process_group_say_so(tmp_path: pathlib.Path) -> None:
    (tmp_path / "rank0.log").write_text("Unable to locate 2 gpus. Exiting.\n\n")
    alone = rank(tmp_path, 0, Start(), End(), code=0)
    assert run(tmp_path, alone, code=0) == (
        "completed",
        "completed without a process group: nothing distributed ran; the last that rank 0 printed: "
        "Unable to locate 2 gpus. Exiting.",
    )
    for seen in (Call(name="init_process_group"), Collective(op="barrier")):
        joined = rank(tmp_path, 1, Start(), seen, End(), code=0)
        assert run(tmp_path, alone, joined, code=0) == ("completed", "completed")


def test_no_rank_starts(tmp_path: pathlib.Path) -> None:
    ranks = [rank(tmp_path, number) for number in (0, 1)]
    assert run(tmp_path, *ranks, log="torchrun: error: unknown option") == (
        "launch_failed",
        "torchrun could not start the ranks: torchrun: error: unknown option",
    )
    outcome, message = run(tmp_path, *ranks, log="The server socket has failed to bind: EADDRINUSE")
    assert outcome == "port_in_use" and "--master-port" in message


def test_a_rank_that_is_busy_is_slow_and_not_stuck(tmp_path: pathlib.Path) -> None:
    busy = rank(tmp_path, 0, Start(), Stall(reason="slow", doing="reads or writes", seconds=120.0), code=STALLED)
    waiting = rank(tmp_path, 1, Start(), Stall(reason="timeout", seconds=110.0), code=STALLED)
    outcome, message = run(tmp_path, busy, waiting)
    assert outcome == "slow" and "rank 0 is slow, not stuck: it still reads or writes" in message
    assert "raise --timeout" in message


def test_who_is_interrupted_was_ended_by_the_user(tmp_path: pathlib.Path) -> None:
    ranks = rank(tmp_path, 0, Start(), code=-15, stopped=True), rank(tmp_path, 1, Start(), End(), code=0)
    assert [one.message for one in ended_by_the_user(ranks)] == ["interrupted", "completed"]
