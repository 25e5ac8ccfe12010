"""Sums that a loop adds to, and that are summed over the ranks again in each round."""

from __future__ import annotations

import ast
import bisect
import collections
import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from typing import Final

from ddp_lint.knowledge.communication import Collective, load
from ddp_lint.project import Project
from ddp_lint.project.facts import ModuleFacts
from ddp_lint.project.parts import children
from ddp_lint.source.imports import dotted_ast, last_part
from ddp_lint.source.syntax import (
    FunctionNode,
    argument_at,
    calls_below,
    first_line,
    names_in,
    nested,
    positional,
    statements,
    walk,
)

Loop = ast.For | ast.AsyncFor | ast.While

#: How a reduce operation is called that adds.
_SUM: Final = "sum"
#: Methods in place that leave the values as they are.
_KEEPING: Final = frozenset({"add_", "requires_grad_", "squeeze_", "unsqueeze_", "share_memory_"})
#: Calls that read what they are given as a number, make a tensor of it, or move it.
_PASSING: Final = frozenset(
    {"item", "float", "int", "tensor", "as_tensor", "Tensor", "tolist", "cuda", "to", "cpu", "detach", "double", "long"}
)
#: Parts of the names of functions that may empty what they are given.
_EMPTYING: Final = ("zero", "reset", "clear", "empty", "fill")
#: Calls of one function that are looked at.
_SITES: Final = 50


@dataclasses.dataclass(frozen=True)
class Resummed:
    """`name` is what `added` adds to and `call` sums over the ranks, both of them in every round of `loop`."""

    name: str
    call: ast.Call
    added: ast.stmt
    loop: Loop


@dataclasses.dataclass(frozen=True)
class _Site:
    """A call that sums what a name holds over the ranks and leaves the result in that name. `links`: the assignments
    that hand the name to the call, and the result back to it."""

    name: str
    call: ast.Call
    links: tuple[ast.stmt, ...] = ()


def resummed(facts: ModuleFacts, project: Project) -> Iterator[Resummed]:
    """The running sums of a file that a loop sums over the ranks in each round, with all that it has added before."""
    for scope in statements(facts.tree):
        if isinstance(scope, (ast.Module, ast.FunctionDef, ast.AsyncFunctionDef)):
            own = list(_statements_of(scope))
            sums = frozenset(name for node in own for name in _added_by(node))
            if not sums or not any(isinstance(node, Loop) for node in own):
                continue
            around = _around(scope)
            for site in itertools.islice(_sites(facts, project, around, sums), _SITES):
                yield from _of_site(site, around)


def _statements_of(scope: ast.AST) -> Iterator[ast.stmt]:
    """The statements of a scope, without those of nested functions and classes."""
    stack = nested(scope)
    while stack:
        node = stack.pop()
        if isinstance(node, ast.stmt):
            yield node
        if not isinstance(node, (FunctionNode, ast.ClassDef)):
            stack += nested(node)


def _around(scope: ast.AST) -> dict[ast.AST, ast.AST]:
    """What each node of a scope is in, without those of nested functions."""
    found: dict[ast.AST, ast.AST] = {}
    for node in (scope, *children(scope)):
        if node is scope or not isinstance(node, (FunctionNode, ast.ClassDef, ast.Lambda)):
            for child in ast.iter_child_nodes(node):
                found[child] = node
    return found


# ---- where something is summed over the ranks


def _sites(
    facts: ModuleFacts, project: Project, around: dict[ast.AST, ast.AST], sums: frozenset[str]
) -> Iterator[_Site]:
    """The calls that sum one of these names over the ranks."""
    assigned = collections.defaultdict[str, list[ast.Assign]](list)
    for node in around:
        if isinstance(node, ast.Assign) and _target(node):
            assigned[_target(node)].append(node)
    for each in assigned.values():
        each.sort(key=first_line)
    for node in around:
        statement = around.get(node)
        if not isinstance(node, ast.Call) or not isinstance(statement, (ast.Expr, ast.Assign)):
            continue
        sums_up = summing(facts, project, node)
        if sums_up is None:
            continue
        given, in_place, returned = sums_up
        name, target = dotted_ast(given), _target(statement)
        if isinstance(given, ast.Name) and name in sums and (target == name if returned else in_place):
            yield _Site(name, node, (statement,) if target == name else ())
        if isinstance(given, ast.Name) and in_place:
            made = _last_above(assigned.get(name, ()), node.lineno)
            source = dotted_ast(passed(made.value)) if made is not None else ""
            if made is not None and source in sums and source != name:
                yield from _handed_back(made, node, assigned.get(source, ()), around)


def _target(statement: ast.stmt) -> str:
    single = isinstance(statement, ast.Assign) and len(statement.targets) == 1
    return dotted_ast(statement.targets[0]) if isinstance(statement, ast.Assign) and single else ""


