"""The matcher: what two or more streams of collectives say about each other."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ddp_lint.verify.match import Ending, Kind, Mismatch, exchanged, mismatches, rows
from ddp_lint.verify.trace import Collective

from .traces import call, numbered

DONE = {0: Ending.COMPLETED, 1: Ending.COMPLETED, 2: Ending.COMPLETED}


def match(*ranks: Sequence[Collective], endings: dict[int, Ending] = DONE) -> list[Mismatch]:
    return mismatches(streams(*ranks), endings)


def streams(*ranks: Sequence[Collective]) -> dict[int, list[Collective]]:
    return {rank: list(numbered(calls)) for rank, calls in enumerate(ranks)}  # type: ignore[misc]


@pytest.mark.parametrize(
    ("one", "other", "kind"),
    [
        (call(1, "all_reduce"), call(1, "broadcast", root=0), Kind.ORDER),
        (call(1, shape=(4,)), call(1, shape=(8,)), Kind.SHAPE),
        (call(1, dtype="float32"), call(1, dtype="float64"), Kind.DTYPE),
        (call(1, reduce_op="SUM"), call(1, reduce_op="MAX"), Kind.REDUCE_OP),
        (call(1, "broadcast", root=0), call(1, "broadcast", root=1), Kind.ROOT),
        (call(1, name="a.weight"), call(1, name="b.weight"), Kind.BUFFER),
    ],
)
def test_the_first_difference_has_a_name(one: Collective, other: Collective, kind: Kind) -> None:
    before = [call(7, "barrier"), call(8)]
    (found,) = match([*before, one], [*before, other])
    assert (found.kind, found.position) == (kind, 2)


def test_two_arms_of_a_branch_with_the_same_calls_are_legal() -> None:
    assert match([call(3), call(4, "broadcast", root=0)], [call(7), call(8, "broadcast", root=0)]) == []


def test_tensors_of_different_size_are_legal_where_a_root_or_the_outputs_say_so() -> None:
    ragged = tuple(t for n in (3, 2) for t in call(1, shape=(n,)).tensors)
    calls = [Collective(**{**vars(call(1, "all_gather", (n,))), "outputs": ragged}) for n in (3, 2)]
    assert match([calls[0]], [calls[1]]) == []
    assert match([call(1, "gather", (3,), root=0)], [call(1, "gather", (2,), root=0)]) == []
    assert [m.kind for m in match([call(1, "all_gather", (3,))], [call(1, "all_gather", (2,))])] == [Kind.SHAPE]


def test_what_a_rank_expects_of_an_all_to_all_is_what_its_peer_sends() -> None:
    def rows_of(sends: tuple[int, int], expects: tuple[int, int]) -> Collective:
        return dataclasses.replace(call(1, "all_to_all_single"), sends=sends, expects=expects)

    assert match([rows_of((1, 3), (1, 2))], [rows_of((2, 2), (3, 2))]) == []
    (found,) = match([rows_of((1, 3), (1, 3))], [rows_of((2, 2), (2, 2))])
    assert found.kind is Kind.SPLITS and "that sends [1, 3] and expects [1, 3]" in str(found)


def test_shards_of_a_flat_parameter_bear_other_names_on_each_rank() -> None:
    assert match([call(1, "all_gather", name="a.weight")], [call(1, "all_gather", name="b.weight")]) == []


def test_an_extra_call_is_the_culprit_although_the_ranks_part_later() -> None:
    """`if rank == 0: all_reduce(metric)` pairs with the next all_reduce of its size; only the last one hangs."""
    both = [call(9), call(9), call(9)]
    (found,) = match([call(5), *both], both, endings={0: Ending.STALLED, 1: Ending.COMPLETED})
    assert (found.kind, found.position) == (Kind.MISSING, 3)
    assert [(culprit.rank, culprit.collective.frames[0].line) for culprit in found.culprits] == [(0, 5)]


def test_what_a_rank_would_have_called_that_the_launcher_stopped_is_unknown() -> None:
    calls = [call(1), call(2)]
    assert match(calls, calls[:1], endings={0: Ending.FAILED, 1: Ending.UNKNOWN}) == []
    assert match(calls, calls[:1], endings={0: Ending.UNKNOWN, 1: Ending.FAILED})[0].kind is Kind.MISSING
    assert match(calls, calls[:1], endings={}) == []


def test_groups_are_matched_by_themselves() -> None:
    a, b = call(1, group="0,1"), call(2, group="0,1#2")
    assert match([a, b], [b, a]) == []
    (found,) = match([call(1), call(2, group="0,1")], [call(1)])
    assert found.group == "0,1"


def test_members_only() -> None:
    alone = call(4, group="0", ranks=(0,))
    assert match([alone, call(5)], [call(5)]) == []


def test_three_ranks() -> None:
    common = [call(1, ranks=(0, 1, 2))]
    extra = [*common, call(2, ranks=(0, 1, 2))]
    (found,) = match(extra, common, extra)
    assert found.kind is Kind.MISSING
    assert [rank for rank, cell in found.calls.items() if cell is None] == [1]


def test_point_to_point_calls_do_not_shift_the_order() -> None:
    send = Collective(**{**vars(call(3, "send")), "peer": 1})
    receive = Collective(**{**vars(call(4, "recv")), "peer": 0})
    assert match([send, send, call(5)], [receive, call(5)]) == []


def test_a_receive_without_its_send_is_the_cause_of_what_its_rank_misses() -> None:
    """Rank 0 waits for rank 1, which is in the barrier that rank 0 never reaches."""
    receive = Collective(**{**vars(call(4, "recv")), "peer": 1})
    (found,) = mismatches(
        streams([receive], [call(5, "barrier")]), {0: Ending.STALLED, 1: Ending.STALLED}
    )  # fmt: skip
    assert found.direct and found.absent == (1,)
    assert "rank 0 calls recv [4] from rank 1 (line 4), rank 1 never sends to it" in str(found)


def test_a_peer_that_does_not_exist_never_answers() -> None:
    """Nothing has to be known of how the rank ended: gloo waits for ever."""
    receive = Collective(**{**vars(call(4, "recv")), "peer": 2})
    (found,) = mismatches(streams([call(3), receive], [call(3)]), {})
    assert str(found) == "missing rank: rank 0 calls recv [4] from rank 2 (line 4), rank 2 does not exist"


def test_a_rank_that_waits_for_itself() -> None:
    receive = Collective(**{**vars(call(4, "recv")), "peer": 0})
    (found,) = mismatches(streams([receive], [call(3)]), {0: Ending.STALLED, 1: Ending.COMPLETED})
    assert "rank 0 calls recv [4] from rank 0 (line 4)" in str(found)


def test_ranks_that_both_send_first() -> None:
    sends = [[Collective(**{**vars(call(3 + rank, "send")), "peer": 1 - rank})] for rank in (0, 1)]
    (found,) = mismatches(streams(*sends), {0: Ending.STALLED, 1: Ending.STALLED})
    assert str(found) == (
        "order: rank 0 calls send [4] to rank 1 (line 3), rank 1 calls send [4] to rank 0 (line 4)"
    )  # fmt: skip


def test_the_earliest_mismatch_comes_first() -> None:
    late = [call(1), call(1), call(2, reduce_op="SUM")], [call(1), call(1), call(2, reduce_op="MAX")]
    found = match(
        [call(9, "broadcast", group="0,1", root=0), *late[0]], [call(9, "broadcast", group="0,1", root=1), *late[1]]
    )
    assert [m.kind for m in found] == [Kind.ROOT, Kind.REDUCE_OP]


def test_swapped_lines_show_only_to_who_names_them() -> None:
    ranks = streams([call(2), call(3)], [call(3), call(2)])
    assert exchanged(ranks, frozenset()) is None
    found = exchanged(ranks, frozenset({("/p/train.py", 2), ("/p/train.py", 3)})) or pytest.fail("not seen")
    assert found.crossed
    assert {found.one.collective.frames[0].line, found.other.collective.frames[0].line} == {2, 3}


@pytest.mark.parametrize(
    ("labels", "crossed"),
    [
        ((("a", "b"), ("b", "a")), True),
        ((("t, name='x'", "t, name='y'"), ("t, name='y'", "t, name='z'")), False),
        ((("a", "b"), ("a", "b")), None),
    ],
)
def test_calls_of_one_line_are_told_apart_by_what_they_are_for(
    labels: tuple[tuple[str, ...], ...], crossed: bool | None
) -> None:
    ranks = streams(*([call(2, label=label) for label in of_rank] for of_rank in labels))
    found = exchanged(ranks, frozenset({("/p/train.py", 2)}))
    assert (found and found.crossed) == crossed


def test_arms_that_reduce_one_tensor_do_the_same() -> None:
    assert exchanged(streams([call(2, label="x")], [call(3, label="x")]), frozenset({("/p/train.py", 2)})) is None


# ---- properties

lines = st.integers(1, 12)
calls = st.builds(
    call,
    lines,
    st.sampled_from(["all_reduce", "broadcast", "barrier", "reduce_scatter"]),
    st.sampled_from([(1,), (4,), (2, 3)]),
    group=st.sampled_from(["world", "0,1"]),
)
programs = st.lists(calls, max_size=12)


@given(programs, st.integers(2, 4))
def test_ranks_that_run_the_same_program_never_part(program: list[Collective], ranks: int) -> None:
    world = tuple(range(ranks))
    program = [Collective(**{**vars(c), "ranks": world}) for c in program]
    assert match(*[program] * ranks, endings=dict.fromkeys(world, Ending.COMPLETED)) == []


@given(programs, st.integers(0, 12), st.booleans())
@example([call(1), call(1), call(1)], 1, False)
def test_one_more_call_is_found_and_blamed(program: list[Collective], at: int, second: bool) -> None:
    extra = call(99, "all_to_all", (7,))
    longer = [*program[:at], extra, *program[at:]]
    found = [m for m in match(*([program, longer] if second else [longer, program])) if m.kind.breaks_the_order]
    assert len(found) == 1
    assert [(c.rank, c.collective.frames[0].line) for c in found[0].culprits] == [(int(second), 99)]


@given(programs, st.integers(0, 12))
def test_a_cut_off_trace_of_a_stopped_rank_accuses_nobody(program: list[Collective], length: int) -> None:
    assert match(program, program[:length], endings={0: Ending.STALLED, 1: Ending.UNKNOWN}) == []


@given(programs, programs, st.integers(0, 12))
def test_what_is_seen_early_stays_seen(one: list[Collective], other: list[Collective], length: int) -> None:
    """A mismatch of two cut-off traces is one of the whole traces too."""
    unknown: dict[int, Ending] = {}
    early = {(m.kind, m.group, m.position) for m in match(one[:length], other[:length], endings=unknown)}
    assert early <= {(m.kind, m.group, m.position) for m in match(one, other, endings=unknown)}


@pytest.mark.slow
@given(programs, programs)
def test_the_order_of_ranks_does_not_matter(one: list[Collective], other: list[Collective]) -> None:
    forward = [(m.kind, m.group, m.position) for m in match(one, other)]
    backward = [(m.kind, m.group, m.position) for m in match(other, one)]
    assert sorted(forward) == sorted(backward)


@given(programs, programs)
def test_rows_show_every_call_once_in_each_ranks_order(one: list[Collective], other: list[Collective]) -> None:
    ranks = streams(one, other)
    table = rows(ranks, DONE)
    for rank, made in ranks.items():
        shown = [row.calls[rank] for row in table if row.calls.get(rank)]
        assert sorted(c.n for c in shown if c) == [c.n for c in made]
        for group in ("world", "0,1"):
            assert [c for c in shown if c and c.group == group] == [c for c in made if c.group == group]
