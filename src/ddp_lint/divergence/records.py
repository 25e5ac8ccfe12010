"""Objects that keep what they are made with as attributes: data classes, named tuples, namespaces and counters."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final

from ddp_lint.divergence import references as ref
from ddp_lint.divergence.arguments import Arguments
from ddp_lint.divergence.definitions import declared_in_body
from ddp_lint.divergence.resolve import Linker
from ddp_lint.divergence.values import MADE, Value, holding
from ddp_lint.source.imports import last_part

#: Decorators and bases that make a constructor of the annotations in the class body.
_DECORATORS: Final = frozenset({"dataclass", "define", "frozen"})
_BASES: Final = frozenset({"typing.NamedTuple"})


def fields_of(linker: Linker, of: ref.ClassRef) -> tuple[str, ...]:
    """The fields that a constructor takes which nobody has written, in order; none for another class."""
    classes = linker.linearised(of)[0]
    decorators = (decorator for class_ in classes for decorator in class_.node.decorator_list)
    decorated = any(last_part(getattr(decorator, "func", decorator)) in _DECORATORS for decorator in decorators)
    if not decorated and _BASES.isdisjoint(linker.outside(of)):
        return ()
    return tuple(dict.fromkeys(name for each in classes[::-1] for name in reversed(list(declared_in_body(each.node)))))


def record(made: Value, fields: tuple[str, ...], arguments: Arguments) -> Value:
    """The object with those of its attributes that are not the same on all ranks: what else it is made with would only
    be one more thing to tell calls apart by."""
    given = {**dict(zip(fields, arguments.positional, strict=False)), **arguments.keywords}
    own: dict[Hashable, Value] = {name: value for name, value in given.items() if value.varies is not None}
    return holding(made, entries=own) if own else made


def attribute_of_record(base: Value, name: str) -> Value | None:
    """The attribute of a record, where it was made with a value of each rank's own; or the rounds that a progress bar
    has counted, ``bar.n``, where some ranks turn it off."""
    if name == "n" and isinstance(base.reference, ref.Counter):
        counted: Value = base.reference.counted
        return counted
    return base.entries.get(name) if base.entries is not None and base.kind == MADE else None
