"""Progress bars that some ranks turn off: a bar that is off counts nothing."""

from __future__ import annotations

import ast
from typing import Final

from ddp_lint.divergence import references as ref
from ddp_lint.divergence import worlds
from ddp_lint.divergence.arguments import Arguments
from ddp_lint.divergence.frame import Frame
from ddp_lint.divergence.values import MADE, Known, Symbol, Value, constant, divergent, made_of_range, unknown

#: Classes of bars. Source: tqdm/std.py, `tqdm.__init__` and `update`: with `disable` the bar keeps `n = initial`.
PROGRESS_BARS: Final = (
    "tqdm.tqdm", "tqdm.std.tqdm", "tqdm.auto.tqdm", "tqdm.notebook.tqdm", "tqdm.rich.tqdm", "tqdm.asyncio.tqdm",
)  # fmt: skip


def progress(frame: Frame, node: ast.Call, arguments: Arguments) -> Value:
    """``tqdm(loader)`` hands on what it is given; ``tqdm(total=n, disable=rank != 0)`` and ``tqdm(range(n), ..)`` are
    also a counter, which stays where it began on the ranks that turn the bar off."""
    off = arguments.keywords.get("disable")
    given = arguments.positional[0] if arguments.positional else unknown((MADE, frame.key(node)))
    numbers = bool(made_of_range(given)) and given.reference is None
    if off is None or off.varies is None or (arguments.positional and not numbers):
        return given
    counted = _counted(frame, node, off, arguments.keywords.get("initial", constant(0)))
    return given.with_reference(ref.Counter((off.components, off.varies.cause), counted))


def _counted(frame: Frame, node: ast.Call, off: Value, initial: Value) -> Value:
    """How many rounds the bar has counted."""
    assert off.varies is not None
    key = ("counted", frame.key(node))
    test = off.truth(frame.text(node))
    outcomes = [test.truth(world) for world in range(worlds.COUNT)]
    if None in outcomes or initial.constant is None:
        return divergent(key, off.varies)
    count = Symbol(key)
    components = tuple(Known(initial.constant.value) if outcome else count for outcome in outcomes)
    return Value(components, off.varies) if len(set(outcomes)) > 1 else unknown(key)