def _last_above(assignments: Sequence[ast.Assign], line: int) -> ast.Assign | None:
    """The last of these, which are in order, above a line."""
    place = bisect.bisect_left(assignments, line, key=first_line)
    return assignments[place - 1] if place else None


def _handed_back(
    made: ast.Assign, call: ast.Call, back: Sequence[ast.Assign], around: dict[ast.AST, ast.AST]
) -> Iterator[_Site]:
    """``t = torch.tensor(total)``, `call` of `t`, ``total = t.item()``; `back`: what gives `total` something."""
    below = itertools.islice(back, bisect.bisect_right(back, call.lineno, key=first_line), None)
    first = next((each for each in below if _same_block(each, call, around)), None)
    if first is not None and dotted_ast(passed(first.value)) == _target(made):
        yield _Site(_target(first), call, (made, first))


def _same_block(one: ast.AST, other: ast.AST, around: dict[ast.AST, ast.AST]) -> bool:
    return around.get(one) is around.get(around.get(other, other))


def passed(value: ast.expr) -> ast.expr:
    """What is read or moved as it is: `t` of ``t[0].item()``, `total` of ``torch.tensor([total]).cuda()``."""
    while True:
        if isinstance(value, ast.Call) and last_part(value.func) in _PASSING:
            method = isinstance(value.func, ast.Attribute) and (not value.args or last_part(value.func) == "to")
            given = (
                value.func.value if method and isinstance(value.func, ast.Attribute) else next(iter(value.args), None)
            )
            if given is None:
                return value
            value = given
        elif isinstance(value, ast.List) and len(value.elts) == 1:
            value = value.elts[0]
        elif isinstance(value, ast.Subscript) and isinstance(value.slice, ast.Constant) and value.slice.value == 0:
            value = value.value
        else:
            return value


def summing(facts: ModuleFacts, project: Project, call: ast.Call) -> tuple[ast.expr | None, bool, bool] | None:
    """What a call sums over the ranks: the argument, whether it changes that, and whether it returns the sum."""
    name = project.meanings.of(facts, dotted_ast(call.func))
    entry = load().collectives.get(name)
    if entry is not None:
        if entry.op != "all_reduce" or not entry.takes or not _adds(entry, call):
            return None
        in_place = not entry.out_of_place and "uniform" not in (entry.returns,)
        return argument_at(call, 0, entry.takes[0]), in_place, not in_place
    found = project.meanings.definition(name)
    if found is None or not isinstance(found[1], FunctionNode):
        return None
    helper = project.remember(("sums over ranks", name), lambda: _of_helper(found[0], project, found[1]))
    if helper is None:
        return None
    place, parameter, in_place, returned = helper
    return argument_at(call, place, parameter), in_place, returned


def _adds(entry: Collective, call: ast.Call) -> bool:
    """Whether the operation of a call adds: by default, or as it is given; an average may be averaged again."""
    place = entry.takes.index(entry.reduce_op) if entry.reduce_op in entry.takes else len(call.args)
    given = argument_at(call, place, entry.reduce_op) if entry.reduce_op else None
    if given is None:
        return entry.name.startswith(("torch.", "deepspeed.", "fairseq."))
    text = given.value if isinstance(given, ast.Constant) else last_part(given)
    return str(text).lower() == _SUM


def _of_helper(facts: ModuleFacts, project: Project, function: ast.AST) -> tuple[int, str, bool, bool] | None:
    """Which parameter a function of the project sums over the ranks in place, and whether it returns that; None for one
    that divides it, or does anything else with it."""
    assert isinstance(function, FunctionNode)
    names = [parameter.arg for parameter in positional(function)]
    for call in calls_below(function):
        entry = load().collectives.get(project.meanings.of(facts, dotted_ast(call.func)))
        if entry is None or entry.op != "all_reduce" or entry.out_of_place or not entry.takes or not _adds(entry, call):
            continue
        name = dotted_ast(argument_at(call, 0, entry.takes[0]))
        if name not in names or any(changes(node, name) for node in statements(function)):
            return None
        if any(isinstance(node, ast.BinOp) and name in names_in(node) for node in walk(function)):
            return None
        returns = [node.value for node in statements(function) if isinstance(node, ast.Return) and node.value]
        if any(dotted_ast(value) != name for value in returns):
            return None
        return names.index(name), name, True, bool(returns)
    return None


# ---- whether the loop around it adds to what it has summed before


def _of_site(site: _Site, around: dict[ast.AST, ast.AST]) -> Iterator[Resummed]:
    up: ast.AST = site.call
    inner: list[ast.If] = []
    ends = False
    while (outer := around.get(up)) is not None:
        if isinstance(outer, ast.If) and up is not outer.test:
            inner.append(outer)
        ends = ends or _is_left_behind(outer, up)
        if isinstance(outer, Loop) and up in outer.body and not ends:
            nodes = [node for node in walk(outer) if node in around]
            added = _added(site, nodes)
            chosen = _is_chosen(inner, nodes) or _is_left_once_counted(outer, site)
            if added is not None and not chosen and _begins_before(site, outer, around):
                yield Resummed(site.name, site.call, added, outer)
                return
        up = outer


