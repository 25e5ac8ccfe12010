"""The concrete ranks that a function is evaluated for.

Two ranks of one node distinguish rank 0 from the others; a rank 0 of another node, the rank from the local rank.
"""

from __future__ import annotations

import dataclasses

from ddp_lint.knowledge.communication import RankValue


@dataclasses.dataclass(frozen=True)
class World:
    """One process of the job, with the numbers that it knows itself by."""

    name: str
    rank: int
    local_rank: int
    node_rank: int
    #: Coordinate along any one axis (tensor, pipeline, data ...) or in any one group.
    coordinate: int


WORLDS = (
    World("rank 0", 0, 0, 0, 0),
    World("rank 1", 1, 1, 0, 1),
    World("rank 8", 8, 0, 1, 1),
)
COUNT = len(WORLDS)
#: The rank of those that is taken to be the last of the job.
LAST = 1
#: Those that every job has.
EVERYWHERE = (0, 1)
#: Pairs of worlds to compare, the most telling first.
PAIRS = ((0, 1), (0, 2), (1, 2))


def known(value: RankValue) -> tuple[int | bool, ...] | None:
    """What an expression for `value` is in each world; None where the worlds cannot decide (membership)."""
    if value in ("rank", "local_rank", "node_rank"):
        return tuple(getattr(world, value) for world in WORLDS)
    if value in ("group_rank", "coordinate"):
        return tuple(world.coordinate for world in WORLDS)
    first = {"is_first": "rank", "is_local_first": "local_rank", "is_node_first": "node_rank"}.get(value)
    if first:
        return tuple(getattr(world, first) == 0 for world in WORLDS)
    if value in ("is_last", "is_local_last"):
        return tuple(world.rank == LAST for world in WORLDS)
    return None
