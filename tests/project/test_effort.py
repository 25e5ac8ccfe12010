"""What results cost is counted the same as if each look went through all that is behind them."""

from __future__ import annotations

import random

import pytest

from ddp_lint.project import effort as effort_module
from ddp_lint.project.effort import Bound, Effort, Work

#: What functions of one size count as repeated from 16 times that, and more from 160 times that.
SIZE = 2


class Plain:
    """Counts by going through everything at each look."""

    def __init__(self) -> None:
        self.stepped: list[Work | None] = []
        self.used: list[Work] = []
        self.made: set[Work] = set()

    def taken(self) -> tuple[int, dict[object, int]]:
        """All steps, and those by function."""
        reached: set[Work] = set()
        left = list(self.used)
        while left:
            work = left.pop()
            if work not in reached:
                reached.add(work)
                left += work.uses
        by_function: dict[object, int] = {}
        for work, steps in [*((w, 1) for w in self.stepped), *((w, w.steps) for w in reached - self.made)]:
            if work is not None and work.of is not None:
                by_function[work.of] = by_function.get(work.of, 0) + steps
        return len(self.stepped) + sum(work.steps for work in reached - self.made), by_function

    def exceeds(self, bound: Bound) -> bool:
        steps, by_function = self.taken()
        return steps > bound.steps or sum(map(_repeated, by_function.values())) > bound.repeated

    def exceeds_half(self, bound: Bound) -> bool:
        steps, by_function = self.taken()
        return steps > bound.steps // 2 or sum(_repeated(2 * n) for n in by_function.values()) > bound.repeated


def _repeated(taken: int) -> int:
    return max(taken - 16 * SIZE, 0) + 15 * max(taken - 160 * SIZE, 0)


class Both:
    """Tells the effort and the plain count the same."""

    def __init__(self) -> None:
        self.effort = Effort()
        self.part, self.whole = Plain(), Plain()
        self.kept: list[Work] = []
        self._making: list[Work] = []

    def start_part(self) -> None:
        self.effort.start_part()
        self.part = Plain()

    def start_whole(self) -> None:
        self.effort.start_whole()
        self.part, self.whole = Plain(), Plain()

    def step(self) -> None:
        self.effort.step()
        for plain in (self.part, self.whole):
            plain.stepped.append(self.effort._making)

    def use(self, work: Work) -> None:
        self.effort.use(work)
        for plain in (self.part, self.whole):
            plain.used.append(work)

    def make(self, of: object, what: object) -> None:
        """A result with the steps and uses that `what()` makes, which is kept and used."""
        outer = self.effort.begin()
        self.effort.about(of, SIZE)
        what()  # type: ignore[operator]
        work = self.effort.end(outer)
        if work is not None:
            for plain in (self.part, self.whole):
                plain.made.add(work)
            self.kept.append(work)
            self.use(work)


def _some(both: Both, chance: random.Random, depth: int, functions: int) -> None:
    """Steps, kept results and new ones in random order."""
    for _ in range(chance.randint(1, 5)):
        what = chance.random()
        if what < 0.3:
            for _ in range(chance.choice((1, 5, 60))):
                both.step()
        elif what < 0.6 and both.kept:
            both.use(both.kept[-1] if chance.random() < 0.5 else chance.choice(both.kept))
        elif depth < 4:
            both.make(chance.randrange(functions), lambda: _some(both, chance, depth + 1, functions))


@pytest.mark.parametrize("seed", range(60))
def test_random_results_cost_what_going_through_all_of_them_counts(seed: int) -> None:
    chance = random.Random(seed)
    both = Both()
    functions = chance.choice((2, 10, 200))
    answers = set()
    for _ in range(40):
        if chance.random() < 0.1:
            both.start_whole()
        elif chance.random() < 0.8:
            both.start_part()
        _some(both, chance, 0, functions)
        for _ in range(3):
            bound = Bound(chance.choice((50, 400, 2_000, 10_000)), chance.choice((0, 100, 1_000, 20_000)))
            for count, plain in ((both.effort.part, both.part), (both.effort.whole, both.whole)):
                asked = [(count.exceeds, plain.exceeds), (count.exceeds_half, plain.exceeds_half)]
                for mine, right in chance.sample(asked, chance.randint(1, 2)):
                    assert mine(bound) == right(bound)
                    answers.add(mine(bound))
    assert answers == {True, False}


def test_a_chain_of_results_is_not_gone_through_for_each_part(monkeypatch: pytest.MonkeyPatch) -> None:
    looked = 0
    add = effort_module.Count._add

    def counted(count: effort_module.Count, work: Work) -> None:
        nonlocal looked
        looked += 1
        add(count, work)

    monkeypatch.setattr(effort_module.Count, "_add", counted)
    both = Both()
    bound = Bound(1_000, 160)
    for n in range(200):
        both.start_part()
        both.make(n, lambda: (both.step(), *map(both.use, both.kept[-1:])))
        assert not both.effort.part.exceeds(bound)
    assert looked < 400  # for each part by itself: 20,000
