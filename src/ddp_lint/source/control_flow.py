"""What leads to a place in a function, and which places exclude each other."""

from __future__ import annotations

import ast
import functools
import itertools
import re
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple, Protocol

import libcst as cst

from ddp_lint.source.syntax import FunctionNode, blocks_at, text_of, walk
from ddp_lint.source.syntax import below as below_of
from ddp_lint.source.tree import dotted, names_in, parameters_of, subtree

#: Calls that end the program.
_EXITING = frozenset({"exit", "quit", "sys.exit", "os._exit", "os.abort"})
#: Calls at which whoever has started the program looks at it.
_DEBUGGING = re.compile(r"breakpoint|i?pdb\.set_trace|(?:IPython\.)?embed|code\.interact")
#: Calls that end a test, or the import of a file of tests.
_SKIPPING = frozenset({"pytest.skip", "self.skipTest"})


class Nodes(Protocol):
    """The nodes of one file (`view.Module`)."""

    def ancestors(self, node: cst.CSTNode) -> Iterator[cst.CSTNode]: ...
    def code(self, node: cst.CSTNode) -> str: ...
    def is_undefined(self, name: cst.Name) -> bool: ...


def conditions(module: Nodes, node: cst.CSTNode) -> Iterator[tuple[cst.BaseExpression, bool]]:
    """The tests that decide whether `node` runs, each with the outcome that it needs, innermost first.

    A statement after ``if test: return`` needs the test to fail.
    """
    return _conditions(module, node, _left_before)


def holding(module: Nodes, node: cst.CSTNode) -> Iterator[cst.BaseExpression]:
    """The tests that hold where `node` runs, innermost first. Those of the thousands of ``if test: return`` that may be
    above it have failed."""
    return (test for test, taken in _conditions(module, node, lambda block, below: ()) if taken)


def _conditions(
    module: Nodes,
    node: cst.CSTNode,
    before: Callable[[cst.IndentedBlock | cst.Module, cst.CSTNode], Iterable[tuple[cst.BaseExpression, bool]]],
) -> Iterator[tuple[cst.BaseExpression, bool]]:
    below: cst.CSTNode = node
    for up in module.ancestors(node):
        if isinstance(up, (cst.If, cst.IfExp)) and below is not up.test:
            yield up.test, below is up.body
        elif isinstance(up, cst.While) and below is up.body:
            yield up.test, True
        elif isinstance(up, cst.BooleanOperation) and below is up.right:
            yield up.left, isinstance(up.operator, cst.And)
        elif isinstance(up, (cst.IndentedBlock, cst.Module)):
            yield from before(up, below)
        if isinstance(up, cst.FunctionDef):
            return
        below = up


def conditions_at(function: FunctionNode | ast.Module, node: ast.AST) -> Iterator[tuple[cst.BaseExpression, bool]]:
    """`conditions` for a node of the `ast` of a function, or of what is outside of functions: of a file that is not
    parsed by LibCST, or not as a whole."""
    around = _around(function, node)
    below = node
    while below is not function and (up := around.get(below)) is not None:
        if isinstance(up, (ast.If, ast.IfExp)) and below is not up.test:
            yield _test(up.test), below is up.body or (isinstance(up.body, list) and below in up.body)
        elif isinstance(up, ast.While) and below in up.body:
            yield _test(up.test), True
        elif isinstance(up, ast.BoolOp):
            before = itertools.takewhile(lambda value, end=below: value is not end, up.values)  # type: ignore[misc]
            yield from ((_test(value), isinstance(up.op, ast.And)) for value in before)
        for block in _blocks_of(up):
            if below in block:
                yield from ((_test(test), False) for test in _left_above(block[: block.index(below)]))
        below = up


def _around(function: FunctionNode | ast.Module, node: ast.AST) -> dict[ast.AST, ast.AST]:
    """What is directly around each node from one up to a function: in the statement that it is in, and around that."""
    chain = [function, *blocks_at(function, getattr(node, "lineno", 0))]
    found = {child: up for up in walk(chain[-1]) for child in below_of(up)}
    found |= {child: up for up, child in itertools.pairwise(chain)}
    return found if node in found else {child: up for up in walk(function) for child in below_of(up)}


def _test(test: ast.expr) -> cst.BaseExpression:
    return _parsed(text_of(test))


@functools.lru_cache(maxsize=1024)
def _parsed(text: str) -> cst.BaseExpression:
    return cst.parse_expression(text)


