"""Following a run by what its ranks write: what makes them diverge is told once nothing moves, and not before."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import subprocess
import sys
import time

import pytest

from ddp_lint.verify.live import Live
from ddp_lint.verify.match import Kind
from ddp_lint.verify.spec import Marks
from ddp_lint.verify.trace import Awaited, Collective, Orphaned, Writer

from .traces import call


class Ranks:
    """Ranks that write their calls, and stood still for as long as they are told to have."""

    def __init__(self, folder: pathlib.Path, *calls: list[Collective]) -> None:
        self.folder = folder
        self.marks = Marks(folder)
        self.writers = [Writer(folder / f"rank{rank}.jsonl") for rank in range(len(calls))]
        for rank, of_rank in enumerate(calls):
            self.say(rank, *of_rank)
        self.stand_still(5.0)

    def say(self, rank: int, *calls: Collective) -> None:
        for one in calls:
            self.writers[rank].write(one)

    def stand_still(self, seconds: float) -> None:
        for rank in range(len(self.writers)):
            self.marks.set(rank, "beat")
            os.utime(self.marks.path(rank, "beat"), (time.time() - seconds,) * 2)

    def live(self) -> Live:
        return Live(self.folder, range(len(self.writers)))


def direct(op: str, peer: int, ranks: tuple[int, ...] = (0, 1)) -> Collective:
    return Collective(**{**vars(call(3, op, ranks=ranks)), "peer": peer})


def test_calls_that_cannot_meet_end_the_run(tmp_path: pathlib.Path) -> None:
    ranks = Ranks(tmp_path, [call(1), call(2)], [call(1), call(3, "barrier")])
    parted = ranks.live().poll()
    assert parted is not None and parted.kind is Kind.ORDER and parted.calls[1] == parted.calls[1]
    assert all(ranks.marks.has(rank, "diverged") for rank in (0, 1))


@pytest.mark.skipif(sys.platform != "linux", reason="the system shows nothing of threads")
@pytest.mark.parametrize(
    ("command", "waits", "soon"),
    [("exec sleep 60", True, True), ("while :; do :; done", True, False), ("exec sleep 60", False, False)],
)
def test_ranks_that_are_asleep_in_calls_are_waited_for_less_long(
    tmp_path: pathlib.Path, command: str, waits: bool, soon: bool
) -> None:
    ranks = Ranks(tmp_path, [call(1), call(2)], [call(1), call(3, "barrier")])
    live = ranks.live()
    process = subprocess.Popen(["sh", "-c", command])
    try:
        for rank in (0, 1):
            ranks.marks.set(rank, "watch", f"{process.pid} 0")
        until = time.monotonic() + (20.0 if soon else 2.0)
        parted = None
        while parted is None and time.monotonic() < until:
            ranks.stand_still(0.8)
            for rank in (0, 1) if waits else ():
                ranks.marks.set(rank, "waits", "main")
            parted = live.poll()
            time.sleep(0.1)
    finally:
        process.kill()
        process.wait()
    assert (parted is not None) is soon


def test_ranks_that_went_on_after_what_could_not_meet_hang_in_what_comes_of_it(tmp_path: pathlib.Path) -> None:
    first = [call(5, "broadcast", (4,)), call(9)], [call(5, "broadcast", (8,)), call(6, "broadcast")]
    live = Ranks(tmp_path, *map(list, first)).live()
    parted = live.poll()
    assert parted is not None and parted.kind is Kind.ORDER


def test_a_rank_that_left_an_unlike_call_and_waits_for_those_in_it(tmp_path: pathlib.Path) -> None:
    """A reduce to another root on each rank lets one of them go on."""
    made = [dataclasses.replace(call(5, "reduce"), root=rank) for rank in (0, 1)]
    ranks = Ranks(tmp_path, [made[0], call(9)], [made[1]])
    parted = ranks.live().poll()
    assert parted is not None and parted.kind is Kind.ROOT
    (tmp_path / "other").mkdir()
    other = Ranks(tmp_path / "other", [made[0]], [made[1], call(9), call(9)])
    other.say(0, call(9))
    assert other.live().poll() is None, "nobody is in the call that was unlike"


def test_groups_that_each_rank_makes_for_itself_end_the_run_when_nothing_moves(tmp_path: pathlib.Path) -> None:
    """What hangs is a call in one of them, which the others do not know of."""
    made = [dataclasses.replace(call(1, "new_group", ranks=(0, 1)), members=(rank,)) for rank in (0, 1)]
    ranks = Ranks(tmp_path, [made[0], call(2, group="0,2", ranks=(0, 2))], [made[1], call(3)])
    ranks.stand_still(3.0)
    live = ranks.live()
    assert live.poll() is None, "the connection may be on its way"
    ranks.stand_still(9.0)
    parted = live.poll()
    assert parted is not None and parted.kind is Kind.MEMBERS


def test_a_stall_of_the_machine_is_no_stillness(tmp_path: pathlib.Path) -> None:
    ranks = Ranks(tmp_path, [call(2)], [call(3, "barrier")])
    ranks.stand_still(0.0)
    live = ranks.live()
    assert live.poll() is None
    live._late.poll(time.time() - 8.0)
    ranks.stand_still(8.0)
    assert live.poll() is None, "nobody could move in these seconds"


def test_ranks_that_move_are_left_alone(tmp_path: pathlib.Path) -> None:
    ranks = Ranks(tmp_path, [call(2)], [call(3, "barrier")])
    ranks.stand_still(0.0)
    live = ranks.live()
    assert live.poll() is None
    ranks.stand_still(5.0)
    assert live.poll() is not None, "the calls are remembered"


@pytest.mark.parametrize(
    "calls",
    [
        ([call(1), call(2)], [call(1)]),
        ([call(1, reduce_op="SUM")], [call(1, reduce_op="MAX")]),
        ([call(1, shape=(3,)), call(2)], [call(1, shape=(4,)), call(2)]),
        ([direct("send", 1), call(1)], [direct("recv", 0)]),
        ([direct("recv", 1)], [call(1)]),
    ],
    ids=["the other may come", "nothing hangs of it", "they went on", "the receive was met", "the sender computes"],
)
def test_what_may_still_go_on_is_left_to_the_timeout(
    tmp_path: pathlib.Path, calls: tuple[list[Collective], list[Collective]]
) -> None:
    ranks = Ranks(tmp_path, *calls)
    if calls[1][-1].op == "all_reduce" and calls[0][-1].op == "recv":
        ranks.say(0, call(1))  # it was no blocking receive
    assert ranks.live().poll() is None


def test_a_rank_that_is_through_does_not_come(tmp_path: pathlib.Path) -> None:
    ranks = Ranks(tmp_path, [call(1), call(2)], [call(1)])
    ranks.marks.set(1, "over")
    parted = ranks.live().poll()
    assert parted is not None and parted.absent == (1,)


def test_a_rank_that_has_destroyed_its_groups_does_not_come(tmp_path: pathlib.Path) -> None:
    ranks = Ranks(tmp_path, [call(1), call(1)], [call(1)])
    ranks.marks.set(1, "joined")
    os.utime(ranks.marks.path(1, "joined"), (time.time() - 9.0,) * 2)
    live = ranks.live()
    assert live.poll() is None
    ranks.marks.set(1, "left")
    parted = live.poll()
    assert parted is not None and parted.kind is Kind.MISSING and parted.calls[1] is None


def test_a_rank_that_has_made_new_groups_since_may_come(tmp_path: pathlib.Path) -> None:
    ranks = Ranks(tmp_path, [call(1), call(1)], [call(1)])
    ranks.marks.set(1, "left")
    os.utime(ranks.marks.path(1, "left"), (time.time() - 9.0,) * 2)
    ranks.marks.set(1, "joined")
    assert ranks.live().poll() is None


def test_ranks_that_wait_for_each_other_wait_for_ever(tmp_path: pathlib.Path) -> None:
    """Rank 0 receives from rank 2, which waits in a barrier for rank 0."""
    world = (0, 1, 2)
    barrier = call(9, "barrier", ranks=world)
    ranks = Ranks(tmp_path, [direct("send", 1, world), direct("recv", 2, world)], [direct("recv", 0, world), barrier],
                  [barrier])  # fmt: skip
    parted = ranks.live().poll()
    assert parted is not None and parted.direct and parted.absent == (2,)
    assert "from rank 2" in str(parted) and "rank 2 never sends" in str(parted)


def test_ranks_that_wait_for_each_other_in_unlike_groups(tmp_path: pathlib.Path) -> None:
    """They do where their threads are seen in them: NCCL's calls return before they are over."""
    ranks = Ranks(tmp_path, [call(1, group="a")], [call(2, group="b")])
    live = ranks.live()
    assert live.poll() is None
    for rank in (0, 1):
        ranks.marks.set(rank, "waits", "main")
    parted = live.poll()
    assert parted is not None and parted.kind is Kind.CROSSED and set(parted.calls) == {0, 1}


