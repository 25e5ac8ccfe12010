"""What results cost: in steps that are counted, the same number whether a result is made or was kept, in any order; in
CPU seconds, charged to the file that the work was about."""

from __future__ import annotations

import collections
import time
from collections.abc import Hashable

#: What takes more steps takes too many.
_MOST = 10**9
#: How many times the steps of its own size one function may take before more of them are repeated ones, and how much
#: more each of them counts beyond this and the next one. In four engines a root takes up to six times what the
#: functions that it runs have together, and no function more than 156 times its size; argument lists that double reach
#: any multiple within a few calls.
_TIMES = ((16, 1), (160, 15))
_FIRST = _TIMES[0][0]
#: As what a step counts at most.
_HEAVIEST = sum(weight for _, weight in _TIMES)


class Bound:
    """How many steps something may take, and how many of them may be repeated ones."""

    __slots__ = ("certain", "repeated", "steps")

    def __init__(self, steps: int, repeated: int) -> None:
        self.steps, self.repeated = steps, repeated
        #: With so many steps, whichever, it is not exceeded: asked at each step.
        self.certain = min(steps, repeated // _HEAVIEST)


class Work:
    """What making one result takes: steps of its own, and the kept results that it uses. `most`: all steps, where what
    is used in several ways counts in each. `of`, `size`: what is made again for other arguments, if anything, and the
    steps that it takes at least."""

    __slots__ = ("most", "of", "size", "steps", "uses")

    def __init__(self) -> None:
        self.steps = self.most = self.size = 0
        self.of: Hashable = None
        self.uses: list[Work] = []


class Count:
    """The steps behind what is looked at, a kept result once. They are counted exactly where there may be too many:
    else each look at a chain of results would go through all of it. What a part takes is at most what the whole that
    it is `within` takes, which goes through each result once for all of its parts.

    Repeated steps are those that a function takes beyond a multiple of its size, and those beyond larger multiples
    count more. They distinguish argument lists that double from call to call, which cost without end for a few lines,
    from an engine that is as large. Like the steps they only become more, and are the same in any order."""

    def __init__(self, within: Count | None = None) -> None:
        #: Another count that gets all that this one gets.
        self._within = within
        #: Those that were counted so far.
        self.steps = self.repeated = 0
        self._most = 0
        self._counted: set[Work] = set()
        self._left: list[Work] = []
        #: By function: the steps that it has taken, and its size.
        self._taken: dict[Hashable, tuple[int, int]] = {}

    def exceeds(self, bound: Bound) -> bool:
        if self._most <= bound.certain or not self._may_exceed(bound):
            return False
        while self._left and not self._is_beyond(bound):
            self._add(self._left.pop())
        if not self._left:
            self._most = self.steps
        return self._is_beyond(bound)

    def exceeds_half(self, bound: Bound) -> bool:
        """Whether this, with another one of which it is false, may exceed the bound: steps of a function which both
        may take are repeated ones together."""
        if self._most <= bound.certain // 2:
            return False
        self._add_what_is_left()
        twice = sum(_repeated(2 * taken, size) for taken, size in self._taken.values())
        return self.steps > bound.steps // 2 or twice > bound.repeated

    def _may_exceed(self, bound: Bound) -> bool:
        """What is known without going through what is left."""
        whole = self._within
        if self._most <= bound.certain or whole is None:
            return self._most > bound.certain
        whole._add_what_is_left()
        return min(self._most, whole.steps) > bound.steps or whole.repeated > bound.repeated

    def _is_beyond(self, bound: Bound) -> bool:
        return self.steps > bound.steps or self.repeated > bound.repeated

    def _add_what_is_left(self) -> None:
        while self._left:
            self._add(self._left.pop())
        self._most = self.steps

    def _add(self, work: Work) -> None:
        if work not in self._counted:
            self._counted.add(work)
            self.steps += work.steps
            self._take(work, work.steps)
            self._left += work.uses

    def step(self, making: Work | None) -> None:
        self.steps += 1
        self._most += 1
        if making is not None:
            self._take(making, 1)

    def _take(self, work: Work, steps: int) -> None:
        if work.of is not None:
            before, size = self._taken.get(work.of, (0, work.size))
            self._taken[work.of] = before + steps, size
            if before + steps > _FIRST * size:
                self.repeated += _repeated(before + steps, size) - _repeated(before, size)

    def made(self, work: Work) -> None:
        """Its steps were counted one by one."""
        self._counted.add(work)

    def use(self, work: Work) -> None:
        if work not in self._counted:
            self._left.append(work)
            self._most += work.most


def _repeated(taken: int, size: int) -> int:
    """What of the steps of a function of this size counts as repeated."""
    return sum(weight * max(taken - times * size, 0) for times, weight in _TIMES)


class Effort:
    """Counts the steps of a part and of the whole that is worked on."""

    def __init__(self) -> None:
        self._making: Work | None = None
        self.start_whole()

    def start_whole(self) -> None:
        self.whole = Count()
        self.start_part()

    def start_part(self) -> None:
        self.part = Count(self.whole)

    def step(self) -> None:
        self.part.step(self._making)
        self.whole.step(self._making)
        if self._making is not None:
            self._making.steps += 1

    def about(self, of: Hashable, size: int) -> None:
        """What is being made is what a function of so many statements does for some arguments."""
        if self._making is not None:
            self._making.of, self._making.size = of, size

    def begin(self) -> Work | None:
        """Steps and uses from now on are those of one result, until `end` is given what this returns."""
        outer, self._making = self._making, Work()
        return outer

    def end(self, outer: Work | None) -> Work | None:
        """What the result took, None where nothing was counted."""
        made, self._making = self._making, outer
        if made is None or not (made.steps or made.uses):
            return None
        made.uses = list(dict.fromkeys(made.uses))
        made.most = min(_MOST, made.steps + sum(used.most for used in made.uses))
        self.part.made(made)
        self.whole.made(made)
        return made

    def use(self, work: Work) -> None:
        """A kept result is used: what it took counts, with all that it uses."""
        if self._making is not None:
            self._making.uses.append(work)
        self.part.use(work)
        self.whole.use(work)


class Charges:
    """CPU seconds by file: what a file needs of another one is charged to that one, whichever needs it first."""

    #: Instead of a file: what is worked out about all of them.
    PROJECT = ""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = collections.defaultdict(float)
        #: What work is charged to now, if anything, and since when.
        self._to: str | None = None
        self._since = 0.0

    @property
    def is_charging(self) -> bool:
        return self._to is not None

    def turn_to(self, path: str | None) -> str | None:
        """From now on work is charged to a file, or to `PROJECT`. Gives what it was charged to before."""
        before = self._to
        if path != before:
            now = time.process_time()
            if before is not None:
                self._seconds[before] += now - self._since
            self._to, self._since = path, now
        return before

    def take(self) -> tuple[tuple[str, float], ...]:
        """What has been charged since this was asked last."""
        taken, self._seconds = self._seconds, collections.defaultdict(float)
        return tuple(taken.items())


__all__ = ["Bound", "Charges", "Effort", "Work"]
