"""Walking `ast` trees: the nodes and the order of `ast.walk` and `ast.iter_child_nodes` in a third of their time, since
which fields of a type can hold nodes is worked out once. Contexts (`Load`, `Store`) are left out."""

from __future__ import annotations

import ast
import bisect
import itertools
from collections.abc import Iterator, Sequence
from typing import TypeGuard

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef
#: What has parameters.
Definition = FunctionNode | ast.Lambda
#: What holds statements or is one.
Block = ast.stmt | ast.ExceptHandler | ast.match_case

_PARTS = (ast.ExceptHandler, ast.match_case)

#: Fields that never hold nodes, or contexts alone.
_PLAIN = frozenset(
    {
        "arg", "asname", "attr", "conversion", "ctx", "id", "is_async", "kind", "kwd_attrs", "level", "module", "rest",
        "simple", "tag", "type_comment",
    }
)  # fmt: skip
_LEAVES = (ast.Constant, ast.Global, ast.Nonlocal)
_BLOCKS = ("body", "handlers", "orelse", "finalbody", "cases")


class _Fields(dict[type[ast.AST], tuple[str, ...]]):
    def __missing__(self, kind: type[ast.AST]) -> tuple[str, ...]:
        found = () if issubclass(kind, _LEAVES) else tuple(name for name in kind._fields if name not in _PLAIN)
        self[kind] = found
        return found


class _Bodies(dict[type[ast.AST], tuple[str, ...]]):
    """The fields of a type that hold statements; none for an expression (the `body` of a lambda is no list)."""

    def __missing__(self, kind: type[ast.AST]) -> tuple[str, ...]:
        found = () if issubclass(kind, ast.expr) else tuple(name for name in _BLOCKS if name in kind._fields)
        self[kind] = found
        return found


_FIELDS = _Fields()
_BODIES = _Bodies()


def below(node: ast.AST) -> list[ast.AST]:
    """The nodes directly below one, in source order."""
    found: list[ast.AST] = []
    for name in _FIELDS[node.__class__]:
        value = getattr(node, name, None)
        if value.__class__ is list:
            if None in value:  # ``{**x}``, a keyword without a default
                value = [item for item in value if item is not None]
            found += value
        elif isinstance(value, ast.AST):
            found.append(value)
    return found


def walk(node: ast.AST) -> Iterator[ast.AST]:
    """The node and all below it, level by level."""
    if node.__class__ is ast.Module:
        known = _index_of(node)
        if known is not None:
            return itertools.chain((node,), known.nodes)
    return _walk(node)


def _walk(node: ast.AST) -> Iterator[ast.AST]:
    found = [node]
    for item in found:
        yield item
        if _FIELDS[item.__class__]:
            found += below(item)


class _Index:
    """The nodes of a file, which many questions go through, in the order of `walk`; those of a type apart."""

    __slots__ = ("blocks", "calls", "nodes", "statements", "version")

    def __init__(self, tree: ast.AST, version: int) -> None:
        self.version = version
        # Without the tree itself, which holds the index: a cycle would be freed by the garbage collector alone.
        self.nodes = list(_walk(tree))[1:]
        self.calls = [node for node in self.nodes if node.__class__ is ast.Call]
        self.statements = list(_statements(tree))[1:]
        #: The statements that a line is in, by the line: many questions are asked of a place.
        self.blocks: dict[int, list[Block]] = {}


def _index_of(tree: ast.AST) -> _Index | None:
    """The index of a file of a project, as long as its tree stays as it is (`grafting` counts its versions). None where
    it is noted which functions are looked at (`project.parts`): who stops half-way does not depend on the rest."""
    fields = tree.__dict__
    recorder = fields.get("recorder")
    if recorder is None or recorder.asked is not None:
        return None
    known: _Index | None = fields.get("index")
    if known is None or known.version != fields.get("version", 0):
        known = fields["index"] = _Index(tree, fields.get("version", 0))
    return known


def calls_below(node: ast.AST) -> Iterator[ast.Call]:
    """The calls in a node, those in nested functions included; itself, if it is one."""
    known = _index_of(node) if node.__class__ is ast.Module else None
    if known is not None:
        return iter(known.calls)
    return (part for part in _walk(node) if isinstance(part, ast.Call))


def names_in(node: ast.AST) -> frozenset[str]:
    """The names in a node, those in nested functions included."""
    return frozenset(part.id for part in walk(node) if isinstance(part, ast.Name))


def yields(function: ast.AST) -> bool:
    """Whether anything in a function yields, nested functions included."""
    found = [function]
    for part in found:
        if isinstance(part, (ast.Yield, ast.YieldFrom)):
            return True
        if _FIELDS[part.__class__]:
            found += below(part)
    return False


