"""One optimizer step for several backwards: the calls of the schedule, and the conditions that make it."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ddp_lint.source import dotted
from ddp_lint.source.queries import calls_in
from ddp_lint.source.tree import called
from ddp_lint.view import Module


def is_backward(call: cst.Call) -> bool:
    """``loss.backward()``, ``accelerator.backward(loss)``, ``self.manual_backward(loss)``."""
    return called(call) in ("backward", "manual_backward")


def is_step(call: cst.Call) -> bool:
    """``optimizer.step()``, but not that of a scheduler or a profiler."""
    return called(call) == "step" and not any(other in dotted(call.func) for other in ("sched", "prof"))


def under_no_sync(module: Module, node: cst.CSTNode) -> bool:
    """Whether a node is in the body of ``with model.no_sync():``."""
    return any(isinstance(up, cst.With) and no_sync_of(up) is not None for up in module.ancestors(node))


def no_sync_of(node: cst.With) -> cst.BaseExpression | None:
    """The ``model.no_sync()`` among the contexts of a `with`, None without one."""
    return next((item.item for item in node.items if _is_no_sync(item.item)), None)


def _is_no_sync(node: cst.BaseExpression) -> bool:
    return isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute) and called(node) == "no_sync"


def calls_of_round(module: Module, loop: cst.CSTNode) -> list[cst.Call]:
    """The calls that run once in each round of a loop but for conditions, in the order of the source."""
    return [call for call in calls_in(loop) if loop_of(module, call) is loop]


def guards(module: Module, node: cst.CSTNode) -> Iterator[cst.BaseExpression]:
    """The conditions inside the node's loop that it runs under, innermost first."""
    for up in module.ancestors(node):
        if isinstance(up, (cst.For, cst.While, cst.FunctionDef)):
            return
        if isinstance(up, cst.If):
            yield up.test


def loop_of(module: Module, node: cst.CSTNode) -> cst.CSTNode:
    """The innermost loop around a node, or else its function or the module."""
    loops = (up for up in module.ancestors(node) if isinstance(up, (cst.For, cst.While, cst.FunctionDef)))
    return next(loops, module.tree)
