"""What is below a node of a LibCST tree: calls, statements, texts. Nothing here resolves a name."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import libcst as cst

from ddp_lint.source.control_flow import Nodes
from ddp_lint.source.tree import descendants, dotted, method_of, names_in


def enclosing(
    module: Nodes, node: cst.CSTNode, kind: type[cst.ExceptHandler] | type[cst.Finally]
) -> cst.ExceptHandler | cst.Finally | None:
    """The nearest `except` or `finally` of `kind` around `node` inside the same function."""
    for up in module.ancestors(node):
        if isinstance(up, (cst.FunctionDef, cst.Lambda, cst.ClassDef)):
            return None
        if isinstance(up, kind):
            return up
    return None


def statements(body: cst.BaseSuite) -> Iterator[cst.CSTNode]:
    """The simple and compound statements directly in a body."""
    for line in body.body:
        if isinstance(line, cst.SimpleStatementLine):
            yield from line.body
        else:
            yield line


def line_around(module: Nodes, node: cst.CSTNode) -> cst.SimpleStatementLine | None:
    """The simple statement that a node is in; None for the head of a compound one."""
    return next((up for up in module.ancestors(node) if isinstance(up, cst.SimpleStatementLine)), None)


def last_name(node: cst.BaseExpression) -> str:
    """`error` for `logging.getLogger().error`."""
    if isinstance(node, cst.Attribute):
        return node.attr.value
    return node.value if isinstance(node, cst.Name) else ""


def options(values: Iterable[cst.BaseExpression]) -> list[cst.BaseExpression]:
    """The expressions, and of a conditional one both arms."""
    return [arm for v in values for arm in ((v.body, v.orelse) if isinstance(v, cst.IfExp) else (v,))]


def returned_values(function: cst.FunctionDef) -> list[cst.BaseExpression]:
    """What the `return` statements of a function, and of those in it, give."""
    return [n.value for n in descendants(function.body) if isinstance(n, cst.Return) and n.value is not None]


def path_of(node: cst.CSTNode) -> str:
    """The dotted name of `model.module[2].weight`, subscripts left out."""
    parts: list[str] = []
    while isinstance(node, (cst.Attribute, cst.Subscript)):
        if isinstance(node, cst.Attribute):
            parts.append(node.attr.value)
        node = node.value
    return ".".join([dotted(node), *reversed(parts)])


def model_path(module: Nodes, node: cst.BaseExpression) -> str:
    """The dotted name of the model or part that an expression belongs to: ``model.module.fc`` for itself, and `model`
    for `p` in ``for p in model.parameters()``."""
    path = path_of(node)
    for up in module.ancestors(node):
        if isinstance(up, cst.For) and path in names_in(up.target):
            over = path_of(up.iter.func if isinstance(up.iter, cst.Call) else up.iter)
            return over.removesuffix("parameters").removesuffix("named_").removesuffix(".")
    return path


def literal_text(node: cst.CSTNode) -> str:
    if isinstance(node, cst.SimpleString):
        value = node.evaluated_value
        return value if isinstance(value, str) else ""
    return node.value if isinstance(node, cst.FormattedStringText) else ""


def is_true(node: cst.CSTNode | None) -> bool:
    """Whether an expression is the literal True."""
    return isinstance(node, cst.Name) and node.value == "True"


def is_false(node: cst.CSTNode | None) -> bool:
    """Whether an expression is the literal False."""
    return isinstance(node, cst.Name) and node.value == "False"


def calls_in(node: cst.CSTNode) -> Iterator[cst.Call]:
    """The calls of a block, without those of nested definitions."""
    return (n for n in descendants(node, into_definitions=False) if type(n) is cst.Call)


def methods(scope: cst.CSTNode, name: str) -> Iterator[cst.Call]:
    """The calls ``x.name(...)`` anywhere below `scope`."""
    for node in descendants(scope):
        if isinstance(node, cst.Call) and method_of(node) == name:
            yield node


def appends(scope: cst.CSTNode) -> Iterator[cst.Call]:
    """The calls ``x.append(...)`` below `scope`."""
    return methods(scope, "append")


def receiver(call: cst.Call) -> cst.BaseExpression | None:
    """`x` of ``x.method(...)``."""
    return call.func.value if isinstance(call.func, cst.Attribute) else None