def test_messages_meet_by_their_tags(tmp_path: pathlib.Path) -> None:
    def tagged(op: str, peer: int, tag: int) -> Collective:
        return Collective(**{**vars(direct(op, peer)), "tag": tag})

    sent = [tagged("send", 1, 1), tagged("send", 1, 2)]
    met = Ranks(tmp_path, sent, [tagged("recv", 0, 2), tagged("recv", 0, 1)]).live()
    assert met.poll() is None and met.mismatch is None
    (tmp_path / "unlike").mkdir()
    parted = Ranks(tmp_path / "unlike", sent[:1], [tagged("recv", 0, 3)]).live().poll()
    assert parted is not None and parted.direct


def test_ranks_that_send_to_each_other_are_given_time(tmp_path: pathlib.Path) -> None:
    """A small tensor may be on its way while its sender computes."""
    ranks = Ranks(tmp_path, [direct("send", 1)], [direct("send", 0)])
    ranks.marks.set(0, "busy")
    live = ranks.live()
    assert live.poll() is None
    os.utime(ranks.marks.path(0, "busy"), (time.time() - 9.0,) * 2)
    ranks.stand_still(9.0)
    parted = live.poll()
    assert parted is not None and parted.direct


def test_ranks_that_wait_for_what_they_have_sent_to_each_other(tmp_path: pathlib.Path) -> None:
    """A message that was started is waited for at once, or it is not waited for yet."""
    sent = [dataclasses.replace(direct("send", peer), asynchronous=True) for peer in (1, 0)]
    ranks = Ranks(tmp_path, *([one] for one in sent))
    ranks.stand_still(9.0)
    live = ranks.live()
    assert live.poll() is None
    for writer in ranks.writers:
        writer.write(Awaited(of=0))
    parted = live.poll()
    assert parted is not None and parted.direct


