"""One pass over a function in the order of execution: what every expression is, what autograd has kept by the time
that a tensor is written in place."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Sequence

import libcst as cst

from ddp_lint.source import dotted
from ddp_lint.source.names import Names
from ddp_lint.tensors.classes import ModuleClass
from ddp_lint.tensors.contexts import turns_off_gradient, without_gradient
from ddp_lint.tensors.evaluation import Code, Evaluator, unpacked
from ddp_lint.tensors.kept import Keeping
from ddp_lint.tensors.state import State, Write
from ddp_lint.tensors.values import UNKNOWN, Kind, Value, concatenated, group, join
from ddp_lint.view import Module

_LOOP_DEPTH = 2  # loops nested deeper are read once: what they carry around shows in the outer passes


class Flow:
    """The reading of one function, or of a file's top level: `value` says what an expression is, `writes` what is
    written in place. `on_host`: arguments that lie on the host, as their callers show."""

    def __init__(
        self,
        module: Module,
        function: Code,
        owner: ModuleClass | None,
        keeping: Keeping,
        on_host: frozenset[str] = frozenset(),
    ) -> None:
        self.function = function
        self.owner = owner
        self._writes: dict[cst.CSTNode, Write] = {}
        self._module = module
        self._loops = 0
        self._evaluator = Evaluator(module, function, owner, keeping, self._written, on_host)
        state = State(Names(self._evaluator.arguments()), gradient=not without_gradient(module, function))
        self._run(function.body if isinstance(function, cst.Module) else function.body.body, state)
        self._values = self._evaluator.values
        del self._evaluator  # it refers to the flow: the tree would stay until Python collects garbage

    @property
    def writes(self) -> list[Write]:
        """Every write to a tensor's storage, in source order of the first time round."""
        return list(self._writes.values())

    def value(self, node: cst.CSTNode) -> Value:
        """What an expression of the function is."""
        return self._values.get(node, UNKNOWN)

    @functools.cached_property
    def has_tensors(self) -> bool:
        """Whether any expression of the function is surely a tensor."""
        return any(value.tensor for value in self._values.values())

    # ---- statements

    def _run(self, body: Sequence[cst.CSTNode], state: State) -> None:
        for statement in body:
            if state.left:
                return
            if isinstance(statement, cst.SimpleStatementLine):
                self._run(statement.body, state)
            else:
                getattr(self, f"_{type(statement).__name__}", self._other)(statement, state)

    def _suite(self, suite: cst.BaseSuite, state: State) -> State:
        self._run(suite.body, state)
        return state

    def _other(self, node: cst.CSTNode, state: State) -> None:
        for name in ("value", "test", "msg", "exc"):
            expression = getattr(node, name, None)
            if isinstance(expression, cst.BaseExpression):
                self._evaluator.value(expression, state)

    def _leave(self, node: cst.CSTNode, state: State) -> None:
        self._other(node, state)
        state.left = True

    _Return = _Raise = _Continue = _Break = _leave

    def _FunctionDef(self, node: cst.FunctionDef, state: State) -> None:
        state.names[node.name.value] = UNKNOWN

    def _ClassDef(self, node: cst.ClassDef, state: State) -> None:
        state.names[node.name.value] = UNKNOWN

    def _Assign(self, node: cst.Assign, state: State) -> None:
        value = self._evaluator.value(node.value, state)
        for target in node.targets:
            self._bind(target.target, value, state, node)

    def _AnnAssign(self, node: cst.AnnAssign, state: State) -> None:
        if node.value is not None:
            self._bind(node.target, self._evaluator.value(node.value, state), state, node)

    def _AugAssign(self, node: cst.AugAssign, state: State) -> None:
        value = self._evaluator.value(node.value, state)
        target = self._evaluator.value(node.target, state)
        if target.tensorish and not isinstance(node.value, (cst.List, cst.ListComp, cst.Tuple)):  # those extend a list
            self._written(node, node.target, target, state)
        elif target.kind is value.kind is Kind.GROUP:
            self._bind(node.target, concatenated(target, value), state, node)
        elif isinstance(node.target, cst.Attribute) or dotted(node.target) in state.names:
            # `total = 0; total += loss`: Python rebinds the name. A local that nothing has bound yet is no tensor of
            # this round: ``if i == 0: total = x``, ``else: total += x``.
            self._bind(node.target, self._evaluator.binary([target, value]), state, node)

    def _bind(self, target: cst.CSTNode, value: Value, state: State, statement: cst.CSTNode) -> None:
        if isinstance(target, cst.StarredElement):
            target = target.value
        if isinstance(target, (cst.Tuple, cst.List)):
            parts = unpacked(value, target.elements)
            for i, element in enumerate(target.elements):
                part = parts[i]
                if i and value.kind is Kind.LIKELY:  # of what a call returns, the first is what it computes with
                    part = dataclasses.replace(part, storages=frozenset())
                self._bind(element.value, part, state, statement)
        elif isinstance(target, cst.Subscript):
            written = self._evaluator.value(target.value, state)
            self._evaluator.value(target, state)
            if written.tensor:
                self._written(statement, target.value, written, state)
            elif written.kind is Kind.GROUP and dotted(target.value):  # any of its elements may be another one now
                several = [v for v in (written.element, value) if v.kind is not Kind.GROUP]
                held = dataclasses.replace(written, items=(), each=join(several) if several else None)
                state.names[dotted(target.value)] = held
        else:
            name = dotted(target)
            if isinstance(target, cst.Attribute):
                owner = self._evaluator.value(target.value, state)
                if target.attr.value == "data" and owner.tensorish:  # `p.data = new`: p is another tensor's from now on
                    rebound = dataclasses.replace(owner.view(detached=True), storages=frozenset())
                    self._written(statement, target, rebound, state)
                    return
            if name:
                state.names.forget_parts(name)
                state.names[name] = value

    def _If(self, node: cst.If, state: State) -> None:
        self._evaluator.value(node.test, state)
        taken, other = self._evaluator.arms(node.test, state)
        self._suite(node.body, taken)
        if isinstance(node.orelse, cst.If):
            self._If(node.orelse, other)
        elif node.orelse is not None:
            self._suite(node.orelse.body, other)
        state.become([taken, other])

    def _Assert(self, node: cst.Assert, state: State) -> None:
        self._other(node, state)
        state.become([self._evaluator.arms(node.test, state)[0]])

    def _For(self, node: cst.For, state: State) -> None:
        iterated = self._evaluator.value(node.iter, state)
        rounds = itertools.count()

        def bind(at: State) -> None:
            telling = _telling(iterated, at) if next(rounds) else None
            self._bind(node.target, iterated.element if telling is None else telling, at, node)

        self._loop(node.body, state, bind)
        if node.orelse is not None:
            self._suite(node.orelse.body, state)

    def _While(self, node: cst.While, state: State) -> None:
        self._loop(node.body, state, lambda s: self._evaluator.value(node.test, s))
        if node.orelse is not None:
            self._suite(node.orelse.body, state)

    def _loop(self, body: cst.BaseSuite, state: State, before: Callable[[State], object]) -> None:
        outcomes = [state.copy()]
        self._loops += 1
        for _ in range(2 if self._loops <= _LOOP_DEPTH else 1):
            again = outcomes[-1].copy()
            again.left = False
            before(again)
            outcomes.append(self._suite(body, again))
        self._loops -= 1
        for outcome in outcomes[1:]:
            outcome.left = False  # `continue` and `break` leave the body, not the function
        state.become(outcomes)

    def _With(self, node: cst.With, state: State) -> None:
        gradient = state.gradient
        for item in node.items:
            value = self._evaluator.value(item.item, state)
            if item.asname is not None:
                self._bind(item.asname.name, value, state, node)
            if turns_off_gradient(self._module, item.item):
                state.gradient = False
            elif self._module.qualified(getattr(item.item, "func", item.item)) == "torch.enable_grad":
                state.gradient = True
        self._suite(node.body, state)
        state.gradient = gradient

    def _Try(self, node: cst.Try | cst.TryStar, state: State) -> None:
        before = state.copy()
        self._suite(node.body, state)
        outcomes = [state.copy()]
        if node.orelse is not None:
            self._suite(node.orelse.body, outcomes[0])
        for handler in node.handlers:
            start = before.copy()
            outcomes.append(self._suite(handler.body, start))
        state.become(outcomes)
        if node.finalbody is not None:
            self._suite(node.finalbody.body, state)

    _TryStar = _Try

    def _Match(self, node: cst.Match, state: State) -> None:
        self._evaluator.value(node.subject, state)
        state.become([state.copy(), *(self._suite(case.body, state.copy()) for case in node.cases)])

    def _Del(self, node: cst.Del, state: State) -> None:
        state.names.pop(dotted(node.target), None)

    # ---- writes

    def _written(self, node: cst.CSTNode, target: cst.CSTNode, value: Value, state: State) -> None:
        # A name that may refer to several tensors (an `if` before) counts as kept only if each of them is.
        kept = bool(value.storages) and all(s in state.saved for s in value.storages)
        save = state.saved[min(value.storages)] if kept else None
        of_some = sorted(value.storages & state.saved.keys()) if not kept else []
        perhaps = state.saved[of_some[0]] if of_some else None
        seen = self._writes.get(node)
        if seen is None or seen.save is None:  # a second time round a loop may find what the first did not
            self._writes[node] = Write(node, target, value, save, state.gradient, perhaps)


def _telling(iterated: Value, state: State) -> Value | None:
    """The element of a tuple that a loop comes by of which a write says most: one that autograd keeps, or a
    parameter. The loop takes each of them in turn; of ``zip`` the names in each place."""
    rows = [item.items for item in iterated.items]
    if rows and rows[0] and len({len(row) for row in rows}) == 1:
        columns = list(zip(*rows, strict=True))
        told = [next((part for part in column if _tells(part, state)), None) for column in columns]
        parts = (join(column) if part is None else part for part, column in zip(told, columns, strict=True))
        return group(parts) if any(told) else None
    return next((item for item in iterated.items if _tells(item, state)), None)


def _tells(value: Value, state: State) -> bool:
    kept = value.tensorish and bool(value.storages) and value.storages <= state.saved.keys()
    return kept or (value.kind is Kind.PARAMETER and bool(value.name))