def _blocks_of(node: ast.AST) -> Iterator[list[ast.AST]]:
    return (block for name in ("body", "orelse", "finalbody") if isinstance(block := getattr(node, name, None), list))


def _left_above(statements: list[ast.AST]) -> Iterator[ast.expr]:
    """The tests that have failed behind some statements: of ``if test: return``, and of the arms of ``elif``."""
    for branch in statements:
        arm: ast.AST | None = branch
        while isinstance(arm, ast.If) and isinstance(arm.body[-1], _LEAVING):
            yield arm.test
            arm = arm.orelse[0] if len(arm.orelse) == 1 else None


_LEAVING = (ast.Return, ast.Raise, ast.Continue, ast.Break)


def exits_inside(module: Nodes, node: cst.CSTNode) -> Iterator[tuple[cst.BaseExpression, cst.BaseExpression]]:
    """The pairs of tests of ``if a: if b: return`` above `node`: where ``a`` holds, ``b`` has failed."""
    for statements, place in _blocks_around(module, node):
        yield from ((outer, inner) for at, outer, inner in statements.inner_exits if at < place)


def asserted(module: Nodes, node: cst.CSTNode) -> Iterator[cst.BaseExpression]:
    """The tests of the `assert`s that have held where `node` runs: those above it in the blocks around it."""
    for statements, place in _blocks_around(module, node):
        yield from (test for at, test in statements.asserts if at < place)


def _blocks_around(module: Nodes, node: cst.CSTNode) -> Iterator[tuple[_Statements, int]]:
    """The statements of each block around a place in its function, innermost first, and which of them holds it."""
    below: cst.CSTNode = node
    for up in module.ancestors(node):
        if isinstance(up, (cst.IndentedBlock, cst.Module)):
            statements = _statements(up)
            yield statements, statements.places.get(below, 0)
        if isinstance(up, cst.FunctionDef):
            return
        below = up


def absent(module: Nodes, node: cst.CSTNode) -> set[str]:
    """The names that tests say are None, or false, where `node` runs: ``else`` of ``if self.wrapped is not None``."""
    asked = (asked_for(part, taken) for part, taken in outcomes(conditions(module, node)))
    return {dotted(name) for name, there in asked if name is not None and there is False} - {""}


def asked_for(test: cst.BaseExpression, taken: bool) -> tuple[cst.BaseExpression | None, bool | None]:
    """What a test compares with None, or tests for its truth, and whether the outcome says that it is there; None for
    any other test."""
    if isinstance(test, (cst.Name, cst.Attribute)):
        return test, taken
    if isinstance(test, cst.UnaryOperation) and isinstance(test.operator, cst.Not):
        return asked_for(test.expression, not taken)
    if not isinstance(test, cst.Comparison) or dotted(test.comparisons[0].comparator) != "None":
        return None, None
    return test.left, taken == isinstance(test.comparisons[0].operator, (cst.IsNot, cst.NotEqual))


def ruled_out(module: Nodes, first: cst.CSTNode, second: cst.CSTNode) -> bool:
    """Whether an `assert` above `first` says that what `first` and `second` run under does not hold at once: ``assert
    not (gpus > 1) or not testing``. What an object keeps under the name of a parameter is taken for it."""
    pairs = [pair for test in asserted(module, first) if (pair := _not_both(test)) is not None]
    if not pairs:
        return False
    here, there = (
        {_of_object(module, part) for test in holding(module, node) for part in conjuncts(test)}
        for node in (first, second)
    )
    named = (tuple(_of_object(module, part) for part in pair) for pair in pairs)
    return any((a in here and b in there) or (b in here and a in there) for a, b in named)


def _not_both(test: cst.BaseExpression) -> tuple[cst.BaseExpression, cst.BaseExpression] | None:
    """The two tests that do not hold at once where this one holds: ``not a or not b``, ``not (a and b)``."""
    if isinstance(test, cst.BooleanOperation) and isinstance(test.operator, cst.Or):
        left, right = _denied(test.left), _denied(test.right)
        return (left, right) if left is not None and right is not None else None
    both = _denied(test)
    if isinstance(both, cst.BooleanOperation) and isinstance(both.operator, cst.And):
        return both.left, both.right
    return None


def _denied(test: cst.BaseExpression) -> cst.BaseExpression | None:
    return test.expression if isinstance(test, cst.UnaryOperation) and isinstance(test.operator, cst.Not) else None


def _of_object(module: Nodes, test: cst.BaseExpression) -> str:
    return module.code(test.with_changes(lpar=(), rpar=())).removeprefix("self.")


