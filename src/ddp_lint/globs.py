"""Patterns in the syntax of .gitignore.

They come with the checkout, so what they cost is bounded: a pattern takes time in proportion to its own length times
that of the path. Regular expressions for whole patterns try every way to share out the text among the stars.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import pathlib
import re
from collections.abc import Iterator, Sequence

_WILD = re.compile(r"[*?\[\\]")
_POSIX = {
    "alnum": "0-9A-Za-z", "alpha": "A-Za-z", "blank": r" \t", "cntrl": r"\x00-\x1f\x7f", "digit": "0-9",
    "graph": "!-~", "lower": "a-z", "print": " -~", "punct": r"!-/:-@\[-`{-~", "space": r" \t\n\r\f\v", "upper": "A-Z",
    "xdigit": "0-9A-Fa-f",
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Globs:
    """Patterns relative to `base`; `outside` decides of what does not lie below it."""

    base: pathlib.Path
    patterns: tuple[str, ...]
    outside: Globs | None = None

    def decide(self, path: str, is_folder: bool = False, *, itself: bool = False) -> bool | None:
        """True where the absolute path, or a folder above it, is matched; False where a `!` pattern takes it back.

        The last pattern that matches decides, and of a path and the folders above it the nearest to the path that any
        pattern matches. With `itself` the folders above do not count, as for git, which asks about each in turn.
        """
        base = str(self.base).rstrip(os.sep) + os.sep
        if not path.startswith(base):
            return self.outside.decide(path, is_folder, itself=itself) if self.outside else None
        inside = path[len(base) :].replace(os.sep, "/")
        rules = _compiled(self.patterns)
        while inside:
            decision = rules.decide(inside, is_folder)
            if decision is not None or itself:
                return decision
            inside, is_folder = inside.rpartition("/")[0], True
        return None


@functools.cache
def without(globs: Globs, folder: str) -> Globs:
    """The same, less the patterns that match this very folder: who names an excluded folder means what is in it."""
    keep = tuple(p for p in globs.patterns if not Globs(globs.base, (p,)).decide(folder, is_folder=True))
    return Globs(globs.base, keep, globs.outside and without(globs.outside, folder))


def problem(pattern: str) -> str:
    """Why a pattern can never match anything, '' where it can."""
    rule = _Rule.of(pattern)
    return rule.problem if rule else ""


@functools.cache
def _compiled(patterns: tuple[str, ...]) -> _Rules:
    return _Rules(patterns)


class _Rules:
    """Patterns in their order. Those without wildcards are looked up: there may be thousands of them."""

    def __init__(self, patterns: Sequence[str]) -> None:
        self._plain: dict[str, list[tuple[int, _Rule]]] = {}
        self._wild: list[tuple[int, _Rule]] = []
        for number, pattern in enumerate(patterns):
            rule = _Rule.of(pattern)
            if rule is None or rule.problem:
                continue
            if rule.plain is None:
                self._wild.append((number, rule))
            else:
                self._plain.setdefault(rule.plain, []).append((number, rule))
        self._wild.reverse()

    def decide(self, path: str, is_folder: bool) -> bool | None:
        """What the last pattern that matches this path says; None where none does."""
        last, found = -1, None
        for key in (path.rpartition("/")[2], "/" + path):
            for number, rule in self._plain.get(key, ()):
                if number > last and (is_folder or not rule.folders):
                    last, found = number, not rule.negated
        for number, rule in self._wild:
            if number < last:
                break
            if (is_folder or not rule.folders) and rule.matches(path):
                return not rule.negated
        return found


@dataclasses.dataclass(frozen=True)
class _Rule:
    """One pattern: `segments` between its slashes, None for one that stands for any number of folders (``**``).

    `anchored`: it is for the whole path below the base, not for the last name alone; `folders`: for folders alone;
    `plain`: what it matches, where it has no wildcards, with a slash before it where it is anchored.
    """

    segments: tuple[_Segment | None, ...] = ()
    negated: bool = False
    folders: bool = False
    anchored: bool = False
    plain: str | None = None
    problem: str = ""

    @classmethod
    def of(cls, pattern: str) -> _Rule | None:
        """None for an empty line and a comment."""
        text = _trimmed(pattern)
        if not text or text.startswith("#"):
            return None
        negated = text.startswith("!")
        text = text[negated:]
        folders = text.endswith("/")
        text = text[: len(text) - folders]
        anchored = "/" in text
        text = text.removeprefix("/")
        if not text:
            return cls(problem="it is empty")
        if not _WILD.search(text):
            return cls((), negated, folders, anchored, "/" * anchored + text)
        try:
            found = list(_segments(text))
            segments = tuple(s for n, s in enumerate(found) if s is not None or found[n + 1 : n + 2] != [None])
        except ValueError as e:
            return cls(problem=str(e))
        return cls(segments, negated, folders, anchored)

    def matches(self, path: str) -> bool:
        if not self.anchored:
            (segment,) = self.segments
            return segment is None or segment.matches(path.rpartition("/")[2])
        return _match(self.segments, path.split("/"))


def _trimmed(pattern: str) -> str:
    """A line without the spaces at its end, but for those behind a backslash."""
    kept = pattern.rstrip(" ")
    backslashes = len(kept) - len(kept.rstrip("\\"))
    return pattern[: len(kept) + 1] if backslashes % 2 and len(kept) < len(pattern) else kept


def _match(segments: Sequence[_Segment | None], names: Sequence[str]) -> bool:
    """Whether segments match names, one a name; None matches any number of them, but at the end at least one.

    Where a name does not match, only what the last None stands for can be longer: earlier ones gain nothing.
    """
    at = name = 0
    retry = None
    while name < len(names):
        if at < len(segments) and segments[at] is None:
            if at == len(segments) - 1:
                return True
            retry = (at, name)
            at += 1
            continue
        if at < len(segments) and (segment := segments[at]) is not None and segment.matches(names[name]):
            at, name = at + 1, name + 1
            continue
        if retry is None:
            return False
        retry = (retry[0], retry[1] + 1)
        at, name = retry[0] + 1, retry[1]
    return at == len(segments)


class _Segment:
    """The pattern of one name: runs of characters of a known length, with any text at the stars between them."""

    def __init__(self, runs: list[list[str]]) -> None:
        self._runs = runs
        self._least = sum(map(len, runs))

    @functools.cached_property
    def _searches(self) -> list[re.Pattern[str]]:
        return [re.compile("".join(run), re.DOTALL) for run in self._runs]

    def matches(self, name: str) -> bool:
        if self._least > len(name):
            return False
        first, *others = self._searches
        if not others:
            return first.fullmatch(name) is not None
        *middle, last = others
        if first.match(name) is None:
            return False
        at, end = len(self._runs[0]), len(name) - len(self._runs[-1])
        for search, run in zip(middle, self._runs[1:-1], strict=True):
            found = search.search(name, at, end) if run else None
            if run and found is None:
                return False
            at = found.end() if found else at
        return last.fullmatch(name, end) is not None if at <= end else False


def _segments(text: str) -> Iterator[_Segment | None]:
    """The segments of a pattern. Raises ValueError where it can match nothing."""
    runs: list[list[str]] = [[]]
    started = at = 0
    while at < len(text):
        at += text.startswith("\\/", at)
        character = text[at]
        if character == "/":
            yield _segment(text[started:at].removesuffix("\\"), runs)
            runs, started = [[]], at + 1
        elif character == "*":
            if runs[-1] or len(runs) == 1:
                runs.append([])
        elif character == "?":
            runs[-1].append(".")
        elif character == "[":
            at, klass = _bracket(text, at + 1)
            runs[-1].append(klass)
        else:
            if character == "\\":
                at += 1
                if at == len(text):
                    raise ValueError("it ends with a backslash")
            runs[-1].append(re.escape(text[at]))
        at += 1
    yield _segment(text[started:], runs)


def _segment(text: str, runs: list[list[str]]) -> _Segment | None:
    return None if len(text) > 1 and not text.strip("*") else _Segment(runs)


def _bracket(text: str, at: int) -> tuple[int, str]:
    """Where a bracket that was opened before `at` closes, and its expression. Raises ValueError where it does not."""
    negated = text[at : at + 1] in ("!", "^") and at < len(text)
    at += negated
    members: list[str] = []
    before, first = "", True
    while first or text[at : at + 1] != "]":
        first = False
        if at >= len(text):
            raise ValueError("its '[' is not closed")
        character = text[at]
        if character == "-" and before and text[at + 1 : at + 2] not in ("", "]"):
            at, high = _literal(text, at + 1)
            if before <= high:
                members.append(f"{re.escape(before)}-{re.escape(high)}")
            before = ""
        elif text.startswith("[:", at) and (end := text.find("]", at + 2)) > at + 2 and text[end - 1] == ":":
            name = text[at + 2 : end - 1]
            if name not in _POSIX:
                raise ValueError(f"there is no class [:{name}:]")
            members.append(_POSIX[name])
            at, before = end, ""
        else:
            at, before = _literal(text, at)
            members.append(re.escape(before))
        at += 1
    return at, _class("".join(members), negated)


def _literal(text: str, at: int) -> tuple[int, str]:
    """The character at a place, behind its backslash where it has one."""
    at += text[at] == "\\"
    if at >= len(text):
        raise ValueError("its '[' is not closed")
    return at, text[at]


def _class(members: str, negated: bool) -> str:
    if not members:
        return "." if negated else r"(?!)."
    return f"[{'^' * negated}{members}]"
