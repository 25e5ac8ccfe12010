"""The text edits that fixes are made of."""

from __future__ import annotations

import dataclasses
import re

import libcst as cst

from ddp_lint.findings import Edit, Span
from ddp_lint.view.module import Module


def replace(module: Module, node: cst.CSTNode, text: str) -> Edit:
    """Write `text` in place of `node`."""
    return Edit(module.span(node), text)


def add_argument(module: Module, call: cst.Call, name: str, value: str) -> Edit:
    """Add ``name=value`` behind the positional arguments of a call."""
    place = next((i for i, arg in enumerate(call.args) if arg.keyword is not None or arg.star), len(call.args))
    if place:
        end = module.span(call.args[place - 1])
        return Edit(dataclasses.replace(end, line=end.end_line, column=end.end_column), f", {name}={value}")
    if call.args:
        start = module.span(call.args[0])
        return Edit(dataclasses.replace(start, end_line=start.line, end_column=start.column), f"{name}={value}, ")
    return replace(module, call, f"{module.code(call.func)}({name}={value})")


def set_argument(module: Module, arg: cst.Arg, value: str) -> Edit:
    """Write another value for an argument."""
    return replace(module, arg.value, value)


def move_below(module: Module, node: cst.CSTNode, other: cst.CSTNode, names: tuple[str, str]) -> tuple[Edit, ...]:
    """Move the statement that `node` is in below the one that `other` is in, with the first of two (dotted)
    names replaced by the second where something is taken of it; nothing where the two are not in one block."""
    block = next((up for up in module.ancestors(node) if isinstance(up, (cst.IndentedBlock, cst.Module))), None)
    statement, anchor = _statement_in(module, node, block), _statement_in(module, other, block)
    if not isinstance(statement, cst.SimpleStatementLine) or len(statement.body) != 1 or anchor is None:
        return ()
    here, there = module.span(statement), module.span(anchor)
    text = "\n".join(module.file.lines[here.line - 1 : here.end_line])
    moved = re.sub(rf"(?<![\w.]){re.escape(names[0])}(?=\.)", names[1], text)
    taken = Edit(Span(here.path, here.line, 1, here.end_line + 1, 1), "")
    below = Span(there.path, there.end_line + 1, 1, there.end_line + 1, 1)
    return taken, Edit(below, moved + "\n")


def _statement_in(module: Module, node: cst.CSTNode, block: cst.CSTNode | None) -> cst.CSTNode | None:
    """The statement of the block that holds the node."""
    return next((up for up in (node, *module.ancestors(node)) if module.parent(up) is block), None)


def remove_argument(module: Module, call: cst.Call, arg: cst.Arg) -> Edit:
    """Take an argument out of a call, in the call's own layout."""
    args = [other for other in call.args if other is not arg]
    if args and arg is call.args[-1]:
        args[-1] = args[-1].with_changes(comma=arg.comma, whitespace_after_arg=arg.whitespace_after_arg)
    inside = call.whitespace_before_args if args else cst.SimpleWhitespace("")
    return replace(module, call, module.tree.code_for_node(call.with_changes(args=args, whitespace_before_args=inside)))
