"""Deep recursion below a function with room for its frames asks the system for no memory at each call."""

import resource
import sys

import pytest

from ddp_lint.engine.frames import with_room


def _down(depth: int, then: int) -> int:
    """Goes down to a depth, and there up and down by one call again and again."""
    if depth:
        return _down(depth - 1, then)
    return sum(_leaf(number) for number in range(then))


def _leaf(number: int) -> int:
    return number % 2


@with_room
def _with_room(depth: int, then: int) -> int:
    return _down(depth, then)


def test_a_function_with_room_does_what_it_did() -> None:
    assert _with_room(50, 7) == 3
    assert _with_room.__name__ == "_with_room"


@pytest.mark.skipif(sys.version_info < (3, 11), reason="frames are objects of their own")
def test_no_depth_of_recursion_takes_memory_at_each_call() -> None:
    def most_faults(call: object) -> int:
        most = 0
        for depth in range(100, 300):
            before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
            call(depth, 200)  # type: ignore[operator]
            most = max(most, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
        return most

    _with_room(400, 1)
    assert most_faults(_with_room) < 100
