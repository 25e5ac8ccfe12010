"""What the project's configuration says of its own names, where an evaluation reaches them."""

from __future__ import annotations

import ast

from ddp_lint.divergence import references as ref
from ddp_lint.divergence.frame import Frame
from ddp_lint.divergence.references import Reference
from ddp_lint.divergence.values import Value, unknown
from ddp_lint.knowledge import table
from ddp_lint.project.project_names import Own, written

#: What is no value itself: what comes back when it is called may be.
_DEFINED = (ref.FunctionRef, ref.ClassRef, ref.ModuleRef, ref.Partial)


def absolute(frame: Frame, reference: Reference | str | None) -> tuple[str, ...]:
    """The absolute names of what an expression refers to: of a method, those by all classes that its object has."""
    if isinstance(reference, str):
        return (reference,) if reference else ()
    if isinstance(reference, (ref.External, ref.ModuleRef)):
        return (reference.name,)
    if isinstance(reference, ref.ClassRef):
        return frame.linker.names(reference)
    if isinstance(reference, ref.Instance):
        return absolute(frame, reference.of)
    if isinstance(reference, ref.Method):
        return tuple(f"{of}.{reference.name}" for of in absolute(frame, reference.of))
    if isinstance(reference, ref.FunctionRef):
        owners = absolute(frame, reference.of or reference.owner) or (reference.facts.name,)
        return tuple(f"{owner}.{reference.name}" for owner in owners)
    return ()


def spellings(frame: Frame, node: ast.expr, reference: Reference | None) -> tuple[str, ...]:
    """How an expression is spelled: as it is in the code, and absolutely, as far as that is known."""
    name, known = written(node), absolute(frame, reference)
    free = reference is None and not any(name.partition(".")[0] in names for names in (frame.env, frame.closure or ()))
    return (name, *(frame.facts.imports.starred(name) if free else known))


def as_configured(frame: Frame, value: Value, node: ast.AST, *spelled: str) -> Value:
    """The value of an expression: the rank, if the configuration says so and the code does not show of what kind."""
    if value.varies is not None or isinstance(value.reference, _DEFINED):
        return value
    ranked = frame.configured_rank(node, *spelled)
    return ranked.with_reference(value.reference) if ranked is not None else value


def wrapped(frame: Frame, own: Own, value: Value, node: ast.AST, spelled: tuple[str, ...]) -> Value:
    """What a wrapper of the project's own gives: a wrapped model, if the code does not show how."""
    objects = table("own")["objects"]
    if isinstance(value.reference, ref.Instance) and value.reference.of in objects.values():
        return value
    return unknown(frame.key(node), ref.Instance(objects[own.wrapping(spelled[-1]).kind]))