def nested(node: ast.AST) -> list[ast.AST]:
    """The statements directly below one, with its handlers and cases; none for an expression."""
    found: list[ast.AST] = []
    for block in _BODIES[node.__class__]:
        found += getattr(node, block)
    return found


def statements(node: ast.AST) -> Iterator[ast.AST]:
    """`walk` over the statements alone, with their handlers and cases: expressions hold no statements."""
    known = _index_of(node) if node.__class__ is ast.Module else None
    return itertools.chain((node,), known.statements) if known is not None else _statements(node)


def _statements(node: ast.AST) -> Iterator[ast.AST]:
    found = [node]
    for item in found:
        yield item
        found += nested(item)


def statements_in_order(node: ast.AST) -> Iterator[ast.AST]:
    """`statements` in source order."""
    stack = [node]
    while stack:
        item = stack.pop()
        yield item
        stack += reversed(nested(item))


def first_line(node: ast.AST) -> int:
    """The first line of a statement, a handler or a case: that of its first decorator, if it has any."""
    if isinstance(node, ast.match_case):
        node = node.pattern
    decorators: list[ast.expr] = getattr(node, "decorator_list", [])
    return min([getattr(node, "lineno", 0), *(decorator.lineno for decorator in decorators)])


def last_line(node: ast.AST) -> int:
    """The last line; of a handler or a case, which has no end in some trees, that of its body."""
    last = node.body[-1] if isinstance(node, _PARTS) else node
    end: int = getattr(last, "end_lineno", 0) or getattr(last, "lineno", 0)
    return end


def blocks_at(root: ast.AST, line: int) -> list[Block]:
    """The statements below a node that a line is in, with their handlers and cases, the outermost first."""
    known = _index_of(root) if root.__class__ is ast.Module else None
    if known is None:
        return _blocks_at(root, line)
    if line not in known.blocks:
        known.blocks[line] = _blocks_at(root, line)
    return list(known.blocks[line])


def _blocks_at(root: ast.AST, line: int) -> list[Block]:
    found: list[Block] = []
    inside: ast.AST | None = root
    while inside is not None:
        blocks = (getattr(inside, name) for name in _BODIES[inside.__class__])
        inside = next((node for block in blocks if (node := _around(block, line)) is not None), None)
        found += [inside] if isinstance(inside, (ast.stmt, *_PARTS)) else []
    return found


def _around(block: list[ast.AST], line: int) -> ast.AST | None:
    """The first statement of a block that a line is in. Each of thousands of lines may ask."""
    place = bisect.bisect_left(block, line, key=last_line)  # thousands of statements may be on one line
    return block[place] if place < len(block) and first_line(block[place]) <= line else None


def function_at(tree: ast.Module, line: int) -> FunctionNode | None:
    """The innermost function that a line is in."""
    around = (block for block in reversed(blocks_at(tree, line)) if isinstance(block, FunctionNode))
    return next((function for function in around if function.lineno <= line), None)


def decorators(definition: FunctionNode | ast.ClassDef) -> list[ast.expr]:
    """What decorates a definition, without the calls: ``torch.no_grad`` for ``@torch.no_grad()``."""
    return [each.func if isinstance(each, ast.Call) else each for each in definition.decorator_list]


def is_none(node: ast.AST | None) -> bool:
    """Whether an expression is the constant None."""
    return isinstance(node, ast.Constant) and node.value is None


def is_text(node: ast.AST | None) -> bool:
    """Whether an expression is a text, perhaps with values in it."""
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


def is_int(node: ast.AST | None) -> bool:
    """Whether an expression is a whole number."""
    return isinstance(node, ast.Constant) and type(node.value) is int


def holds_line(block: Sequence[ast.stmt], line: int) -> bool:
    """Whether a line is one of a block of statements."""
    return block[0].lineno <= line <= (block[-1].end_lineno or block[-1].lineno)


def main_guards(tree: ast.Module) -> list[ast.If]:
    """The tests at the top of a file for whether it is the program: ``if __name__ == "__main__":``."""
    return [n for n in tree.body if is_main_guard(n)]


def is_main_guard(statement: ast.stmt) -> TypeGuard[ast.If]:
    """Whether a statement is such a test."""
    return isinstance(statement, ast.If) and "__main__" in text_of(statement.test)


def text_of(node: ast.AST) -> str:
    """`ast.unparse`, in a tenth of its time for names, calls, and operators that need no brackets."""
    return _simple(node) or ast.unparse(node)


