"""The names of one function while it is evaluated, with what they hold."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeVar

T = TypeVar("T")

#: Where the text of a part goes on after that of what it is a part of.
_PART = re.compile(r"[.\[]")


class _Version:
    """A state of names: what was set or deleted since the state that it goes on from, in order."""

    __slots__ = ("changed", "depth", "parent")

    def __init__(self, parent: _Version | None, changed: Iterable[str] = ()) -> None:
        self.parent = parent
        self.changed = list(changed)
        #: How many states are before it.
        self.depth: int = parent.depth + 1 if parent is not None else 0


class Names(dict[str, T]):
    """What names hold, and their attributes and items (``x.a``, ``x[0]``), by their texts.

    A long function has thousands of names, rebinds them and branches thousands of times: where two arms meet, only the
    names are looked at that they have set since they parted, and where a name is rebound, only its parts.
    """

    __slots__ = ("_before", "_parts", "_version")

    def __init__(self, names: Mapping[str, T] | None = None) -> None:
        super().__init__(names or ())
        #: What was there before, where what is set now will be taken back; None for what was not there.
        self._before: dict[str, T | None] | None = None
        #: The state that they are in. What is set now belongs to it; no copy goes on from it before it is left.
        self._version: _Version
        #: By text the parts that were ever set, here or in another copy.
        self._parts: dict[str, set[str]]
        if isinstance(names, Names):
            self._parts = names._parts
            self._version = _Version(names._left())
        else:
            self._parts = {}
            self._version = _Version(None)
            for name in self:
                self._note(name)

    def _left(self) -> _Version:
        """The state up to now, from which copies can go on."""
        version = self._version
        if not version.changed and version.parent is not None:
            return version.parent
        self._version = _Version(version)
        return version

    def __setitem__(self, name: str, value: T) -> None:
        if self._before is not None:
            self._before.setdefault(name, self.get(name))
        if name not in self:
            self._note(name)
        self._version.changed.append(name)
        super().__setitem__(name, value)

    def __delitem__(self, name: str) -> None:
        if self._before is not None:
            self._before.setdefault(name, self[name])
        self._version.changed.append(name)
        super().__delitem__(name)

    def update(self, names: Mapping[str, T]) -> None:  # type: ignore[override]
        for name, value in names.items():
            self[name] = value

    def __ior__(self, names: Mapping[str, T]) -> Names[T]:  # type: ignore[override, misc]
        self.update(names)
        return self

    def pop(self, name: str, default: Any = None) -> Any:
        found = self.get(name, default)
        if name in self:
            del self[name]
        return found

    def _note(self, name: str) -> None:
        if "." in name or "[" in name:
            for place in _PART.finditer(name):
                self._parts.setdefault(name[: place.start()], set()).add(name)

    def forget_parts(self, name: str) -> None:
        """What was known of attributes and items of a name that now refers to another object."""
        parts = self._parts.get(name)
        for part in self.keys() & parts if parts else ():
            del self[part]

    @contextlib.contextmanager
    def for_a_while(self) -> Iterator[None]:
        """What is set meanwhile is taken back at the end."""
        outer, self._before = self._before, {}
        try:
            yield
        finally:
            before, self._before = self._before, outer
            self._version.changed += before
            for name, value in before.items():
                if value is None:
                    super().pop(name, None)
                else:
                    super().__setitem__(name, value)

    def differing(self, other: Names[T]) -> Iterable[str]:
        """The names that may hold something else there, or nothing: what was changed here and there since both were
        the same, or all names where that is no more, or where they never were."""
        mine, others = self._version, other._version
        here: list[list[str]] = []
        there: list[list[str]] = []
        left = len(self) + len(other)
        while mine is not others:
            deeper = mine.depth >= others.depth
            changed, parent = (mine.changed, mine.parent) if deeper else (others.changed, others.parent)
            left -= len(changed) + 1
            if parent is None or left < 0:
                return {**self, **other}
            if deeper:
                here.append(changed)
                mine = parent
            else:
                there.append(changed)
                others = parent
        return dict.fromkeys(name for part in (*reversed(here), *reversed(there)) for name in part)

    def gone_on_from(self, before: Names[T]) -> Names[T]:
        """A copy, as what became of the names before: what was changed since then is one step."""
        after = Names(self)
        if self is not before:
            start = before._left()
            after._version = _Version(start, self.differing(before))
        return after


__all__ = ["Names"]