def _is_left_behind(block: ast.AST, statement: ast.AST) -> bool:
    """Whether the loop ends behind a statement: a `break` or `return` follows it in its block."""
    for name in ("body", "orelse", "finalbody"):
        body = getattr(block, name, ())
        if isinstance(body, list) and statement in body:
            following = body[body.index(statement) + 1 :]
            return any(isinstance(each, (ast.Break, ast.Return, ast.Raise)) for each in following)
    return False


def _is_left_once_counted(loop: Loop, site: _Site) -> bool:
    """Whether the loop ends in the round in which the sum is no longer zero: what earlier rounds have summed is zero
    (``if stopped > 0: break``)."""
    return any(
        isinstance(node, ast.If)
        and node.lineno > site.call.lineno
        and isinstance(node.body[-1], (ast.Break, ast.Return))
        and _asks_for_any(node.test, site.name)
        for node in loop.body
    )


def _asks_for_any(test: ast.expr, name: str) -> bool:
    """Whether a test holds as soon as the number is not zero: ``n``, ``n > 0``, ``n.item() != 0``, ``n >= 1``."""
    if not isinstance(test, ast.Compare):
        return dotted_ast(passed(test)) == name
    least = test.comparators[0].value if isinstance(test.comparators[0], ast.Constant) else None
    asks = [(type(op), least) for op in test.ops]
    return dotted_ast(passed(test.left)) == name and asks in ([(ast.Gt, 0)], [(ast.NotEq, 0)], [(ast.GtE, 1)])


def _added(site: _Site, nodes: list[ast.AST]) -> ast.stmt | None:
    """What adds to the sum in a loop; None where something else there changes it, too."""
    added: list[ast.stmt] = []
    for node in nodes:
        if node in site.links:
            continue
        if isinstance(node, ast.stmt) and site.name in _added_by(node):
            added.append(node)
        elif changes(node, site.name):
            return None
    return added[0] if added else None


def _added_by(node: ast.stmt) -> tuple[str, ...]:
    """The name that a statement adds to."""
    if isinstance(node, ast.AugAssign):
        return (dotted_ast(node.target),) if isinstance(node.op, ast.Add) else ()
    if isinstance(node, ast.Assign) and isinstance(node.value, ast.BinOp) and isinstance(node.value.op, ast.Add):
        name = _target(node)
        return (name,) if name in map(dotted_ast, (node.value.left, node.value.right)) else ()
    call = node.value if isinstance(node, ast.Expr) else None
    if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "add_":
        return (dotted_ast(call.func.value),)
    return ()


def changes(node: ast.AST, name: str) -> bool:
    """Whether a node gives the name another value than a larger sum, or may do so."""
    if isinstance(node, ast.Call):
        method = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        if method.endswith("_") and method not in _KEEPING and dotted_ast(node.func.value) == name:  # type: ignore[attr-defined]
            return True
        given = any(dotted_ast(argument) == name for argument in node.args)
        return given and any(word in last_part(node.func).lower() for word in _EMPTYING)
    if isinstance(node, ast.AugAssign):
        return name in names_in(node.target)
    targets: list[ast.AST] = []
    if isinstance(node, ast.Assign):
        targets = list(node.targets)
    elif isinstance(node, (ast.AnnAssign, ast.For, ast.AsyncFor, ast.NamedExpr)):
        targets = [node.target]
    elif isinstance(node, ast.withitem) and node.optional_vars is not None:
        targets = [node.optional_vars]
    elif isinstance(node, ast.Delete):
        targets = list(node.targets)
    return any(name in names_in(target) for target in targets)


def _is_chosen(tests: list[ast.If], nodes: list[ast.AST]) -> bool:
    """Whether a test of what the loop changes leads to the call, which may then be made once: in the last round. One
    that comes true every few rounds (``step % 10 == 0``) is none."""
    changed = {part.id for node in nodes for part in walk(_bound(node)) if isinstance(part, ast.Name)}
    for branch in tests:
        parts = list(walk(branch.test))
        often = any(isinstance(part, ast.BinOp) and isinstance(part.op, ast.Mod) for part in parts)
        if not often and any(isinstance(part, ast.Name) and part.id in changed for part in parts):
            return True
    return False


def _bound(node: ast.AST) -> ast.AST:
    if isinstance(node, ast.Assign):
        return ast.Tuple(node.targets, ast.Store())
    return getattr(node, "target", None) or ast.Pass()


def _begins_before(site: _Site, loop: Loop, around: dict[ast.AST, ast.AST]) -> bool:
    """Whether the sum begins with a value that the function gives it above the loop."""
    binds = (node for node in around if isinstance(node, (ast.Assign, ast.AnnAssign)) and changes(node, site.name))
    return any(node.lineno < loop.lineno for node in binds)