def conjuncts(test: cst.BaseExpression) -> Iterator[cst.BaseExpression]:
    """The parts of ``a and b``, all of which hold where it holds."""
    if isinstance(test, cst.BooleanOperation) and isinstance(test.operator, cst.And):
        yield from conjuncts(test.left)
        yield from conjuncts(test.right)
    else:
        yield test


def outcomes(tests: Iterable[tuple[cst.BaseExpression, bool]]) -> Iterator[tuple[cst.BaseExpression, bool]]:
    """The tests that lead to a place, each with its outcome there: of ``a and b`` that holds, both parts hold."""
    for test, taken in tests:
        yield from ((part, taken) for part in (conjuncts(test) if taken else (test,)))


def _left_before(block: cst.IndentedBlock | cst.Module, node: cst.CSTNode) -> Iterator[tuple[cst.BaseExpression, bool]]:
    statements = _statements(block)
    for place, test in statements.exits if node in statements.places else ():
        if place >= statements.places[node]:
            return
        yield test, False


class _Statements(NamedTuple):
    """The place of each statement of a block; those of ``if test: return``, with the tests that failed behind them, and
    of ``if test: if other: return``; those of the `assert`s, with their tests; those that are a name alone; that of the
    first one that always leaves, which is the last one reached."""

    places: dict[cst.CSTNode, int]
    exits: tuple[tuple[int, cst.BaseExpression], ...]
    inner_exits: tuple[tuple[int, cst.BaseExpression, cst.BaseExpression], ...]
    asserts: tuple[tuple[int, cst.BaseExpression], ...]
    names: tuple[tuple[int, cst.Name], ...]
    last: int


@functools.lru_cache(maxsize=64)
def _statements(block: cst.IndentedBlock | cst.Module) -> _Statements:
    branches = [(place, statement) for place, statement in enumerate(block.body) if isinstance(statement, cst.If)]
    inner = ((place, branch.test, each.test) for place, branch in branches for each in _leaving(branch.body))
    exits = ((place, test) for place, branch in branches for test in _failed_behind(branch))
    ends = (place for place, statement in enumerate(block.body) if _goes_no_further(statement))
    places: dict[cst.CSTNode, int] = {statement: place for place, statement in enumerate(block.body)}
    lines = [(place, s) for place, s in enumerate(block.body) if isinstance(s, cst.SimpleStatementLine)]
    asserts = ((place, s.test) for place, line in lines for s in line.body if isinstance(s, cst.Assert))
    values = ((place, s.value) for place, line in lines for s in line.body if isinstance(s, cst.Expr))
    names = ((place, value) for place, value in values if isinstance(value, cst.Name))
    return _Statements(places, tuple(exits), tuple(inner), tuple(asserts), tuple(names), next(ends, len(places)))


def _leaving(block: cst.BaseSuite) -> Iterator[cst.If]:
    """The statements ``if test: return`` of a block."""
    return (s for s in block.body if isinstance(s, cst.If) and leaves(s.body))


def _failed_behind(branch: cst.If) -> Iterator[cst.BaseExpression]:
    """The tests of ``if .. elif ..`` that have failed behind it: those of its first arms, if these leave."""
    arm: cst.If | cst.Else | None = branch
    while isinstance(arm, cst.If) and leaves(arm.body):
        yield arm.test
        arm = arm.orelse


def leaves(body: cst.BaseSuite) -> bool:
    """Whether a block ends by leaving the function or the round of its loop."""
    return bool(body.body) and _goes_no_further(body.body[-1])


def raises(body: cst.BaseSuite) -> bool:
    """Whether a block ends by raising an error."""
    last = body.body[-1] if body.body else None
    return isinstance(last, cst.SimpleStatementLine) and isinstance(last.body[-1], cst.Raise)


def exits(body: cst.BaseSuite) -> bool:
    """Whether a block ends by ending the program: ``exit()``, ``sys.exit(1)``."""
    last = body.body[-1] if body.body else None
    call = last.body[-1] if isinstance(last, cst.SimpleStatementLine) else None
    name = dotted(call.value.func) if isinstance(call, cst.Expr) and isinstance(call.value, cst.Call) else ""
    return name in _EXITING


def stops(body: cst.BaseSuite) -> bool:
    """Whether a block ends the program, or stops it in a debugger."""
    if exits(body):
        return True
    lines = (line for line in body.body if isinstance(line, cst.SimpleStatementLine))
    calls = (each.value for line in lines for each in line.body if isinstance(each, cst.Expr))
    return any(isinstance(call, cst.Call) and _DEBUGGING.fullmatch(dotted(call.func)) for call in calls)


