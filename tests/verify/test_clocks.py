"""Loops that are left by the clock of a rank."""

from __future__ import annotations

import inspect
import sys
import time
from types import SimpleNamespace
from typing import Any, cast

import pytest

pytest.importorskip("torch")

from ddp_lint.verify.child.models import Models
from ddp_lint.verify.child.observers.clocks import Clocks
from ddp_lint.verify.child.recorder import Recorder


def train(clock: Any, last: int, rounds: int = 4) -> None:
    for step in range(rounds):
        if clock() > 0 and step >= last:
            print("over")
            break
        print(step)


def meets(clock: Any, last: int) -> None:
    for step in range(4):
        if clock() > 0 and step >= last:
            print(step)


@pytest.mark.parametrize(
    ("loop", "last", "lines"),
    [(train, 2, [2]), (train, 3, [2]), (train, 9, []), (meets, 2, [])],
    ids=["left", "in the last round", "went to its end", "stays"],
)
def test_an_if_that_leaves_a_loop_by_the_clock(loop: Any, last: int, lines: list[int]) -> None:
    """And not one that came to its end before."""
    told: list[tuple[int, tuple[int, int]]] = []
    recorder = SimpleNamespace(
        active=True, writer=SimpleNamespace(written=7), emit=lambda _, **f: told.append((f["asked"][0].line, f["body"]))
    )
    clocks = Clocks(cast(Recorder, recorder), Models())
    before = sys.gettrace()
    loop(clocks._watched(time.monotonic), last)
    assert sys.gettrace() is before
    clocks.finish()
    first = inspect.getsourcelines(loop)[1]
    assert told == [(first + line, (first + 2, first + 5)) for line in lines]
