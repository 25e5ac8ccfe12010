"""Small hand-written traces."""

from __future__ import annotations

import pathlib
from collections.abc import Sequence

from ddp_lint.verify.options import Last, RankOutcome, RunResult
from ddp_lint.verify.results import Examined, examine
from ddp_lint.verify.trace import Collective, Event, Frame, Tensor, Trace


def call(  # noqa: PLR0913 - a collective has many sides
    line: int,
    op: str = "all_reduce",
    shape: tuple[int, ...] = (4,),
    *,
    path: str = "/p/train.py",
    dtype: str = "float32",
    group: str = "world",
    ranks: tuple[int, ...] = (0, 1),
    reduce_op: str = "",
    root: int | None = None,
    name: str = "",
    label: str = "",
) -> Collective:
    """A collective called from a line; its number is set by `numbered`."""
    tensors = (Tensor(shape=shape, dtype=dtype, name=name),) if op != "barrier" else ()
    frames = (Frame(path, line, "main"),)
    return Collective(
        op=op, tensors=tensors, group=group, ranks=ranks, reduce_op=reduce_op, root=root, frames=frames, label=label
    )  # fmt: skip


def numbered(events: Sequence[Event]) -> tuple[Event, ...]:
    """The events with the numbers that a writer would give them."""
    return tuple(type(event)(**{**vars(event), "n": n}) for n, event in enumerate(events))


def run(
    *ranks: Sequence[Event],
    wrap: str = "ddp",
    outcome: str = "completed",
    how: Sequence[str] = (),
    device: str = "cpu",
    stimuli: tuple[str, ...] = (),
    message: str = "",
) -> Examined:
    """An examined run of these ranks' events; each completed unless `how` says otherwise."""
    outcomes = tuple(
        RankOutcome(rank, how[rank] if how else "completed", 0, "", "", Last(), Trace(rank, numbered(events)))
        for rank, events in enumerate(ranks)
    )
    result = RunResult(
        name=wrap, wrap=wrap, model="", stimuli=stimuli, outcome=outcome, message=message or outcome, seconds=1.0,
        nproc=len(ranks), device=device, backend="gloo" if device == "cpu" else "nccl", torch="2.13.0",
        ranks=outcomes, directory=pathlib.Path("/nowhere"),
    )  # fmt: skip
    return examine(result)
