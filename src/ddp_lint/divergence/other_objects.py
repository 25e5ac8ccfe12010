"""Whether an object of which the method is looked up by name alone is of another class than the one that has it."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from ddp_lint.divergence import references as ref
from ddp_lint.divergence.calls_by_name import held
from ddp_lint.divergence.definitions import stores_of
from ddp_lint.divergence.expressions import dotted
from ddp_lint.divergence.frame import Frame
from ddp_lint.project.facts import ModuleFacts, assigned_in
from ddp_lint.source.syntax import FunctionNode, first_name, is_none

#: Parameters by which a constructor gets an object whose methods it may pass on.
_WRAPPED = frozenset({"model", "module"})


def is_of_another_class(frame: Frame, receiver: ast.expr, method: ref.FunctionRef) -> bool:
    """Is the object, for whatever its own methods tell, none of the class that has the method?

    It is the part that the method itself hands its work to (``self.engine.update_weights()`` in ``update_weights()``),
    or it is made of a class of another package, or of one of the project that has no such method.
    """
    if not dotted(receiver) or dotted(receiver) == _own(frame):
        return False
    return (
        _is_handed_to(frame, receiver, method)
        or _is_made_elsewhere(frame, receiver)
        or _lacks_method(frame, receiver, method)
    )


def _own(frame: Frame) -> str:
    """The name of the object whose method is at hand, '' outside of one."""
    function = frame.function
    return first_name(function) if frame.owner is not None and isinstance(function, FunctionNode) else ""


def _is_handed_to(frame: Frame, receiver: ast.expr, method: ref.FunctionRef) -> bool:
    own = _own(frame)
    return frame.function is method.node and bool(own) and dotted(receiver).startswith(f"{own}.")


def _is_made_elsewhere(frame: Frame, receiver: ast.expr) -> bool:
    """Is all that the variable or attribute is ever assigned, but for None, an object of a class that the project has
    not?"""
    made = [(facts, value) for facts, value in _assigned(frame, receiver) if not is_none(value)]
    return bool(made) and all(_makes_foreign(frame, facts, value) for facts, value in made)


def _assigned(frame: Frame, receiver: ast.expr) -> Sequence[tuple[ModuleFacts, ast.expr]]:
    if isinstance(receiver, ast.Name):
        within = frame.function
        return [(frame.facts, v) for v in assigned_in(within, receiver.id)] if isinstance(within, FunctionNode) else []
    owner = frame.owner
    if not isinstance(receiver, ast.Attribute) or dotted(receiver.value) != _own(frame) or owner is None:
        return []
    owners = frame.linker.linearised(owner)[0]
    return [(each.facts, value) for each in owners for _, value in stores_of(each.node, receiver.attr)]


def _makes_foreign(frame: Frame, facts: ModuleFacts, value: ast.expr) -> bool:
    """``Engine(path, size=8)``, of another package. One that is given an object may pass on the methods of that one
    (``Wrapper(model)``), and a function may return anything."""
    linker = frame.linker
    callee = linker.expression(facts, value.func) if isinstance(value, ast.Call) else None
    if not isinstance(value, ast.Call) or not isinstance(callee, ref.External):
        return False
    package, _, name = callee.name.rpartition(".")
    if not package or not name[:1].isupper() or linker.project.meanings.split(callee.name) is not None:
        return False
    keywords = {keyword.arg for keyword in value.keywords}
    plain = all(isinstance(given, ast.Constant) for given in value.args) and keywords.isdisjoint(_WRAPPED)
    return plain and not any(True for _ in linker.project.contents.holding(f"class {name}"))


def _lacks_method(frame: Frame, receiver: ast.expr, method: ref.FunctionRef) -> bool:
    """Is it of a class of the project that cannot have the method, nor pass on what it lacks, as far as it is all in
    the project?"""
    linker, reference = frame.linker, held(frame, receiver).reference
    of = reference.of if isinstance(reference, ref.Instance) and not reference.guessed else None
    if not isinstance(of, ref.ClassRef) or method.owner is None or linker.outside(of):
        return False
    passes_on = any(linker.method(of, name) is not None for name in ("__getattr__", "__getattribute__"))
    return not passes_on and of not in linker.linearised(method.owner)[0]
