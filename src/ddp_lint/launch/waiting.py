"""Places that the first rank passes while the others wait for it."""

from __future__ import annotations

import libcst as cst

from ddp_lint.launch.one_rank import BARRIERS, first_rank_test, own_ranks
from ddp_lint.source.control_flow import conditions, exits
from ddp_lint.source.queries import calls_in
from ddp_lint.source.tree import called
from ddp_lint.view import Module


def ends_while_others_wait(module: Module, node: cst.CSTNode) -> bool:
    """Whether the first rank ends the program behind a place while the others wait for it in a barrier above: what is
    between ``if rank != 0: barrier()`` and ``if rank == 0: barrier()``, and ends with ``exit()``."""
    function = module.function_of(node)
    if function is None:
        return False
    blocks = (up for up in module.ancestors(node) if isinstance(up, cst.IndentedBlock) and up is not function.body)
    ending = next((up for up in blocks if module.function_of(up) is function and exits(up)), None)
    if ending is None:
        return False
    start, end = module.span(node).line, module.span(ending.body[-1]).line
    lines = [(module.span(c).line, c) for c in calls_in(function.body) if called(c) in BARRIERS]
    above = max((each for each in lines if each[0] < start), default=None, key=lambda each: each[0])
    return above is not None and not any(start <= n <= end for n, _ in lines) and _is_of_others(module, above[1])


def _is_of_others(module: Module, call: cst.Call) -> bool:
    """Whether a test around a call leaves the first rank out."""
    own = own_ranks(module)
    return any(first_rank_test(module.code(test), not taken, own) for test, taken in conditions(module, call))
