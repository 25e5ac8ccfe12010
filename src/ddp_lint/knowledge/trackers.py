"""The calls that start a run of an experiment tracker (`[tracking]` in launch.toml)."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Mapping

from ddp_lint.knowledge import table


@dataclasses.dataclass(frozen=True)
class Tracker:
    """How a call starts a run (`[tracking]` in launch.toml)."""

    package: str
    mode: str
    modes: frozenset[str]
    joined: frozenset[str]
    contents: frozenset[str]
    by_place: bool
    unless_spawned: bool


@functools.cache
def trackers() -> Mapping[str, Tracker]:
    """The calls that start runs, by their canonical names."""
    found: dict[str, Tracker] = {}
    for entry in table("launch")["tracking"]["starts"]:
        mode, modes = entry.get("modes", ("", ()))
        for name in entry["names"]:
            found[name] = Tracker(
                name.partition(".")[0],
                mode,
                frozenset(modes),
                frozenset(entry["joined"]),
                frozenset(entry.get("contents", ())),
                entry.get("by_place", False),
                entry.get("unless_spawned", False),
            )
    return found


@functools.cache
def switched_off() -> re.Pattern[str]:
    """What a file has that starts no runs in some processes, apart from the calls that start them."""
    known: str = table("launch")["tracking"]["switched_off"]
    return re.compile(known)
