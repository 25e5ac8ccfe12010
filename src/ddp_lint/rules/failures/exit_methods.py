"""Context managers that are classes: what their `__exit__` does with the failure of a block."""

from __future__ import annotations

import libcst as cst

from ddp_lint.source.tree import descendants, parameters_of

EXITS = ("__exit__", "__aexit__")


def drops_each_failure(method: cst.FunctionDef) -> cst.Return | None:
    """The first ``return True`` of an `__exit__` that returns nothing else, whatever has happened: it raises nothing,
    and neither a test nor a call is given the exception. None for other methods."""
    if method.name.value not in EXITS:
        return None
    inside = list(descendants(method.body, into_definitions=False))
    returns = [node for node in inside if isinstance(node, cst.Return)]
    if not returns or any(isinstance(node, (cst.Raise, cst.Assert, cst.Try)) for node in inside):
        return None
    if not all(isinstance(node.value, cst.Name) and node.value.value == "True" for node in returns):
        return None
    given = {parameter.name.value for parameter in parameters_of(method)[1:]}
    given |= {star.name.value for star in (method.params.star_arg,) if isinstance(star, cst.Param)}
    asked = any(isinstance(node, cst.Name) and node.value in given for node in inside)
    return None if asked or not _ends_so(method.body) else returns[0]


def _ends_so(body: cst.BaseSuite) -> bool:
    """Whether the last statement of a body is the return: no path ends without it."""
    last = body.body[-1] if body.body else None
    line = last.body[-1] if isinstance(last, cst.SimpleStatementLine) else last
    return isinstance(line, cst.Return)
