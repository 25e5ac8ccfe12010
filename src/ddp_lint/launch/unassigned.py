"""Variables of a function that every run reads before it has given them a value: `UnboundLocalError`."""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Iterator, Sequence

from ddp_lint.launch.options import bound_by
from ddp_lint.project.parts import inside, kept_by_node
from ddp_lint.source.syntax import FunctionNode, below, nested, parameters, walk

_LOOPS = (ast.For, ast.AsyncFor, ast.While)
#: Statements that evaluate what they bind a name to before they bind it.
_ASSIGNING = (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.For, ast.AsyncFor)
#: Expressions with variables of their own.
_SCOPES = (ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


@dataclasses.dataclass(frozen=True)
class _Place:
    """Where a name is read or bound: in source order, and in which loops."""

    order: float
    loops: tuple[ast.AST, ...]


@kept_by_node(256)
def unassigned(function: FunctionNode) -> frozenset[ast.AST]:
    """The names that a function reads above all that binds them, outside of a loop that holds both."""
    loads: list[tuple[ast.Name, _Place]] = []
    bound: dict[str, list[_Place]] = {}
    for order, (statement, loops) in enumerate(_statements(function.body, ())):
        own = (*loops, statement) if isinstance(statement, ast.While) else loops
        nodes, read = _own(statement), _Place(order, own)
        loads += [(name, read) for name in _loaded(statement, nodes)]
        written = _Place(order + (0.5 if isinstance(statement, _ASSIGNING) else -0.5), own)
        for name in _bound(statement, nodes):
            bound.setdefault(name, []).append(written)
    early = [n for n, place in loads if n.id in bound and all(_is_later(each, place) for each in bound[n.id])]
    uncertain = _uncertain(function) if early else set()
    return frozenset(node for node in early if node.id not in uncertain)


@kept_by_node(1024)
def binding_lines(function: FunctionNode) -> dict[str, tuple[int, ...]]:
    """The lines at which a function binds its variables, without those of which more than that is to be known."""
    uncertain, found = _uncertain(function), dict[str, list[int]]()
    for statement, _ in _statements(function.body, ()):
        for name in _bound(statement, _own(statement)):
            if name not in uncertain:
                found.setdefault(name, []).append(getattr(statement, "lineno", function.lineno))
    return {name: tuple(lines) for name, lines in found.items()}


def _is_later(binding: _Place, load: _Place) -> bool:
    return binding.order > load.order and not any(loop in load.loops for loop in binding.loops)


def _uncertain(function: FunctionNode) -> set[str]:
    """Names that are no variables of the function alone, or are bound within an expression or a pattern."""
    found = {each.arg for each in (*parameters(function), function.args.vararg, function.args.kwarg) if each}
    for node in walk(function):  # a function inside may give a value to a variable of this one
        if isinstance(node, (ast.Global, ast.Nonlocal)):
            found.update(node.names)
    for node in inside(function):
        if isinstance(node, ast.NamedExpr):
            found.add(node.target.id)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Del):
            found.add(node.id)
        elif isinstance(node, ast.pattern):
            found.update(bound_by(node))
    return found


def _statements(block: Sequence[ast.AST], loops: tuple[ast.AST, ...]) -> Iterator[tuple[ast.AST, tuple[ast.AST, ...]]]:
    """Statements, handlers and cases in source order, each with the loops around it."""
    for statement in block:
        yield statement, loops
        if not isinstance(statement, (FunctionNode, ast.ClassDef)):
            deeper = (*loops, statement) if isinstance(statement, _LOOPS) else loops
            yield from _statements(nested(statement), deeper)


def _own(statement: ast.AST) -> list[ast.AST]:
    """The expressions of a statement itself, without those that have variables of their own."""
    if isinstance(statement, (FunctionNode, ast.ClassDef)):
        stack: list[ast.AST] = [*statement.decorator_list]
    else:
        inner = {id(each) for each in nested(statement)}
        stack = [each for each in below(statement) if id(each) not in inner]
    found: list[ast.AST] = []
    while stack:
        node = stack.pop()
        if not isinstance(node, _SCOPES):
            found.append(node)
            stack += below(node)
    return found


def _loaded(statement: ast.AST, own: Sequence[ast.AST]) -> list[ast.Name]:
    nodes = [node for node in own if isinstance(node, ast.Name)]
    added = statement.target if isinstance(statement, ast.AugAssign) else None
    return [n for n in nodes if isinstance(n.ctx, ast.Load) or n is added]


def _bound(statement: ast.AST, own: Sequence[ast.AST]) -> Iterator[str]:
    if isinstance(statement, ast.AnnAssign) and statement.value is None:
        return  # an annotation alone gives no value, though it makes the name a variable
    yield from bound_by(statement)
    for node in own:
        yield from bound_by(node)
