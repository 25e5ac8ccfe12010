"""What a project's files mention, kept from run to run, and from it which functions can communicate."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import pathlib
import re
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ddp_lint import files
from ddp_lint.knowledge.project_names import Names, wrapping_pattern
from ddp_lint.program.mentions import MODULE, FileMentions, mentions_of
from ddp_lint.program.reach import reach_of, words_that_count
from ddp_lint.project.communication import Reach
from ddp_lint.source.file import Unreadable, decode

#: Names of the files that the index is kept in.
_MENTIONS, _REACH = "mentions.json", "reach.json"
#: Bytes of such a file: some hundred times what a large project takes would be none of ours.
_LIMIT = 2**30
#: Changed files that are looked at again to see whether what they mention has.
_FEW = 20
_NOTHING: Mapping[str, str] = types.MappingProxyType({})


@dataclasses.dataclass(frozen=True)
class Place:
    """Where an index is kept (None: nowhere), and below which folder its files lie."""

    root: str
    folder: pathlib.Path | None


def index(
    paths: Sequence[str],
    names: Names,
    place: Place,
    *,
    read: Callable[[], bool] = lambda: True,
    unsaved: Mapping[str, str] = _NOTHING,
) -> Reach | None:
    """Which functions of the files can communicate; files that cannot be read or compiled are left out.

    Nothing is read again of a file whose size and time of change are those of an earlier run; where the files that have
    changed mention what they mentioned, of all that can lead anywhere, the answer of that run holds. `read` is asked
    where it does not: None without it; `unsaved`: texts of files that count then instead of the disk. Never fails.
    """
    states = {path: _state(path) if path not in unsaved else "" for path in paths}
    kept = _kept(place, states, names, unsaved)
    if kept is not None:
        return {os.path.join(place.root, path): _decoded(found) for path, found in kept.items()}
    if not read():
        return None
    mentions = _mentions(states, names, place)
    reach = reach_of(mentions, names)
    if place.folder is not None:
        counting = words_that_count(mentions.values(), names)
        digests = {path: _digest(mentions.get(path), counting) for path in states}
        _keep(place, states, digests, names, reach, counting)
    return reach


def _decoded(names: str) -> frozenset[str]:
    """The names of functions; a space in front marks the module's own statements, whose name is empty."""
    return frozenset(names.split()) | ({MODULE} if names.startswith(" ") else frozenset())


def _state(path: str) -> str:
    try:
        state = os.stat(path)
    except OSError:
        return ""
    return f"{state.st_mtime_ns}:{state.st_size}"


def _mentions(states: dict[str, str], names: Names, place: Place) -> dict[str, FileMentions]:
    pattern = wrapping_pattern(names)
    earlier = _read(place, _MENTIONS)
    found: dict[str, FileMentions] = {}
    entries: dict[str, Any] = {}
    changed = False
    for path, state in states.items():
        inside = os.path.relpath(path, place.root)
        entry = earlier.get(inside)
        mentions = None
        with contextlib.suppress(*files.MALFORMED):
            if entry is not None and entry[0] == state:
                mentions = FileMentions.decoded(entry[1])
        if mentions is None and (mentions := _mentions_in(path, pattern)) is not None:
            changed, entry = True, None
        if mentions is not None:
            found[path] = mentions
            entries[inside] = entry or [state, mentions.encoded()] if place.folder else None
    if changed:
        _write(place, _MENTIONS, entries)
    return found


def _mentions_in(path: str, pattern: re.Pattern[str], unsaved: Mapping[str, str] = _NOTHING) -> FileMentions | None:
    text = unsaved.get(path) if path in unsaved else _text(path)
    return mentions_of(text, pattern) if text is not None else None


def _text(path: str) -> str | None:
    try:
        return decode(files.read(path))
    except (OSError, Unreadable):
        return None


# ---- on disk


def _kept(place: Place, states: dict[str, str], names: Names, unsaved: Mapping[str, str]) -> dict[str, str] | None:
    """The answer of an earlier run, by the files' paths below the root, if it holds."""
    kept = _read(place, _REACH)
    with contextlib.suppress(*files.MALFORMED):
        found, of = kept["files"], kept["of"]
        inside = {os.path.relpath(path, place.root): (path, state) for path, state in states.items()}
        if kept["names"] != str(names) or of.keys() != inside.keys():
            return None
        changed = [name for name, (_, state) in inside.items() if of[name][0] != state]
        if len(changed) > _FEW or not all(isinstance(functions, str) for functions in found.values()):
            return None
        pattern, counting = wrapping_pattern(names), frozenset(kept["words"])
        if all(_digest(_mentions_in(inside[name][0], pattern, unsaved), counting) == of[name][1] for name in changed):
            return dict(found)
    return None


def _keep(
    place: Place, states: dict[str, str], digests: dict[str, str], names: Names, reach: Reach, counting: frozenset[str]
) -> None:
    encoded = {
        os.path.relpath(path, place.root): (" " if MODULE in found else "") + " ".join(sorted(found - {MODULE}))
        for path, found in reach.items()
    }
    of = {os.path.relpath(path, place.root): (state, digests[path]) for path, state in states.items()}
    _write(place, _REACH, {"names": str(names), "of": of, "files": encoded, "words": sorted(counting)})


def _digest(mentions: FileMentions | None, counting: frozenset[str]) -> str:
    """Of what a file mentions that counts, '' for one that cannot be read. The order of words means nothing."""
    if mentions is None:
        return ""
    functions = [(f.name, sorted(counting & {*f.words}), f.method_of, f.top, f.stores) for f in mentions.functions]
    classes = [(c.name, sorted(c.bases), sorted(counting & {*c.words})) for c in mentions.classes]
    rest = (sorted(mentions.variables), sorted(mentions.tables), sorted(mentions.imports), mentions.wraps)
    return hashlib.sha256(repr((functions, classes, rest)).encode("utf-8", "surrogatepass")).hexdigest()[:20]


def _read(place: Place, name: str) -> dict[str, Any]:
    if place.folder is not None:
        with contextlib.suppress(*files.MALFORMED):
            kept = json.loads(files.read(place.folder / name, _LIMIT))
            if isinstance(kept, dict):
                return kept
    return {}


def _write(place: Place, name: str, value: dict[str, Any]) -> None:
    if place.folder is not None:
        with contextlib.suppress(OSError):
            place.folder.mkdir(parents=True, exist_ok=True)
            files.write(place.folder / name, json.dumps(value, separators=(",", ":")).encode())


__all__ = ["Place", "index"]
