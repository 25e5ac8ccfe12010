"""What is worked out from the tool's own files, kept beside Python's bytecode and used until one of them changes."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.util
import json
import os
import pathlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

from ddp_lint.files import MALFORMED, write


def derived(source: pathlib.Path, make: Callable[[], Any]) -> Any:
    """What `make` returns (JSON, a function of the tool's own files), from an earlier run where nothing has changed.

    `source` names the place where it is kept. Never fails: what cannot be read is made, what cannot be kept is lost.
    """
    try:
        place = pathlib.Path(importlib.util.cache_from_source(str(source))).with_suffix(".json")
    except NotImplementedError:  # this Python keeps no bytecode
        return make()
    with contextlib.suppress(*MALFORMED):
        kept = json.loads(place.read_bytes())
        if kept["of"] == installation():
            return kept["value"]
    value = make()
    if not sys.dont_write_bytecode:
        with contextlib.suppress(OSError):
            place.parent.mkdir(exist_ok=True)
            write(place, json.dumps({"of": installation(), "value": value}).encode())
    return value


@functools.cache
def installation() -> str:
    """A digest of the state of the tool: its own code and knowledge, and the Python that runs it."""
    files = sorted(f"{path}:{state.st_mtime_ns}:{state.st_size}" for path, state in _own_files())
    return hashlib.sha256("\n".join([sys.version, *files]).encode("utf-8", "surrogatepass")).hexdigest()


def _own_files() -> Iterator[tuple[str, os.stat_result]]:
    stack = [str(pathlib.Path(__file__).parent)]
    while stack:
        with os.scandir(stack.pop()) as listing:
            for entry in listing:
                if entry.name.endswith((".py", ".toml")):
                    yield entry.path, entry.stat()
                elif entry.is_dir() and entry.name != "__pycache__":
                    stack.append(entry.path)
