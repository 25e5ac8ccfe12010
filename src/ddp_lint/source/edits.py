"""The text edits that fixes are made of."""

from __future__ import annotations

import libcst as cst

from ddp_lint.findings import Edit
from ddp_lint.source.module import Module

_COMMA = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))


def replace(module: Module, node: cst.CSTNode, text: str) -> Edit:
    """Write `text` where `node` stands."""
    return Edit(module.span(node), text)


def add_argument(module: Module, call: cst.Call, name: str, value: str) -> Edit:
    """Add ``name=value`` behind the positional arguments of a call, in the call's own layout."""
    added = cst.Arg(
        keyword=cst.Name(name),
        value=cst.parse_expression(value),
        equal=cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace("")),
    )
    args = list(call.args)
    place = next((i for i, arg in enumerate(args) if arg.keyword is not None or arg.star), len(args))
    if place:
        before = args[place - 1]
        added = added.with_changes(comma=before.comma)
        args[place - 1] = before.with_changes(comma=_COMMA)
    elif args:
        added = added.with_changes(comma=_COMMA)
    args.insert(place, added)
    return replace(module, call, module.tree.code_for_node(call.with_changes(args=args)))


def set_argument(module: Module, arg: cst.Arg, value: str) -> Edit:
    """Write another value for an argument."""
    return replace(module, arg.value, value)