def _simple(node: ast.AST) -> str:
    """The text of a simple expression, which has no brackets around it and needs none; '' for any other."""
    if isinstance(node, ast.Compare):
        parts = [node.left, *node.comparators]
        texts = [_simple(part) if isinstance(part, ast.BinOp) else _atom(part) for part in parts]
        operators = [_COMPARISONS[type(operator)] for operator in node.ops]
        return f"{texts[0]} {' '.join(map(' '.join, zip(operators, texts[1:], strict=True)))}" if all(texts) else ""
    if isinstance(node, ast.UnaryOp):
        plain = isinstance(node.op, ast.Not) and not isinstance(node.operand, ast.UnaryOp)
        text = _simple(node.operand) if plain and not isinstance(node.operand, ast.BoolOp) else ""
        return f"not {text}" if text else ""
    if isinstance(node, ast.BoolOp):
        # It puts brackets around comparisons from the third on, and around some `not`.
        texts = [
            _atom(part) if place > 1 or isinstance(part, (ast.BoolOp, ast.UnaryOp)) else _simple(part)
            for place, part in enumerate(node.values)
        ]
        return (" and " if isinstance(node.op, ast.And) else " or ").join(texts) if all(texts) else ""
    if isinstance(node, ast.BinOp):
        left, right, sign = _atom(node.left), _atom(node.right), _SIGNS.get(type(node.op))
        return f"{left} {sign} {right}" if left and right and sign else ""
    return _atom(node)


def _atom(node: ast.AST) -> str:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Constant):
        return repr(node.value) if node.kind is None and type(node.value) in _PLAIN_CONSTANTS else ""
    if isinstance(node, ast.Attribute):
        value = _atom(node.value) if not isinstance(node.value, ast.Constant) else ""
        return f"{value}.{node.attr}" if value else ""
    if isinstance(node, ast.Subscript):
        value, index = _atom(node.value), _simple(node.slice)
        return f"{value}[{index}]" if value and index else ""
    if isinstance(node, ast.Call):
        function, given = _atom(node.func), [*map(_simple, node.args), *map(_keyword, node.keywords)]
        return f"{function}({', '.join(given)})" if function and all(given) else ""
    return ""


def _keyword(keyword: ast.keyword) -> str:
    value = _simple(keyword.value)
    return (f"{keyword.arg}={value}" if keyword.arg is not None else f"**{value}") if value else ""


_PLAIN_CONSTANTS = frozenset({str, int, bool, type(None)})
_SIGNS: dict[type[ast.operator], str] = {
    ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.FloorDiv: "//", ast.Mod: "%", ast.MatMult: "@",
}  # fmt: skip
_COMPARISONS: dict[type[ast.cmpop], str] = {
    ast.Eq: "==", ast.NotEq: "!=", ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Is: "is",
    ast.IsNot: "is not", ast.In: "in", ast.NotIn: "not in",
}  # fmt: skip


def either_of(value: ast.expr) -> tuple[ast.expr, ...]:
    """The values of a conditional expression, ``a if test else b``; any other expression is its one value."""
    return (value.body, value.orelse) if isinstance(value, ast.IfExp) else (value,)


def positional(function: Definition) -> list[ast.arg]:
    """The parameters that a call can give by position, in order; of a method its object too."""
    return [*function.args.posonlyargs, *function.args.args]


def parameters(function: Definition) -> list[ast.arg]:
    """The parameters that have a name, in order, without ``*args`` and ``**kwargs``."""
    return [*positional(function), *function.args.kwonlyargs]


def argument_at(call: ast.Call, place: int, name: str) -> ast.expr | None:
    """The value of an argument by keyword, else by its place; None when absent or hidden behind a star."""
    named = next((keyword.value for keyword in call.keywords if keyword.arg == name), None)
    before = call.args[: place + 1]
    by_place = len(before) > place and not any(isinstance(argument, ast.Starred) for argument in before)
    return named if named is not None or not by_place else before[place]


def gives_object(call: ast.Call) -> bool:
    """``getattr(model, name, model)``: what it gives is an object of that kind and no method."""
    return any(ast.dump(default) == ast.dump(call.args[0]) for default in call.args[2:])


def first_name(function: Definition) -> str:
    """The name of the first parameter, by which a method knows its object; empty without one."""
    arguments = function.args
    return next((parameter.arg for parameter in (*arguments.posonlyargs[:1], *arguments.args[:1])), "")


def defaults(arguments: ast.arguments) -> Iterator[tuple[ast.arg, ast.expr | None]]:
    """The parameters that have a name, in order, each with its default; None for one without."""
    places = [*arguments.posonlyargs, *arguments.args]
    without = len(places) - len(arguments.defaults)
    yield from zip(places, [None] * without + list(arguments.defaults), strict=True)
    yield from zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
