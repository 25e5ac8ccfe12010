"""What orders the work of CUDA streams: events, host waits, and the allocator's memory given out again."""

from __future__ import annotations

from collections.abc import Iterable

from ddp_lint.verify.child.ordering import Ordering, Unordered
from ddp_lint.verify.trace import Frame

MAIN, SIDE, THIRD = 0, 7, 9
X, Y = 0x1000, 0x2000
EVENT = 5
HERE = (Frame("/p/train.py", 3, "load"),)


def write(ordering: Ordering, stream: int, address: int = X) -> list[Unordered]:
    return list(ordering.write(ordering.launch(stream, "aten.add_", HERE), {address}))


def read(ordering: Ordering, stream: int, address: int = X) -> list[Unordered]:
    return list(ordering.read(ordering.launch(stream, "aten.sum", HERE), {address}))


def streams(races: Iterable[Unordered]) -> list[tuple[int, int]]:
    return [(race.earlier.stream, race.later.stream) for race in races]


def after(ordering: Ordering, first: int, then: int, event: int = EVENT) -> None:
    ordering.record(event, first)
    ordering.wait(event, then)


def test_one_stream_is_in_order() -> None:
    ordering = Ordering()
    assert not write(ordering, MAIN) and not read(ordering, MAIN) and not write(ordering, MAIN)


def test_a_read_on_another_stream_needs_an_event() -> None:
    ordering = Ordering()
    write(ordering, MAIN)
    assert streams(read(ordering, SIDE)) == [(MAIN, SIDE)]
    assert not read(ordering, SIDE, Y), "other memory"


def test_a_write_after_a_read_on_another_stream_needs_an_event() -> None:
    ordering = Ordering()
    write(ordering, MAIN)
    after(ordering, MAIN, SIDE)
    assert not read(ordering, SIDE)
    assert streams(write(ordering, MAIN)) == [(SIDE, MAIN)], "main does not wait back"
    after(ordering, SIDE, MAIN)
    assert not write(ordering, MAIN)


def test_two_reads_need_no_order() -> None:
    ordering = Ordering()
    assert not read(ordering, MAIN) and not read(ordering, SIDE)


def test_an_event_orders_only_what_was_launched_before_it_was_recorded() -> None:
    ordering = Ordering()
    ordering.record(EVENT, MAIN)
    write(ordering, MAIN)
    ordering.wait(EVENT, SIDE)
    assert streams(read(ordering, SIDE)) == [(MAIN, SIDE)]


def test_an_event_of_the_wrong_stream_orders_nothing() -> None:
    ordering = Ordering()
    write(ordering, SIDE)
    after(ordering, THIRD, MAIN)
    assert streams(read(ordering, MAIN)) == [(SIDE, MAIN)]


def test_order_goes_through_a_third_stream() -> None:
    ordering = Ordering()
    write(ordering, MAIN)
    after(ordering, MAIN, THIRD, 1)
    after(ordering, THIRD, SIDE, 2)
    assert not read(ordering, SIDE)


def test_what_an_operation_records_by_itself_covers_it() -> None:
    """A collective's stream waits for the current one inside the call; whoever waits for it comes after the launch."""
    ordering = Ordering()
    collective = ordering.launch(MAIN, "c10d.allreduce_", HERE)
    after(ordering, MAIN, THIRD, 1)
    assert not list(ordering.write(collective, {X}))
    after(ordering, THIRD, SIDE, 2)
    assert not read(ordering, SIDE)


def test_a_host_that_waits_orders_all_that_is_launched_later() -> None:
    for wait in (Ordering.host_waits_for_all, lambda o: o.host_waits_for_stream(MAIN)):
        ordering = Ordering()
        write(ordering, MAIN)
        wait(ordering)
        assert not read(ordering, SIDE), "also on a stream that is new"
    ordering = Ordering()
    write(ordering, MAIN)
    ordering.record(EVENT, MAIN)
    ordering.host_waits_for_event(EVENT)
    assert not read(ordering, SIDE)


def reused(kept_for: int | None) -> list[Unordered]:
    """Memory of SIDE is read on MAIN, given back, and written by its next owner on SIDE."""
    ordering = Ordering()
    ordering.allocate(X)
    write(ordering, SIDE)
    if kept_for is not None:
        ordering.keep(X, kept_for)
    after(ordering, SIDE, MAIN)
    read(ordering, MAIN)
    ordering.free(X)
    ordering.allocate(X)
    return write(ordering, SIDE)


def test_memory_that_another_stream_still_reads_is_given_out_again() -> None:
    (race,) = reused(kept_for=None)
    assert (race.earlier.stream, race.later.stream, race.freed) == (MAIN, SIDE, True)


def test_memory_recorded_for_the_stream_that_reads_it_is_kept() -> None:
    assert reused(kept_for=SIDE), "recorded for the stream that made it"
    assert not reused(kept_for=MAIN)


def test_memory_that_torch_itself_used_is_its_own_concern() -> None:
    ordering = Ordering()
    list(ordering.read(ordering.launch(MAIN, "autograd"), {X}))
    ordering.free(X)
    assert not write(ordering, SIDE)
