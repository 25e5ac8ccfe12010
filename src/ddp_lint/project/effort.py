"""What results cost, in steps that are counted: the same number whether a result is made or was kept, in any order."""

from __future__ import annotations


class Work:
    """What making one result takes: steps of its own, and the kept results that it uses."""

    __slots__ = ("steps", "uses")

    def __init__(self) -> None:
        self.steps = 0
        self.uses: list[Work] = []


class Effort:
    """Counts the steps behind what is looked at, a kept result once in each `part` and once in each `whole`."""

    def __init__(self) -> None:
        self.in_part = self.in_whole = 0
        self._making: Work | None = None
        #: By kept result, the number of the latest part that it counts in.
        self._counted: dict[Work, int] = {}
        self._part = 0

    def start_whole(self) -> None:
        self._counted.clear()
        self.in_whole = 0
        self.start_part()

    def start_part(self) -> None:
        self._part += 1
        self.in_part = 0

    def step(self) -> None:
        self.in_part += 1
        self.in_whole += 1
        if self._making is not None:
            self._making.steps += 1

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
        self._counted[made] = self._part
        return made

    def use(self, work: Work) -> None:
        """A kept result is used: what it took counts, with all that it uses."""
        if self._making is not None:
            self._making.uses.append(work)
        stack = [work]
        while stack:
            each = stack.pop()
            counted = self._counted.get(each)
            if counted == self._part:
                continue
            self._counted[each] = self._part
            self.in_part += each.steps
            self.in_whole += each.steps if counted is None else 0
            stack += each.uses


__all__ = ["Effort", "Work"]
