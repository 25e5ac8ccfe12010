"""Dictionaries that the forward of a wrapped model returns: which keys they have may follow from each rank's batch."""

from __future__ import annotations

import ast
import dataclasses
from typing import Final

from ddp_lint.divergence import references as ref
from ddp_lint.divergence.arguments import Arguments
from ddp_lint.divergence.expressions import container
from ddp_lint.divergence.frame import Frame, reference_of
from ddp_lint.divergence.values import GROWN, Value, divergent, unknown
from ddp_lint.project import Project
from ddp_lint.project.parts import inside
from ddp_lint.source.imports import last_part
from ddp_lint.source.syntax import positional, walk

#: What the calls that exchange tensors are called, in torch and in the projects' own helpers.
_EXCHANGES: Final = ("reduce", "gather", "broadcast")
#: What hands out the entries of a dictionary.
_ENTRIES: Final = frozenset({"items", "values"})


def keys_of_output(frame: Frame, arguments: Arguments, node: ast.Call) -> Value | None:
    """The dictionary that a wrapped model of the project returns, where some ranks enter a key that others do not; None
    for anything else. What the forward does counts elsewhere."""
    model = reference_of(container(frame, node.func))
    of = model.inside if isinstance(model, ref.Instance) else None
    if of is None or not _exchanges_entries(frame.linker.project):
        return None
    method = frame.linker.method(of, "forward")
    if method is None:
        return None
    receiver = unknown(("inside", frame.key(node)), ref.Instance(of))
    outer, frame.effects = frame.effects, []
    forward = dataclasses.replace(method, receiver=receiver, of=of)
    value = frame.summaries.enter(frame, forward, _unpacked(method, arguments), node)
    frame.effects = outer
    return value if value.kind == GROWN and value.varies is not None and value.varies.cause == "data" else None


def _unpacked(method: ref.FunctionRef, arguments: Arguments) -> Arguments:
    """What ``model(*batch)`` gives each parameter, where that is all that it gives: a part of this rank's own batch."""
    whole = arguments.spread[0] if len(arguments.spread) == 1 and not arguments.positional else None
    if whole is None or whole.varies is None or not whole.open or arguments.keywords:
        return arguments
    names = [parameter.arg for parameter in positional(method.node)][1:]
    return Arguments(tuple(divergent(("unpacked", whole.key, name), whole.varies) for name in names))


def _exchanges_entries(project: Project) -> bool:
    """Does a loop over a dictionary anywhere in the project exchange something in each round? In few projects: only
    there the keys matter so much that the forward of each wrapped model is evaluated for them."""

    def found() -> bool:
        paths = {path for word in _EXCHANGES for path in project.contents.holding(f"{word}(")}
        files = project.modules.but_tests(sorted(paths))
        return any(
            map(_is_exchange, (node for facts in files for node in walk(facts.tree) if isinstance(node, ast.For)))
        )

    return project.remember(("exchanges entries",), found)


def _is_exchange(loop: ast.For) -> bool:
    over = loop.iter.func if isinstance(loop.iter, ast.Call) else None
    if not isinstance(over, ast.Attribute) or over.attr not in _ENTRIES:
        return False
    calls = (node for node in inside(loop) if isinstance(node, ast.Call))
    return any(last_part(call.func).endswith(_EXCHANGES) for call in calls)
