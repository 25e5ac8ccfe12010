"""Noise that a model draws in its forward, on ranks whose generators are in one state."""

from __future__ import annotations

import ast
import dataclasses
import re
from collections.abc import Iterable, Iterator
from typing import Final

from ddp_lint.findings import Span
from ddp_lint.knowledge import canonical
from ddp_lint.launch.by_rank import Place
from ddp_lint.launch.random_state import alike_by
from ddp_lint.project import Project
from ddp_lint.project.facts import ClassFacts, ModuleFacts
from ddp_lint.source.imports import dotted_ast, of_self
from ddp_lint.source.syntax import FunctionNode, calls_below, function_at, statements
from ddp_lint.tensors.contexts import evaluation_only_at

_DDP: Final = "torch.nn.parallel.DistributedDataParallel"
_DRAWS: Final = frozenset({"torch.randn", "torch.randn_like"})
_NOISE: Final = re.compile(r"(^|_)(noise|noises|eps|epsilon)($|_)")
_TYPE: Final = 6
_MOVES: Final = frozenset({"to", "cuda", "train", "float", "half", "bfloat16"})


@dataclasses.dataclass(frozen=True)
class SharedNoise:
    """A wrap, the draw in the forward of its model, and the seed that all ranks set."""

    wrap: ast.Call
    draw: Span
    seeded: Span


def shared_noise(project: Project, facts: ModuleFacts, files: Iterable[ModuleFacts]) -> Iterator[SharedNoise]:
    """The wraps of a file by DDP whose model draws noise for each sample, if torch has one seed on all ranks there."""
    held = list(files)
    for wrap in calls_below(facts.tree):
        if canonical(facts.qualified(wrap.func)) != _DDP or not wrap.args:
            continue
        place = Place(facts, function_at(facts.tree, wrap.lineno))
        draw = _draw_of(project, _inside(wrap.args[0]), place)
        seeded = alike_by(project, wrap, place, "torch", held) if draw is not None else None
        if draw is not None and seeded is not None:
            yield SharedNoise(wrap, draw, seeded)


def _inside(model: ast.expr) -> ast.expr:
    """A model without what moves it: ``Net().to(device)``."""
    while isinstance(model, ast.Call) and isinstance(model.func, ast.Attribute) and model.func.attr in _MOVES:
        model = model.func.value
    return model


def _draw_of(project: Project, model: ast.expr, place: Place) -> Span | None:
    """The draw of noise in the `forward` of a model, or in a method of it that this calls."""
    kind = project.types.of(model, place.facts, place.around, None, _TYPE)
    found = project.classes.method(kind, "forward") if kind else None
    if found is None or not isinstance(found[1], FunctionNode):
        return None
    for owner, method in _methods(project, kind, *found):
        for node in statements(method):
            call = node.value if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) else None
            if call is None or not isinstance(node, ast.Assign) or owner.module.qualified(call.func) not in _DRAWS:
                continue
            given = {keyword.arg for keyword in call.keywords}
            named = _NOISE.search(dotted_ast(node.targets[0]).lower())
            if named and "generator" not in given and not evaluation_only_at(owner.module, method, call):
                return owner.module.file.span_of(call)
    return None


def _methods(
    project: Project, kind: str, owner: ClassFacts, forward: FunctionNode
) -> Iterator[tuple[ClassFacts, FunctionNode]]:
    yield owner, forward
    for call in calls_below(forward):
        name = of_self(dotted_ast(call.func))
        found = project.classes.method(kind, name) if name and "." not in name else None
        if found is not None and isinstance(found[1], FunctionNode):
            yield found
