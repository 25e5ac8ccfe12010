"""Methods that a framework calls with a batch of each rank's own; the name of the parameter does not matter."""

from __future__ import annotations

import ast

from ddp_lint.divergence.references import ClassRef, FunctionRef
from ddp_lint.divergence.resolve import Linker, known
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
