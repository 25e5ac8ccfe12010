"""How late a polling thread was itself: while the machine was stuck, no rank counts as idle."""

from __future__ import annotations

import collections

#: Stalls that are remembered.
_KEPT = 64


class Lateness:
    """Told of every poll of one thread. A poll that comes more than `slack` seconds late was held up, and so was all
    else: `age` leaves that time out."""

    def __init__(self, interval: float, slack: float) -> None:
        self._interval = interval
        self._slack = slack
        self._last: float | None = None
        #: Beginning and end of each stall.
        self._stalls: collections.deque[tuple[float, float]] = collections.deque(maxlen=_KEPT)

    def poll(self, now: float) -> None:
        due = now if self._last is None else self._last + self._interval
        if now - due > self._slack:
            self._stalls.append((due, now))
        self._last = now

    def age(self, since: float, now: float) -> float:
        """Seconds from `since` until `now` in which this thread was not held up."""
        return now - since - sum(max(0.0, min(end, now) - max(begin, since)) for begin, end in self._stalls)