def _goes_no_further(statement: cst.CSTNode) -> bool:
    last = statement.body[-1] if isinstance(statement, cst.SimpleStatementLine) else statement
    if isinstance(last, cst.Assert):
        return isinstance(last.test, cst.Name) and last.test.value == "False"
    if isinstance(last, cst.Expr) and isinstance(last.value, cst.Call):
        return dotted(last.value.func) in _SKIPPING
    return isinstance(last, (cst.Return, cst.Raise, cst.Continue, cst.Break))


def is_never_reached(module: Nodes, node: cst.CSTNode) -> bool:
    """Whether a statement before it in one of its blocks always leaves (what follows a `return`, ``assert False``,
    ``pytest.skip()`` or a name alone that nothing defines, which raises), it is in an arm that a constant switches off
    (``if 0:``), it needs a name to be None that was given a number where it was None, or a parameter that is true and
    false at once."""
    if _needs_both(module, node):
        return True
    below: cst.CSTNode = node
    absent: set[str] = set()  # names that are None in the arms around
    for up in module.ancestors(node):
        if isinstance(up, (cst.If, cst.While)) and _is_switched_off(up, below):
            return True
        if isinstance(up, cst.If) and below is not up.test:
            name, outcome = asks_for_none(up.test)
            absent |= {name} if name.isidentifier() and outcome is (below is up.body) else set()
        elif isinstance(up, (cst.IndentedBlock, cst.Module)):
            statements = _statements(up)
            place = statements.places.get(below, 0)
            if place > statements.last or any(_is_filled(up.body[:place], name) for name in absent):
                return True
            if any(line < place and module.is_undefined(name) for line, name in statements.names):
                return True
            absent = set()
        below = up
    return False


def _needs_both(module: Nodes, node: cst.CSTNode) -> bool:
    """Whether a place needs a parameter that nothing sets to be true and false: ``if x: raise ..`` above ``if x:``."""
    needed: dict[str, bool] = {}
    for test, taken in outcomes(conditions(module, node)):
        name = _denied(test) or test
        outcome = taken is (name is test)
        if isinstance(name, cst.Name) and needed.setdefault(name.value, outcome) is not outcome:
            function = next((up for up in module.ancestors(node) if isinstance(up, cst.FunctionDef)), None)
            return function is not None and _is_kept(function, name.value)
    return False


def _is_kept(function: cst.FunctionDef, name: str) -> bool:
    """Whether a name is a parameter of a function which it gives no other value."""
    given = any(parameter.name.value == name for parameter in parameters_of(function))
    return given and not any(_gives(part, name) for part in subtree(function.body))


def _is_switched_off(branch: cst.If | cst.While, arm: cst.CSTNode) -> bool:
    """Whether the test of a branch is a constant that no run takes the arm by."""
    outcome = always(branch.test)
    return arm is branch.orelse if outcome else outcome is False and arm is branch.body


def always(test: cst.BaseExpression) -> bool | None:
    """What a test is in every run, if it is a constant: ``if 0:``, ``while True:``."""
    if isinstance(test, cst.Name):
        return {"True": True, "False": False, "None": False}.get(test.value)
    return bool(test.evaluated_value) if isinstance(test, cst.Integer) else None


def asks_for_none(test: cst.BaseExpression) -> tuple[str, bool | None]:
    """The dotted name that a test compares with None, and the outcome that says that it is None."""
    if isinstance(test, cst.Comparison) and dotted(test.left) and len(test.comparisons) == 1:
        other = test.comparisons[0]
        if dotted(other.comparator) == "None" and isinstance(other.operator, (cst.Is, cst.IsNot)):
            return dotted(test.left), isinstance(other.operator, cst.Is)
    return "", None


def _is_filled(above: Iterable[cst.BaseStatement | cst.BaseSmallStatement], name: str) -> bool:
    """Whether the last of these statements that gives a name a value is ``if x is None: x = y + 1``."""
    last = next((each for each in reversed([*above]) if any(_gives(n, name) for n in subtree(each))), None)
    if not isinstance(last, cst.If) or last.orelse is not None or asks_for_none(last.test) != (name, True):
        return False
    line = last.body.body[-1]
    given = line.body[-1] if isinstance(line, cst.SimpleStatementLine) else line
    if not isinstance(given, cst.Assign) or not isinstance(given.value, (cst.BinaryOperation, cst.BaseNumber)):
        return False
    return dotted(given.targets[0].target) == name


