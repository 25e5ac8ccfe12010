"""What PyTorch and its frameworks do, as data. One TOML file a subject; this module only reads them."""

from __future__ import annotations

import functools
import pathlib
import sys
from typing import Any

from ddp_lint.derived import derived


@functools.cache
def table(subject: str) -> dict[str, Any]:
    """The content of `knowledge/<subject>.toml`."""
    file = pathlib.Path(__file__).with_name(f"{subject}.toml")
    content: dict[str, Any] = derived(file, lambda: _parsed(file))
    return content


def _parsed(file: pathlib.Path) -> dict[str, Any]:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    return tomllib.loads(file.read_text(encoding="utf-8"))


@functools.cache
def _canonical_prefixes() -> dict[str, str]:
    return {alias: name for name, aliases in table("aliases")["aliases"].items() for alias in aliases}


@functools.lru_cache(maxsize=65536)
def canonical(name: str) -> str:
    """One name for one thing: the documented path of an API that can be imported from several.

    The longest known prefix decides: ``torch.nn.parallel.distributed.DistributedDataParallel.no_sync`` becomes
    ``torch.nn.parallel.DistributedDataParallel.no_sync``.
    """
    prefixes = _canonical_prefixes()
    head, tail = name, ""
    while head:
        if head in prefixes:
            return canonical(prefixes[head] + tail)
        head, _, last = head.rpartition(".")
        tail = f".{last}{tail}"
    return name
