"""Does a value take part in training: does it flow into a `backward()`, with gradients recorded?"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import libcst as cst

from ddp_lint.source import dotted
from ddp_lint.source.tree import called, children, descendants
from ddp_lint.tensors.contexts import without_gradient
from ddp_lint.view import Module
from ddp_lint.view.accumulation import is_backward

#: Names of which a statement may mention one that are looked up one by one; with more, all statements are gone through.
_FEW = 8
#: Names that hold a value up to which it is kept what comes of them in the rest of a block.
_HELD = 64


def backward_of(module: Module, value: cst.CSTNode) -> cst.Call | None:
    """The `backward()` call in the same function that `value` flows into, None when there is none."""
    flow = _flow_of(module, value)
    return next(iter(flow.backwards), None) if flow is not None else None


def backwards_of(
    module: Module, values: Sequence[cst.CSTNode], ends: frozenset[cst.CSTNode] = frozenset()
) -> set[cst.Call]:
    """All `backward()` calls in the function of some values that one of these flows into; none of them is
    `without_gradient`. `ends`: arguments that pass on nothing, since the call detaches them."""
    function = module.function_of(values[0])
    flow = _Flow(module, frozenset(values), ends)
    if function is not None:
        flow.suite(function.body)
    return set(flow.backwards)


def loss_of(module: Module, value: cst.CSTNode) -> cst.Return | None:
    """The `return` of a method that computes a loss (its name says so) that `value` flows into: a trainer calls it,
    and `backward()` on what it returns. None when there is none."""
    function = module.function_of(value)
    if function is None or "loss" not in function.name.value or module.class_of(value) is None:
        return None
    flow = _flow_of(module, value)
    return next(iter(flow.returns), None) if flow is not None else None


def returned(module: Module, value: cst.CSTNode) -> cst.Return | None:
    """The first `return` of the function around a value that the value flows into, with gradients recorded."""
    flow = _flow_of(module, value)
    return next(iter(flow.returns), None) if flow is not None else None


def backward_of_callers(module: Module, value: cst.CSTNode) -> Iterator[tuple[cst.Call, cst.Call]]:
    """The calls in the file of the function around a value which it returns, each with the `backward()` that what it
    returns flows into there. Of functions alone, not of methods."""
    function = module.function_of(value)
    if function is None or module.class_of(value) is not None or returned(module, value) is None:
        return
    for call in module.calls_named(function.name.value):
        backward = backward_of(module, call) if isinstance(call.func, cst.Name) else None
        if backward is not None:
            yield call, backward


def _flow_of(module: Module, value: cst.CSTNode) -> _Flow | None:
    """Where a value goes in its function, None where no gradient is recorded: the first backward, the first return.

    Names are followed through assignments in the order of execution, loops twice; attributes and containers are
    followed by their first name. `detach()` cuts the flow, and so does the assignment of something else to a name.
    """
    function = module.function_of(value)
    if function is None or without_gradient(module, value):
        return None
    flow = _Flow(module, frozenset({value}), first_of=function.body)
    flow.suite(function.body)
    return flow


class _Rest(NamedTuple):
    """What comes of names that hold a value in the rest of a block: the first backward and the first return that they
    flow into, and the names that hold the value behind it."""

    backward: cst.Call | None
    returned: cst.Return | None
    names: frozenset[str]


class _Block:
    """The names that the statements of a block mention, looked for once for all values that are followed through it."""

    def __init__(self, module: Module, suite: cst.BaseSuite) -> None:
        self.statements = suite.body
        self.places = {statement: place for place, statement in enumerate(suite.body)}
        #: What is known of the rest of the block from a place on, by the names that hold a value there.
        self.rests: dict[tuple[int, frozenset[str]], _Rest] = {}
        self._names: list[frozenset[str]] = []
        self._mentions: dict[str, list[int]] = {}
        for place, statement in enumerate(suite.body):
            names = frozenset(node.value for node in module.inside(statement) if type(node) is cst.Name)
            self._names.append(names)
            for name in names:
                self._mentions.setdefault(name, []).append(place)

    def next_of(self, names: set[str], place: int, end: int) -> int:
        """The place of the first statement from one on that mentions one of some names; `end` if none before it."""
        if len(names) > _FEW:  # what lies before `end` is asked for once: who asks goes on behind what is found
            return next((each for each in range(place, end) if not names.isdisjoint(self._names[each])), end)
        return min((self._next(name, place) for name in names), default=end)

    def _next(self, name: str, place: int) -> int:
        known = self._mentions.get(name, ())
        at = bisect.bisect_left(known, place)
        return known[at] if at < len(known) else len(self._names)

    def is_mentioned(self, name: str, place: int) -> bool:
        """Whether a statement from a place on mentions a name."""
        known = self._mentions.get(name)
        return known is not None and known[-1] >= place


class _Flow:
    """The set of names that hold (something computed from) one of the values, statement by statement.

    A name that is bound to something else holds it no longer for the rest of its block; after a branch or a loop a
    name holds it if it does so on any way through.
    """

    def __init__(
        self, module: Module, values: frozenset[cst.CSTNode], ends: frozenset[cst.CSTNode] = frozenset(),
        first_of: cst.BaseSuite | None = None,
    ) -> None:  # fmt: skip
        """`first_of`: the body of a function, where nothing is asked but for the first backward and return in it."""
        self.values = values
        self.ends = ends
        self.names: set[str] = set()
        self._module = module
        self._first_of = first_of
        #: The nodes around the values, by their parents.
        self._around: dict[cst.CSTNode, set[cst.CSTNode]] = {}
        for value in values:
            for below, up in itertools.pairwise((value, *module.ancestors(value))):
                self._around.setdefault(up, set()).add(below)
        #: How names that have held a value begin.
        self._first: set[str] = set()
        #: Those that have a dot, now or before: few, so that a name is bound in no time however many hold the value.
        self._dotted: set[str] = set()
        #: In the order in which they are met.
        self.backwards: list[cst.Call] = []
        self.returns: list[cst.Return] = []

    def suite(self, suite: cst.BaseSuite) -> None:
        block = self._module.blocks.get(suite)
        if block is None:
            block = self._module.blocks[suite] = _Block(self._module, suite)
        inside = sorted(block.places[each] for each in self._around.get(suite, ()))
        last = inside[-1] if inside else -1
        at, end = 0, len(block.statements)
        states: list[tuple[int, frozenset[str], set[str], int, int]] = []
        while True:
            at = self._next(block, inside, at, end)
            if at == end:
                break
            if self._first_of is not None and at > last and (held := self._held(block, at, suite)) is not None:
                kept = self.names - held
                rest = block.rests.get((at, held))
                if rest is not None:
                    self._take(rest, kept)
                    break
                states.append((at, held, kept, len(self.backwards), len(self.returns)))
            self._statement(block.statements[at])
            at += 1
        for place, held, kept, backwards, returns in states:
            backward = next(iter(self.backwards[backwards : backwards + 1]), None)
            returned = next(iter(self.returns[returns : returns + 1]), None)
            names = frozenset() if suite is self._first_of else frozenset(self.names - kept)
            block.rests[place, held] = _Rest(backward, returned, names)

    def _next(self, block: _Block, inside: list[int], at: int, end: int) -> int:
        """The place of the next statement that has a value in it, or may mention a name that holds one."""
        own = bisect.bisect_left(inside, at)
        found = inside[own] if own < len(inside) else end
        return min(found, block.next_of(self._first, at, found)) if self.names else found

    def _held(self, block: _Block, at: int, suite: cst.BaseSuite) -> frozenset[str] | None:
        """The names that hold the value and that the rest of a block mentions; None where there are too many. Behind
        the body of a function nothing is asked for the others, which are let go."""
        if len(self.names) > _HELD:
            return None
        held = frozenset(name for name in self.names if block.is_mentioned(name.partition(".")[0], at))
        if suite is self._first_of and len(held) < len(self.names):
            self.names, self._first = set(held), {name.partition(".")[0] for name in held}
        return held

    def _take(self, rest: _Rest, kept: set[str]) -> None:
        """The rest of a block, as it is known."""
        self.backwards += [rest.backward] if rest.backward is not None else []
        self.returns += [rest.returned] if rest.returned is not None else []
        self.names = kept | rest.names
        self._first.update(name.partition(".")[0] for name in rest.names)
        self._dotted.update(name for name in rest.names if "." in name)

    def _statement(self, statement: cst.CSTNode) -> None:
        if isinstance(statement, cst.SimpleStatementLine):
            for small in statement.body:
                self._small(small)
        else:
            getattr(self, f"_{type(statement).__name__}", self._small)(statement)

    # ---- statements

    def _small(self, node: cst.CSTNode) -> None:
        if isinstance(node, (cst.FunctionDef, cst.ClassDef)):
            return
        self._read(node)
        if isinstance(node, cst.Return) and node.value is not None:
            self.returns += [node] if self.holds(node.value) else []
        elif isinstance(node, cst.Assign):
            held = self.holds(node.value)
            for target in node.targets:
                self._bind(target.target, held)
        elif isinstance(node, cst.AnnAssign) and node.value is not None:
            self._bind(node.target, self.holds(node.value))
        elif isinstance(node, cst.AugAssign) and self.holds(node.value):
            self._bind(node.target, held=True)

    def _read(self, expression: cst.CSTNode) -> None:
        """The calls of `backward()` on the value in an expression, and the names that `:=` binds in it."""
        for node in (expression, *descendants(expression, into_definitions=False)):
            if isinstance(node, cst.NamedExpr):
                self._bind(node.target, self.holds(node.value))
            elif isinstance(node, cst.Call) and self._is_backward(node):
                self.backwards.append(node)

    def _If(self, node: cst.If) -> None:
        self._read(node.test)
        before = self.names.copy()
        self.suite(node.body)
        taken, self.names = self.names, before
        if isinstance(node.orelse, cst.If):
            self._If(node.orelse)
        elif node.orelse is not None:
            self.suite(node.orelse.body)
        self.names |= taken

    def _For(self, node: cst.For) -> None:
        self._read(node.iter)
        self._loop(node, lambda: self._bind(node.target, self.holds(node.iter)))

    def _While(self, node: cst.While) -> None:
        self._loop(node, lambda: self._read(node.test))

    def _loop(self, node: cst.For | cst.While, each_time: Callable[[], None]) -> None:
        for _ in range(2):  # the second time round it meets what the first one left in the names
            before = self.names.copy()
            each_time()
            self.suite(node.body)
            self.names |= before
            if self.names == before:  # which is nothing: rounds of loops within loops would double with each loop
                break
        if node.orelse is not None:
            self.suite(node.orelse.body)

    def _With(self, node: cst.With) -> None:
        for item in node.items:
            self._read(item.item)
            if item.asname is not None:
                self._bind(item.asname.name, self.holds(item.item))
        self.suite(node.body)

    def _Try(self, node: cst.Try | cst.TryStar) -> None:
        before = self.names.copy()
        self.suite(node.body)
        raised = self.names | before
        for handler in (*node.handlers, *filter(None, (node.orelse, node.finalbody))):
            self.names = raised | self.names
            self.suite(handler.body)

    _TryStar = _Try

    def _Match(self, node: cst.Match) -> None:
        self._read(node.subject)
        before = self.names.copy()
        left = before.copy()
        for case in node.cases:
            self.names = before.copy()
            self.suite(case.body)
            left |= self.names
        self.names = left

    # ---- expressions

    def holds(self, expression: cst.CSTNode) -> bool:
        if expression in self.values:
            return True
        if isinstance(expression, cst.Name):
            return expression.value in self.names
        if (
            isinstance(expression, cst.Call)
            and isinstance(expression.func, cst.Attribute)
            and called(expression) in ("detach", "item", "tolist")
        ):
            return False
        if isinstance(expression, cst.Attribute):
            return dotted(expression) in self.names or self.holds(expression.value)
        if isinstance(expression, cst.Arg):
            return expression not in self.ends and self.holds(expression.value)  # a keyword is no name
        return not isinstance(expression, cst.Lambda) and any(map(self.holds, children(expression)))

    def _bind(self, target: cst.BaseExpression, held: bool) -> None:
        if isinstance(target, (cst.Tuple, cst.List)):
            for element in target.elements:
                self._bind(element.value, held)
        elif isinstance(target, cst.Subscript):
            if held:  # the container holds it too; what it holds besides is kept
                self._bind(target.value, held)
        elif name := dotted(target):
            self.names.discard(name)
            self.names.difference_update([n for n in self._dotted if n.startswith(f"{name}.")])
            if held:
                self.names.add(name)
                self._first.add(name.partition(".")[0])
                if "." in name:
                    self._dotted.add(name)

    def _is_backward(self, call: cst.Call) -> bool:
        """`loss.backward()`, `accelerator.backward(loss)`, `scaler.scale(loss).backward()`, `manual_backward(loss)`."""
        if not is_backward(call):
            return False
        receiver = [call.func.value] if isinstance(call.func, cst.Attribute) else []
        return any(self.holds(part) for part in (*receiver, *(arg.value for arg in call.args)))
