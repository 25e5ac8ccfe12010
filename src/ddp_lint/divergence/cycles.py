"""What is worked out once, and how much of it holds wherever it is asked for again.

Where one thing leads back to another that is being worked out, the way ends there (a cut). What comes out then holds
while that other one is being worked out, and no longer: a finding must not depend on where a cycle was entered first,
which follows from the files that were read before.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, MutableMapping
from typing import Any, TypeVar

from ddp_lint.project import Answered, Project

T = TypeVar("T")


@dataclasses.dataclass(slots=True, eq=False)
class _Open:
    """Something in a memory: what it was cut at, and what lies on the cycles that it is on."""

    token: Hashable
    kept: MutableMapping[Any, Any]
    cuts: set[Hashable] = dataclasses.field(default_factory=set)
    members: set[Hashable] = dataclasses.field(default_factory=set)


class Cycles:
    """The memories of one project's evaluations, and what is being worked out for them."""

    def __init__(self, project: Project) -> None:
        self._project = project
        self._open: list[_Open] = []
        self._running: set[Hashable] = set()
        self._cyclic: dict[Hashable, _Open] = {}
        #: By token: what holds only while this is being worked out.
        self._resting: dict[Hashable, list[_Open]] = {}

    def is_running(self, token: Hashable) -> bool:
        return token in self._running

    def is_cyclic(self, token: Hashable) -> bool:
        """Is it on a cycle, so that it holds for nothing else?"""
        return token in self._cyclic

    def cut(self, token: Hashable) -> None:
        """What is in hand asks for something that is being worked out already, and goes without."""
        if self._open:
            self._open[-1].cuts.add(token)

    def forget(self) -> None:
        """Before a new root: nothing is being worked out."""
        self._open.clear()
        self._running.clear()
        for token in list(self._resting):
            self._drop(token)

    def once(self, token: Hashable, make: Callable[[], T], kept: MutableMapping[Any, Answered[T]]) -> T:
        """`make()`, kept as `token` for as long as it holds."""
        known = self._cyclic.get(token) if token in kept else None
        if known is not None and not known.members.isdisjoint(self._running):
            self._let_go(known)  # from here the cycle is cut elsewhere
        elif known is not None:
            self._hand_up(known)
        return self._project.remember(token, lambda: self._made(_Open(token, kept), make), kept)

    def _made(self, this: _Open, make: Callable[[], T]) -> T:
        self._cyclic.pop(this.token, None)  # of one that was dropped with a file
        self._open.append(this)
        self._running.add(this.token)
        try:
            return make()
        finally:
            self._open.pop()
            self._running.discard(this.token)
            self._close(this)

    def _close(self, this: _Open) -> None:
        self._drop(this.token)
        if not this.cuts:
            return
        this.members.add(this.token)
        self._cyclic[this.token] = this
        this.cuts.discard(this.token)
        if this.cuts:
            inner = next(each.token for each in reversed(self._open) if each.token in this.cuts)
            self._resting.setdefault(inner, []).append(this)
            self._hand_up(this)

    def _hand_up(self, this: _Open) -> None:
        if this.cuts and self._open:
            self._open[-1].cuts |= this.cuts
            self._open[-1].members |= this.members

    def _drop(self, token: Hashable) -> None:
        for each in self._resting.pop(token, ()):
            self._let_go(each)

    def _let_go(self, this: _Open) -> None:
        if self._cyclic.get(this.token) is this:
            del self._cyclic[this.token]
            this.kept.pop(this.token, None)
