"""Does a value take part in training: does it flow into a `backward()`, with gradients recorded?"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import libcst as cst

from ddp_lint.source import Module, dotted
from ddp_lint.source.accumulation import is_backward
from ddp_lint.source.tree import called, children, descendants
from ddp_lint.tensors.contexts import without_gradient


def backward_of(module: Module, value: cst.CSTNode) -> cst.Call | None:
    """The `backward()` call in the same function that `value` flows into, None when there is none."""
    flow = _flow_of(module, value)
    return next(iter(flow.backwards), None) if flow is not None else None


class Mentions:
    """The names in each statement of a function, looked for once for all values that are followed through it."""

    def __init__(self) -> None:
        self._known: dict[cst.CSTNode, frozenset[str]] = {}

    def of(self, statement: cst.CSTNode) -> frozenset[str]:
        known = self._known.get(statement)
        if known is None:
            nodes = (statement, *descendants(statement))
            known = self._known[statement] = frozenset(node.value for node in nodes if isinstance(node, cst.Name))
        return known


def backwards_of(
    module: Module, values: Sequence[cst.CSTNode], ends: frozenset[cst.CSTNode] = frozenset(),
    mentions: Mentions | None = None,
) -> set[cst.Call]:  # fmt: skip
    """All `backward()` calls in the function of some values that one of these flows into; none of them is
    `without_gradient`. `ends`: arguments that pass on nothing, since the call detaches them. `mentions` of this
    function, if values are followed through it many times."""
    function = module.function_of(values[0])
    flow = _Flow(module, frozenset(values), ends, mentions)
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
    return flow.returned if flow is not None else None


def _flow_of(module: Module, value: cst.CSTNode) -> _Flow | None:
    """Where a value goes in its function, None where no gradient is recorded.

    Names are followed through assignments in the order of execution, loops twice; attributes and containers are
    followed by their first name. `detach()` cuts the flow, and so does the assignment of something else to a name.
    """
    function = module.function_of(value)
    if function is None or without_gradient(module, value):
        return None
    flow = _Flow(module, frozenset({value}))
    flow.suite(function.body)
    return flow


class _Flow:
    """The set of names that hold (something computed from) one of the values, statement by statement.

    A name that is bound to something else holds it no longer for the rest of its block; after a branch or a loop a
    name holds it if it does so on any way through.
    """

    def __init__(
        self, module: Module, values: frozenset[cst.CSTNode], ends: frozenset[cst.CSTNode] = frozenset(),
        mentions: Mentions | None = None,
    ) -> None:  # fmt: skip
        self.values = values
        self.ends = ends
        self.names: set[str] = set()
        self._mentions = mentions
        self._around = {up for value in values for up in module.ancestors(value)}
        #: How names that have held a value begin.
        self._first: set[str] = set()
        #: Those that have a dot, now or before: few, so that a name is bound in no time however many hold the value.
        self._dotted: set[str] = set()
        #: In the order in which they are met.
        self.backwards: dict[cst.Call, None] = {}
        self.returned: cst.Return | None = None

    def suite(self, suite: cst.BaseSuite) -> None:
        for statement in suite.body:
            if statement not in self._around and not (self.names and self._is_mentioned_in(statement)):
                continue
            if isinstance(statement, cst.SimpleStatementLine):
                for small in statement.body:
                    self._small(small)
            else:
                getattr(self, f"_{type(statement).__name__}", self._small)(statement)

    def _is_mentioned_in(self, statement: cst.CSTNode) -> bool:
        """Whether a statement may mention a name that holds a value."""
        return self._mentions is None or not self._first.isdisjoint(self._mentions.of(statement))

    # ---- statements

    def _small(self, node: cst.CSTNode) -> None:
        if isinstance(node, (cst.FunctionDef, cst.ClassDef)):
            return
        self._read(node)
        if isinstance(node, cst.Return) and node.value is not None and self.returned is None:
            self.returned = node if self.holds(node.value) else None
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
                self.backwards[node] = None

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
