"""What PyTorch and its frameworks do, as data: one TOML file a framework (`frameworks`), and one a subject."""

from __future__ import annotations

import functools
import pathlib
from typing import Any

from ddp_lint.derived import derived
from ddp_lint.knowledge.schema import parsed


@functools.cache
def table(subject: str) -> dict[str, Any]:
    """The content of `knowledge/<subject>.toml`."""
    file = pathlib.Path(__file__).with_name(f"{subject}.toml")
    content: dict[str, Any] = derived(file, lambda: parsed(file))
    return content


@functools.cache
def _canonical_prefixes() -> dict[str, str]:
    from ddp_lint.knowledge.frameworks import frameworks

    entries = (entry for framework in frameworks() for entry in framework.aliases.items())
    return {alias: name for name, aliases in entries for alias in aliases}


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
