"""Models that no wrapper keeps together, or that ranks train in unlike ways."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import pytest

from ddp_lint.verify.discoveries import discover
from ddp_lint.verify.trace import Call, Collective, Evaluates, Event, Frame, Hashes

from .traces import call, run

EVAL = (Frame("/p/train.py", 24, "show"),)
WRAP = (Frame("/p/train.py", 26, "main"),)


def looked(rank: int, when: str = "at_end", among: tuple[int, ...] = (), wrap: str = "ddp") -> Hashes:
    return Hashes(what="parameters", when=when, wrap=wrap, among=among, digests={"fc.weight": str(rank)})


def modes(*names: str, update: int) -> Evaluates:
    return Evaluates(update=update, names=names, frames=EVAL)


@pytest.mark.parametrize(
    ("ranks", "told"),
    [
        ([[modes("", update=5)], []], "the model is in evaluation mode on rank 0 only while the model trains, from"),
        ([[modes("bn", update=0)], [modes("bn", update=0), modes("bn", "drop", update=3)]], "bn, drop is in evalu"),
        ([[modes("bn", update=0)], [modes("bn", update=0)]], ""),
        ([[modes("", update=2), modes(update=2)], []], ""),
    ],
    ids=["left on", "a part", "alike", "set back"],
)
def test_a_rank_that_evaluates_as_others_train(ranks: Sequence[Sequence[Event]], told: str) -> None:
    found = discover([run(*ranks)], [])
    assert [one.line for one in found] == [24] * bool(told)
    assert all(one.message.startswith(told) for one in found)


def test_a_process_group_of_one_rank_averages_nothing() -> None:
    """Unless the ranks exchange models by hand, or split one."""
    built = Call(name="DistributedDataParallel", frames=WRAP)

    def ranks(*calls: Collective, apart: int = 0) -> list[list[Event]]:
        return [
            [built, looked(rank * apart, "after_wrap", (rank,)), *calls, looked(rank, among=(rank,))] for rank in (0, 1)
        ]

    (found,) = discover([run(*ranks(call(4, shape=())))], [])
    assert found.line == 26 and found.cause.startswith("DDP was given a process group of one rank")
    for exchange in (
        call(4, shape=(1000,)),
        call(4, name="fc.weight"),
        dataclasses.replace(call(4), phase="forward"),
    ):
        assert discover([run(*ranks(exchange))], []) == []
    assert discover([run(*ranks(call(4, shape=()), apart=1))], []) == [], "members of an ensemble"
    assert discover([run(*([built, looked(7, among=(rank,))] for rank in (0, 1)))], []) == []


def test_gradients_averaged_by_hand_in_a_group_of_one_rank() -> None:
    """As with DDP; where nothing averages them at all each rank may train a model of its own."""
    mine = [call(28, shape=(8,), name="fc.weight.grad", group=str(rank), ranks=(rank,)) for rank in (0, 1)]

    def ranks(*calls: Collective, apart: int = 0) -> list[list[Event]]:
        return [
            [looked(rank * apart, "averaged", (rank,), "by_hand"), mine[rank], *calls,
             looked(rank, among=(rank,), wrap="by_hand")]
            for rank in (0, 1)
        ]  # fmt: skip

    (found,) = discover([run(*ranks(), wrap="script")], [])
    assert found.line == 28 and found.cause.startswith("the gradients are averaged in a process group of one rank")
    assert discover([run(*ranks(dataclasses.replace(call(4), phase="forward")), wrap="script")], []) == []
    assert discover([run(*ranks(apart=1), wrap="script")], []) == []


@pytest.mark.parametrize(
    ("gradients", "calls", "found"),
    [
        (("1", "1"), [call(8, shape=(100,))], 1),
        (("1", "2"), [call(8, shape=(100,))], 0),
        (("1", "1"), [call(8, shape=())], 0),
        (("1", "1"), [call(8, shape=(100,)), dataclasses.replace(call(9, "broadcast", (100,)), step=1)], 0),
    ],
    ids=["flat", "each its own", "a metric alone", "parts handed round"],
)
def test_gradients_averaged_outside_of_the_model(
    gradients: Sequence[str], calls: Sequence[Collective], found: int
) -> None:
    """Equal gradients and unlike parameters: the ranks did not begin alike."""
    made = {"wrap": "none", "norms": {"fc.weight": 1.0}}
    ranks = [
        [
            *calls,
            Hashes(what="gradients", when="before_step", digests={"fc.weight": gradient}, update=0, **made),
            Hashes(what="parameters", when="after_step", digests={"fc.weight": str(rank)}, update=1, step=1, **made),
        ]
        for rank, gradient in enumerate(gradients)
    ]
    told = discover([run(*ranks, wrap="script")], [])
    assert [one.kind for one in told] == ["parameters"] * found
    assert all(one.cause.startswith("the ranks average gradients but started with") for one in told)


def test_weights_that_one_rank_alone_loads_before_its_model_is_sharded() -> None:
    load = Call(name="load_state_dict", arguments={"model": "Net"}, frames=EVAL)
    shard = Call(name="fully_shard", arguments={"module": "Net"}, frames=WRAP)

    def ranks(*behind: Event, first: Sequence[Event] = (load,)) -> list[list[Event]]:
        before = [looked(rank, "before_wrap", wrap="none") for rank in (0, 1)]
        return [[*first, before[0], shard, *behind], [before[1], shard, *behind]]

    (found,) = discover([run(*ranks())], [])
    assert found.line == 24 and found.cause.startswith("only rank 0 loaded weights before")
    assert "(line 26)" in found.message
    assert discover([run(*ranks(call(5, "broadcast", root=0)))], []) == []
    assert discover([run(*ranks(load))], []) != [], "what is loaded afterwards is another matter"
    assert discover([run(*ranks(first=()))], []) == []
    other = dataclasses.replace(load, arguments={"model": "Metric"})
    assert discover([run(*ranks(first=(other,)))], []) == []
