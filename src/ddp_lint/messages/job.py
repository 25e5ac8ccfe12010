"""The numbers that a process of a small job knows itself and the others by."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

from ddp_lint.divergence import parameters
from ddp_lint.divergence.resolve import known
from ddp_lint.knowledge.communication import Rank

#: What the number of ranks is called where it is a parameter, an attribute or a setting that nothing else shows.
SIZES = re.compile(r"_?(world_?size|n(um)?_?(ranks|proc(s|esses)?))")
#: The same behind a parameter for the rank: ``def run(rank, size)``.
SIZES_BEHIND = re.compile(rf"{parameters.SIZES.pattern}|world")
_OF_SIZE = frozenset({"WORLD_SIZE", "LOCAL_WORLD_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE"})
_OF_LIBRARY = {"torch.distributed.is_initialized": True, "torch.distributed.is_available": True}


@dataclasses.dataclass(frozen=True)
class Place:
    """A rank of a job on one node."""

    rank: int
    size: int

    def named(self, what: str, name: str) -> Any:
        """What a parameter ('name') or an attribute is that nothing else shows; None where its name does not say."""
        if SIZES.fullmatch(name):
            return self.size
        return self._of(known().named_rank(what, name))

    def environment(self, name: str) -> str | None:
        """The text of a variable of the environment; None where the job does not set it."""
        if name in _OF_SIZE:
            return str(self.size)
        value = self._of(known().rank("environment", name))
        return str(value) if value is not None else None

    def called(self, name: str) -> Any:
        """What a function of the library gives, called without a group; None where it says nothing of the rank."""
        last = name.rpartition(".")[2]
        if name in _OF_LIBRARY:
            return _OF_LIBRARY[name]
        if last == "get_world_size":
            return self.size
        return self._of(known().rank("call", name) or known().rank("call", f"*.{last}"))

    def _of(self, entry: Rank | None) -> int | bool | None:
        if entry is None or entry.item >= 0 or entry.negated:
            return None
        if entry.value in ("rank", "local_rank"):
            return self.rank
        if entry.value == "node_rank":
            return 0
        if entry.value in ("is_first", "is_local_first"):
            return self.rank == 0
        return self.rank == self.size - 1 if entry.value in ("is_last", "is_local_last") else None
