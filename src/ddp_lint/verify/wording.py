"""How messages write ranks, names, numbers of times, places, and the texts of errors."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from ddp_lint.verify.trace import Frame

#: Ranks that are named where there are more of them.
_SHOWN = 6


def of_ranks(ranks: Collection[int]) -> str:
    """`rank 3`; `ranks 0, 2`; of many the first ones, and how many more there are."""
    shown = ", ".join(map(str, [*ranks][:_SHOWN]))
    more = f" and {len(ranks) - _SHOWN} more" if len(ranks) > _SHOWN else ""
    return f"rank{'s' * (len(ranks) > 1)} {shown}{more}"


def spoken(names: Iterable[str], limit: int = 3) -> str:
    """`a, b, c and 4 more`."""
    items = list(names)
    if not items:
        return "some of them"
    head = ", ".join(items[:limit])
    return head if len(items) <= limit else f"{head} and {len(items) - limit} more"


def how_often(times: int) -> str:
    """A number of times in words."""
    return {0: "not at all", 1: "once", 2: "twice"}.get(times, f"{times} times")


def at_line(frame: Frame | None) -> str:
    """` (line 12)`, with the blank before it; '' without a place."""
    return f" (line {frame.line})" if frame is not None else ""


def on_one_line(text: str, limit: int = 300) -> str:
    """An error text on one line, cut after `limit` characters."""
    flat = " ".join(text.split())
    return flat if len(flat) <= limit else flat[:limit] + " ..."


def of_numbers(numbers: Sequence[float]) -> str:
    """Learning rates and the like: the first of them."""
    return ", ".join(f"{number:g}" for number in numbers[:3]) + (" ..." if len(numbers) > 3 else "")
