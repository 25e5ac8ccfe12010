"""What a project's files mention, kept from run to run, and from it which functions can communicate."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import pathlib
from collections.abc import Sequence
from typing import Any

from ddp_lint import files
from ddp_lint.knowledge.project_names import Names, last
from ddp_lint.program.events import wrapping_pattern
from ddp_lint.program.mentions import MODULE, FileMentions, mentions_of
from ddp_lint.program.reach import Reach, reach_of
from ddp_lint.source.file import Unreadable, decode

#: Names of the files that the index is kept in.
_MENTIONS, _REACH = "mentions.json", "reach.json"
#: Bytes of such a file: some hundred times what a large project takes would be none of ours.
_LIMIT = 2**30


@dataclasses.dataclass(frozen=True)
class Place:
    """Where an index is kept (None: nowhere), and below which folder its files lie."""

    root: str
    folder: pathlib.Path | None


def index(paths: Sequence[str], names: Names, place: Place, *, read: bool = True) -> Reach | None:
    """Which functions of the files can communicate; files that cannot be read or compiled are left out.

    Nothing is read again of a file whose size and time of change are those of an earlier run. `read=False`: None unless
    no file at all has changed since. Never fails.
    """
    states = {path: _state(path) for path in paths}
    state = _state_of_all(states, place.root)
    kept = _kept(place, state, names)
    if kept is not None:
        return {os.path.join(place.root, path): _decoded(found) for path, found in kept.items()}
    if not read:
        return None
    mentions = _mentions(states, names, place)
    reach = reach_of(mentions, names)
    _keep(place, state, names, reach)
    return reach


def _decoded(names: str) -> frozenset[str]:
    """The names of functions; a space in front stands for the module's own statements, whose name is empty."""
    return frozenset(names.split()) | ({MODULE} if names.startswith(" ") else frozenset())


def _state(path: str) -> str:
    try:
        state = os.stat(path)
    except OSError:
        return ""
    return f"{state.st_mtime_ns}:{state.st_size}"


def _state_of_all(states: dict[str, str], root: str) -> str:
    text = "\n".join(f"{os.path.relpath(path, root)}:{state}" for path, state in states.items())
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _mentions(states: dict[str, str], names: Names, place: Place) -> dict[str, FileMentions]:
    pattern = wrapping_pattern(last(name) for name in names.wrappers)
    earlier = _read(place, _MENTIONS)
    found: dict[str, FileMentions] = {}
    entries: dict[str, Any] = {}
    changed = False
    for path, state in states.items():
        inside = os.path.relpath(path, place.root)
        entry = earlier.get(inside)
        mentions = None
        with contextlib.suppress(TypeError, ValueError, AttributeError, LookupError):
            if entry is not None and entry[0] == state:
                mentions = FileMentions.decoded(entry[1])
        if mentions is None and (text := _text(path)) is not None:
            mentions, changed, entry = mentions_of(text, pattern), True, None
        if mentions is not None:
            found[path] = mentions
            entries[inside] = entry or [state, mentions.encoded()] if place.folder else None
    if changed:
        _write(place, _MENTIONS, entries)
    return found


def _text(path: str) -> str | None:
    try:
        return decode(files.read(path))
    except (OSError, Unreadable):
        return None


# ---- on disk


def _kept(place: Place, state: str, names: Names) -> dict[str, str] | None:
    kept = _read(place, _REACH)
    found = kept.get("files")
    if kept.get("state") != f"{state}:{names}" or not isinstance(found, dict):
        return None
    return found if all(isinstance(names_of, str) for names_of in found.values()) else None


def _keep(place: Place, state: str, names: Names, reach: Reach) -> None:
    encoded = {
        os.path.relpath(path, place.root): (" " if MODULE in found else "") + " ".join(sorted(found - {MODULE}))
        for path, found in reach.items()
    }
    _write(place, _REACH, {"state": f"{state}:{names}", "files": encoded})


def _read(place: Place, name: str) -> dict[str, Any]:
    if place.folder is not None:
        with contextlib.suppress(OSError, ValueError, RecursionError):
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
