"""The two trees of a file: what a rule visits, as the syntax tree of the project has it."""

from __future__ import annotations

import ast

import libcst as cst

from ddp_lint.source.syntax import walk
from ddp_lint.view.module import Module


def as_ast(module: Module, node: cst.CSTNode) -> ast.expr | None:
    """A call or an entry of the file, as the syntax tree of the project has it."""
    facts = module.facts
    if facts is None:
        return None
    span, kind = module.span(node), ast.Call if isinstance(node, cst.Call) else ast.Subscript
    found = (n for n in walk(facts.tree) if isinstance(n, kind) and n.lineno == span.line)
    return next((n for n in found if facts.file.span_of(n) == span), None)
