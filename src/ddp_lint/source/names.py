"""The names of one function while it is evaluated, with what they hold."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeVar

T = TypeVar("T")

#: Where the text of a part goes on after that of what it is a part of.
_PART = re.compile(r"[.\[]")


class Names(dict[str, T]):
    """What names hold, and their attributes and items (``x.a``, ``x[0]``), by their texts.

    A long function has thousands of names, rebinds them and branches thousands of times: where two arms meet, only the
    names are looked at that they have set, and where a name is rebound, only its parts.
    """

    __slots__ = ("_before", "_changed", "_marks", "_of", "_parts")

    def __init__(self, names: Mapping[str, T] | None = None) -> None:
        super().__init__(names or ())
        #: What was there before, where what is set now will be taken back; None for what was not there.
        self._before: dict[str, T | None] | None = None
        #: What was set or deleted, in order, and how much of it when the names were copied, by what stands for that.
        self._changed: list[str] = []
        self._marks: dict[object, int] = {}
        #: What stands for the state of other names that these are a copy of.
        self._of: object = None
        #: By text the parts that were ever set, here or in another copy.
        self._parts: dict[str, set[str]]
        if isinstance(names, Names):
            self._parts = names._parts
            self._of = names._mark()
        else:
            self._parts = {}
            for name in self:
                self._note(name)

    def _mark(self) -> object:
        """What stands for the names as they are now."""
        last = next(reversed(self._marks), None)
        if last is None or self._marks[last] < len(self._changed):
            last = object()
            self._marks[last] = len(self._changed)
        return last

    def __setitem__(self, name: str, value: T) -> None:
        if self._before is not None:
            self._before.setdefault(name, self.get(name))
        if name not in self:
            self._note(name)
        self._changed.append(name)
        super().__setitem__(name, value)

    def __delitem__(self, name: str) -> None:
        if self._before is not None:
            self._before.setdefault(name, self[name])
        self._changed.append(name)
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
            for name, value in before.items():
                if value is None:
                    super().pop(name, None)
                else:
                    super().__setitem__(name, value)

    def differing(self, other: Names[T]) -> Iterable[str]:
        """The names that may hold something else there, or nothing: few of them for two copies of the same names, and
        for names and a copy of them."""
        if self._of is not None and self._of is other._of:
            return dict.fromkeys((*self._changed, *other._changed))
        if self._of in other._marks:
            return dict.fromkeys((*self._changed, *other._changed[other._marks[self._of] :]))
        if other._of in self._marks:
            return other.differing(self)
        return {**self, **other}

    def gone_on_from(self, before: Names[T]) -> Names[T]:
        """A copy, as what became of the names before, of which these are a copy or which they are."""
        after = Names(self)
        if self is before:
            after._of, after._changed = before._of, list(dict.fromkeys(before._changed))
        elif self._of in before._marks:
            after._of, after._changed = before._of, list(dict.fromkeys((*before._changed, *self._changed)))
        return after


__all__ = ["Names"]