def test_a_rank_that_has_started_two_messages_and_waits_for_the_first(tmp_path: pathlib.Path) -> None:
    sent = dataclasses.replace(direct("send", 1), asynchronous=True)
    ranks = Ranks(tmp_path, [sent, dataclasses.replace(sent, n=1)], [direct("send", 0)])
    ranks.stand_still(9.0)
    live = ranks.live()
    assert live.poll() is None
    ranks.writers[0].write(Awaited(of=0))
    parted = live.poll()
    assert parted is not None and parted.direct


def test_a_rank_that_waits_for_a_lock_for_ever_ends_the_run(tmp_path: pathlib.Path) -> None:
    ranks = Ranks(tmp_path, [call(1)], [])
    live = ranks.live()
    assert live.poll() is None and not ranks.marks.has(0, "diverged")
    ranks.marks.set(1, "locked")
    assert live.poll() is None and ranks.marks.has(0, "diverged")


def test_a_rank_that_waits_for_a_lock_as_the_others_wait_for_it_ends_the_run_sooner(tmp_path: pathlib.Path) -> None:
    ranks = Ranks(tmp_path, [call(1)], [])
    ranks.stand_still(2.0)
    live = ranks.live()
    ranks.marks.set(1, "locked")
    assert live.poll() is None and not ranks.marks.has(0, "diverged"), "rank 0 may be at work"
    ranks.marks.set(0, "waits", "main")
    live.poll()
    assert ranks.marks.has(0, "diverged")


@pytest.mark.parametrize(("waiting", "told"), [([0, 1], True), ([0], False)])
def test_a_group_of_more_ranks_than_there_are_ends_the_run(
    tmp_path: pathlib.Path, waiting: list[int], told: bool
) -> None:
    ranks = Ranks(tmp_path, [], [])
    for rank in waiting:
        ranks.marks.set(rank, "incomplete")
    ranks.live().poll()
    assert all(ranks.marks.has(rank, "diverged") is told for rank in (0, 1))


def test_a_program_that_starts_its_own_ranks_tells_how_many(tmp_path: pathlib.Path) -> None:
    ranks = Ranks(tmp_path, [call(2)], [call(3, "barrier")])
    live = Live(tmp_path, None)
    assert live.poll() is None
    ranks.marks.set(0, "world", "2")
    assert live.poll() is not None


def test_a_fork_that_communicates_ends_the_run_that_waits_for_it(tmp_path: pathlib.Path) -> None:
    ranks = Ranks(tmp_path, [call(1)], [call(1)])
    assert ranks.live().poll() is None and not ranks.marks.has(0, "diverged")
    ranks.writers[0].write(Orphaned(op="barrier"))
    ranks.stand_still(9.0)
    ranks.live().poll()
    assert ranks.marks.has(0, "diverged")


def test_ranks_all_of_whose_threads_wait_in_collectives_are_ended(tmp_path: pathlib.Path) -> None:
    """Main threads alone are known by their calls, which may still be on their way."""
    ranks = Ranks(tmp_path, [call(1)], [call(1)])
    ranks.stand_still(9.0)
    for first, ended in (("main", False), ("threads", True)):
        for rank, said in ((0, first), (1, "main")):
            ranks.marks.set(rank, "waits", said)
        ranks.live().poll()
        assert ranks.marks.has(0, "diverged") is ended


def test_a_rank_that_moves_again_waits_no_more(tmp_path: pathlib.Path) -> None:
    ranks = Ranks(tmp_path, [call(1)], [call(1)])
    for rank in (0, 1):
        ranks.marks.set(rank, "waits", "threads")
        os.utime(ranks.marks.path(rank, "waits"), (time.time() - 20,) * 2)
    ranks.stand_still(9.0)
    ranks.live().poll()
    assert not ranks.marks.has(0, "diverged")
