"""Methods that a framework calls with a batch of each rank's own; the name of the parameter does not matter."""

from __future__ import annotations

import ast

from ddp_lint.divergence.references import ClassRef, FunctionRef
from ddp_lint.divergence.resolve import Linker, known
from ddp_lint.knowledge import table
from ddp_lint.knowledge.project_names import last
from ddp_lint.source.syntax import positional


def is_batch(linker: Linker, function: FunctionRef, parameter: ast.arg) -> bool:
    """Does the framework that the method's class comes from hand it a batch as this parameter?"""
    of = function.of if function.of is not None else function.owner
    if not isinstance(of, ClassRef) or isinstance(function.node, ast.Lambda):
        return False
    for outside in linker.outside(of):
        source = known().source("hook", f"{outside}.{function.node.name}")
        if source is not None:
            place = len(source.takes) - 1
            return any(each is parameter for each in positional(function.node)[place : place + 1])
    return False


#: What a class says that goes backward by itself.
_BY_ITSELF = ("automatic_optimization", "manual_backward", "manual_optimization")


def is_followed_by_backward(linker: Linker, of: ClassRef | None, function: ast.AST | None) -> bool:
    """Does the framework that a method's class comes from go backward from what the method returns?"""
    name = getattr(function, "name", "")
    class_ = table("tensors")["followed_by_backward"].get(name)
    if of is None or class_ is None:
        return False
    above = (o for outside in linker.outside(of) for o in known().ancestors(outside))
    if not any(last(each) == class_ and known().source("hook", f"{each}.{name}") is not None for each in above):
        return False
    texts = [each.facts.file.text for each in linker.linearised(of)[0]]
    return not any(word in text for word in _BY_ITSELF for text in texts)
