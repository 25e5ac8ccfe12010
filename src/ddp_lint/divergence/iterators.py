"""What an object of a project class hands out, by the methods that Python calls for a loop and for `len`."""

from __future__ import annotations

import ast
import dataclasses
from typing import Final

from ddp_lint.divergence import references as ref
from ddp_lint.divergence.effects import Branch, Effect, Inline, Leave, Rounds, hands_over, loops_in
from ddp_lint.divergence.frame import Frame, reference_of
from ddp_lint.divergence.lengths import is_share, rounds_or_repeats
from ddp_lint.divergence.values import Value

#: What makes the parts of all ranks equally long by itself, in torch and elsewhere.
_PADDING: Final = "DistributedSampler"


def length_by_class(frame: Frame, of: Value | None, node: ast.expr) -> Value | None:
    """What the `__len__` of an object of the project returns; None without one."""
    return _special(frame, of, "__len__", node)


def iterator_by_class(frame: Frame, of: Value | None, node: ast.expr) -> Value | None:
    """What the `__iter__` of an object of the project gives, a generator mostly; None without one."""
    return _special(frame, of, "__iter__", node)


def ends_by_class(frame: Frame, of: Value | None, node: ast.expr) -> list[Effect]:
    """Where the `__next__` of an object that is its own iterator raises StopIteration: there the loop ends. Nothing
    where it does more than ask for that."""
    outer, frame.effects = frame.effects, []
    found = _special(frame, of, "__next__", node)
    made, frame.effects = frame.effects, outer
    if found is None or len(made) != 1 or not isinstance(made[0], Inline):
        return []
    effects = made[0].effects
    asked = effects[:-1] if effects and isinstance(effects[-1], Leave) and effects[-1].what == "return" else effects
    ends = [_end_of(effect) for effect in asked]
    return [end for end in ends if end is not None] if None not in ends else []


def _end_of(effect: Effect) -> Branch | None:
    """The branch that raises StopIteration, as one that leaves the loop; None for anything else."""
    if not isinstance(effect, Branch) or effect.no or len(effect.yes) != 1:
        return None
    (only,) = effect.yes
    stops = isinstance(only, Leave) and only.what == "raise" and only.raised == "StopIteration"
    return dataclasses.replace(effect, yes=[Leave("break")]) if stops else None


def _special(frame: Frame, of: Value | None, name: str, node: ast.expr) -> Value | None:
    class_ = of.reference.of if of is not None and isinstance(of.reference, ref.Instance) else None
    method = frame.linker.method(class_, name) if isinstance(class_, ref.ClassRef) else None
    if method is None or not isinstance(class_, ref.ClassRef):
        return None
    return frame.summaries.enter_unseen(frame, dataclasses.replace(method, receiver=of, of=class_), node)


def hands_out_share(frame: Frame, of: Value | None, node: ast.expr) -> bool:
    """Is it a sampler that goes through what falls to this rank, which may be more than falls to another one? Not
    where the class does anything to make the parts equal, or never ends."""
    outer, frame.effects = frame.effects, []  # it runs where the loader is gone through, not where that is made
    iterator = iterator_by_class(frame, of, node)
    frame.effects = outer
    if iterator is None or of is None or _evens_out(frame, of):
        return False
    source = reference_of(iterator)
    if isinstance(source, ref.Generator) and isinstance(source.call, Inline):
        return any(map(_yields_share, loops_in(source.call.effects)))
    return is_share(iterator)


def _evens_out(frame: Frame, of: Value) -> bool:
    assert isinstance(of.reference, ref.Instance) and isinstance(of.reference.of, ref.ClassRef)
    if any(base.endswith(_PADDING) for base in frame.linker.outside(of.reference.of)):
        return True
    methods = (
        item for class_ in frame.linker.linearised(of.reference.of)[0] for item in frame.linker.members(class_).items()
    )
    return any(rounds_or_repeats(method) for name, method in methods if name != "__len__")


def _yields_share(loop: Rounds) -> bool:
    """Is it a loop over a share, in which the generator hands something out?"""
    varies = loop.rounds.varies if loop.rounds is not None else None
    return varies is not None and varies.aspect == "share" and hands_over(loop.body)
