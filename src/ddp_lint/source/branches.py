"""Which places of a function exclude each other."""

from __future__ import annotations

import libcst as cst

from ddp_lint.source.module import Module


def exclusive(module: Module, first: cst.CSTNode, second: cst.CSTNode) -> bool:
    """Whether two places stand in different arms of one `if`, so that no run reaches both."""
    around = {id(a): _in_body(module, a, first) for a in module.ancestors(first) if isinstance(a, cst.If)}
    for branch in module.ancestors(second):
        if isinstance(branch, cst.If) and id(branch) in around:
            return around[id(branch)] != _in_body(module, branch, second)
    return False


def _in_body(module: Module, branch: cst.If, node: cst.CSTNode) -> bool:
    return any(a is branch.body for a in module.ancestors(node))