def _gives(node: cst.CSTNode, name: str) -> bool:
    if isinstance(node, (cst.AssignTarget, cst.AnnAssign, cst.AugAssign, cst.NamedExpr, cst.For, cst.Del)):
        return name in names_in(node.target)
    return isinstance(node, cst.AsName) and name in names_in(node.name)


def exclusive(module: Nodes, first: cst.CSTNode, second: cst.CSTNode, *, holds: bool = False) -> bool:
    """Whether two places are in different arms of one `if`, or one behind an `if` whose arm with the other leaves, so
    that no run reaches both. `holds`: what is tested counts as true only where the test holds, ``isinstance(model,
    DDP)``."""
    arms = {branch: _arm(module, branch, first) for branch in _branches(module, first)}
    common = next((branch for branch in _branches(module, second) if branch in arms), None) if arms else None
    if common is not None:
        found = {arm or ("then" if holds else "") for arm in (arms[common], _arm(module, common, second))}
        if found == {"then", "else"}:
            return True
    needed = dict(conditions(module, first))
    return bool(needed) and any(needed.get(test, outcome) != outcome for test, outcome in conditions(module, second))


def opposed(module: Nodes, first: cst.CSTNode, second: cst.CSTNode) -> bool:
    """Whether the same test sends a run to the one or to the other, in one `if` or in two, alone or as a part of other
    tests: ``if several and sharded``, ``if not sharded``."""
    here = _outcomes(module, first)
    there = _outcomes(module, second) if here else here
    same = any(there.get(test, outcome) != outcome for test, outcome in here.items())
    return same or exclusive(module, first, second)


def _outcomes(module: Nodes, node: cst.CSTNode) -> dict[str, bool]:
    """The tests of the `if`s around a node and their parts, as code, with the outcome that each has there."""
    around = ((up.test, _arm(module, up, node)) for up in _branches(module, node))
    parts = (part for test, arm in around if arm for part in _decided(test, arm == "then"))
    return {module.code(test.with_changes(lpar=(), rpar=())): outcome for test, outcome in parts}


def _decided(test: cst.BaseExpression, outcome: bool) -> Iterator[tuple[cst.BaseExpression, bool]]:
    """A test and the parts of it that its outcome decides: all of ``a and b`` that holds, of ``a or b`` that does
    not."""
    yield test, outcome
    if isinstance(test, cst.UnaryOperation) and isinstance(test.operator, cst.Not):
        yield from _decided(test.expression, not outcome)
    elif isinstance(test, cst.BooleanOperation) and isinstance(test.operator, cst.And) is outcome:
        yield from _decided(test.left, outcome)
        yield from _decided(test.right, outcome)


def chosen_apart(module: Nodes, first: cst.CSTNode, second: cst.CSTNode) -> bool:
    """Whether two places need one setting, by its name, to be two things: ``if strategy == "ddp"`` and
    ``if self.strategy == "fsdp"``."""
    here = _choices(module, first)
    there = _choices(module, second) if here else here
    return any(there.get(name, value) != value for name, value in here.items())


def _choices(module: Nodes, node: cst.CSTNode) -> dict[str, str]:
    """The last parts of the names that have to be a constant where `node` runs, with the constant."""
    found: dict[str, str] = {}
    held = (part for test in holding(module, node) for part in conjuncts(test))
    for part in held:
        if not isinstance(part, cst.Comparison) or not isinstance(part.comparisons[0].operator, cst.Equal):
            continue
        name = part.left.attr if isinstance(part.left, cst.Attribute) else part.left
        value = part.comparisons[0].comparator
        if isinstance(name, cst.Name) and isinstance(value, (cst.SimpleString, cst.Integer)):
            found[name.value] = str(value.evaluated_value)
    return found


def arms(module: Nodes, node: cst.CSTNode) -> dict[str, str]:
    """The tests of the `if`s around a node, as code, and the arm of each that the node is in: then or else."""
    around = ((module.code(up.test), _arm(module, up, node)) for up in _branches(module, node))
    return {test: arm for test, arm in around if arm}


def _branches(module: Nodes, node: cst.CSTNode) -> Iterator[cst.If]:
    return (up for up in module.ancestors(node) if isinstance(up, cst.If))


def _arm(module: Nodes, branch: cst.If, node: cst.CSTNode) -> str:
    """Which arm of `branch` the node is in; '' for its test, which runs before either."""
    around = (node, *module.ancestors(node))
    if any(up is branch.orelse for up in around):
        return "else"
    return "then" if any(up is branch.body for up in around) else ""
