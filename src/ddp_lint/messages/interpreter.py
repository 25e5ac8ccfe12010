"""What one rank of a small job sends and receives, by carrying out the program with numbers in place of names.

Only what bears on messages is followed: numbers, lists, flags, objects of the project. Everything else is unknown, and
where an unknown decides whether a rank sends or receives, the program is given up. Loops of unknown length are gone
round twice, if the ranks agree on what their length is computed from.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from typing import Any, Final

from ddp_lint.messages import operators
from ddp_lint.messages.calls import Calls
from ddp_lint.messages.values import Class, Exits, Function, GiveUp, Impossible, Object, Scope, Steps, Unknown
from ddp_lint.source.syntax import defaults, walk

#: Statements that one rank carries out.
_MOST: Final = 20_000
#: Rounds of a loop whose length only the run knows.
_ROUNDS: Final = 2
#: Methods that change a list or a dictionary.
_CHANGING: Final = frozenset({"append", "extend", "pop", "insert", "clear", "update", "remove"})
_LEAVES = (ast.Return, ast.Break, ast.Continue, ast.Raise)
#: How a block is left: by its end, or by one of these.
_END, _BREAK, _CONTINUE, _RETURN = "", "break", "continue", "return"


class Interpreter(Calls):
    """Carries out statements; `Calls` evaluates what they hold."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._statements_left = Steps(_MOST)
        self._statements: dict[type[ast.AST], Callable[[Any, Scope], str]] = {
            ast.Expr: self._expression, ast.Assign: self._assign, ast.AugAssign: self._augment,
            ast.AnnAssign: self._annotated, ast.If: self._if, ast.For: self._for, ast.While: self._while,
            ast.With: self._with, ast.Try: self._try, ast.Return: self._return, ast.Raise: self._raise,
            ast.Assert: self._assert, ast.FunctionDef: self._define, ast.ClassDef: self._define_class,
        }  # fmt: skip

    def block(self, body: list[ast.stmt], scope: Scope) -> str:
        for statement in body:
            self._statements_left.take()
            if isinstance(statement, ast.Break):
                return _BREAK
            if isinstance(statement, ast.Continue):
                return _CONTINUE
            # A function of the project's trees is of a class of its own.
            carry_out = next(filter(None, map(self._statements.get, type(statement).__mro__)), None)
            if carry_out is None:
                self._passes_by(statement, scope)
                continue
            how = carry_out(statement, scope)
            if how:
                return how
        return _END

    def body_of(self, function: Function, scope: Scope) -> Any:
        """What a function returns."""
        if isinstance(function.node, ast.Lambda):
            return self.evaluate(function.node.body, scope)
        self._returned.append(None)
        self.block(function.node.body, scope)
        return self._returned.pop()

    def _passes_by(self, statement: ast.stmt, scope: Scope) -> None:
        """A statement that is not followed: it must neither communicate nor leave names as they were."""
        if self.may_send(statement, scope):
            raise GiveUp
        if isinstance(statement, ast.Delete):
            return
        self._forget([statement], scope, statement, own=False)

    # ---- assignments

    def _expression(self, node: ast.Expr, scope: Scope) -> str:
        self.evaluate(node.value, scope)
        return _END

    def _assign(self, node: ast.Assign, scope: Scope) -> str:
        value = self.evaluate(node.value, scope)
        for target in node.targets:
            self.bind(target, value, scope)
        return _END

    def _annotated(self, node: ast.AnnAssign, scope: Scope) -> str:
        if node.value is not None:
            self.bind(node.target, self.evaluate(node.value, scope), scope)
        return _END

    def _augment(self, node: ast.AugAssign, scope: Scope) -> str:
        old, value = self.evaluate(node.target, scope), self.evaluate(node.value, scope)
        if isinstance(old, list) and isinstance(value, list) and isinstance(node.op, ast.Add):
            operators.bounded(old, value)
            old.extend(value)
        else:
            self.bind(node.target, operators.apply(type(node.op), old, value), scope)
        return _END

    def bind(self, target: ast.expr, value: Any, scope: Scope) -> None:
        if isinstance(target, ast.Name):
            self.home(target.id, scope).names[target.id] = value
        elif isinstance(target, (ast.Tuple, ast.List)):
            values = value if isinstance(value, (list, tuple)) and len(value) == len(target.elts) else None
            starred = any(isinstance(each, ast.Starred) for each in target.elts)
            for index, each in enumerate(target.elts):
                part = values[index] if values is not None and not starred else operators.combined(index, value)
                self.bind(each.value if isinstance(each, ast.Starred) else each, part, scope)
        elif isinstance(target, ast.Attribute):
            of = self.evaluate(target.value, scope)
            if isinstance(of, Object):
                of.attributes[target.attr] = value
        elif isinstance(target, ast.Subscript):
            self._bind_item(self.evaluate(target.value, scope), self.evaluate(target.slice, scope), value)

    @staticmethod
    def _bind_item(of: Any, index: Any, value: Any) -> None:
        in_list = isinstance(of, list) and isinstance(index, int) and -len(of) <= index < len(of)
        if in_list or (isinstance(of, dict) and isinstance(index, (int, str))):
            of[index] = value
        elif isinstance(of, (list, dict)):
            raise GiveUp

    def _forget(self, body: list[ast.stmt], scope: Scope, at: ast.stmt, *, own: bool) -> None:
        """The names that some statements may have set hold what only the run knows; lists that they may have changed
        are not followed."""

        def unknown(node: ast.expr) -> Unknown:
            return Unknown(("set", at.lineno, ast.unparse(node)), own)

        for node in (part for statement in body for part in walk(statement)):
            self.steps.take()
            if isinstance(node, (ast.Name, ast.Attribute)) and isinstance(node.ctx, ast.Store):
                self._set_if_held(node, unknown(node), scope)
            elif isinstance(node, (ast.Attribute, ast.Subscript)):
                changes = isinstance(node.ctx, ast.Store) or getattr(node, "attr", "") in _CHANGING
                if changes and isinstance(self.found(node.value, scope), (list, dict)):
                    self._set_if_held(node.value, unknown(node), scope)

    def _set_if_held(self, target: ast.expr, value: Any, scope: Scope) -> None:
        if isinstance(target, ast.Name):
            self.home(target.id, scope).names[target.id] = value
        elif isinstance(target, ast.Attribute) and isinstance(of := self.found(target.value, scope), Object):
            of.attributes[target.attr] = value

    # ---- tests and loops

    def _if(self, node: ast.If, scope: Scope) -> str:
        test = self.evaluate(node.test, scope)
        holds = operators.truth(test)
        if holds is not None:
            return self.block(node.body if holds else node.orelse, scope)
        sending = [any(self.may_send(each, scope) for each in arm) for arm in (node.body, node.orelse)]
        if any(sending):
            if all(sending) or not (isinstance(test, Unknown) and test.counted):
                raise GiveUp
            self.ask(test)  # every so many rounds, on all ranks
            return self.block(node.body if sending[0] else node.orelse, scope)
        own = operators.is_own([test])
        leaves = [any(map(_is_way_out, _own_statements(arm))) for arm in (node.body, node.orelse)]
        refuses = [bool(arm) and isinstance(arm[-1], ast.Raise) for arm in (node.body, node.orelse)]
        if refuses[0] is not refuses[1]:  # an error ends the job on every rank
            return self.block(node.body if refuses[1] else node.orelse, scope)
        if any(leaves):
            if self.matters(scope):
                self.ask(test)
            if all(leaves):
                raise GiveUp
            skipped, taken = (node.body, node.orelse) if leaves[0] else (node.orelse, node.body)
            if not _is_way_out(skipped[-1]):
                self._forget(skipped, scope, node, own=own)
            return self.block(taken, scope)
        self._forget([*node.body, *node.orelse], scope, node, own=own)
        return _END

    def _for(self, node: ast.For, scope: Scope) -> str:
        iterable = self.evaluate(node.iter, scope)
        rounds = operators.elements(iterable)
        if rounds is None:
            if not any(self.may_send(each, scope) for each in node.body):
                if any(isinstance(each, ast.Return) for each in _own_statements(node.body)) and self.matters(scope):
                    self.ask(iterable)
                self._forget([*node.body, *node.orelse], scope, node, own=operators.is_own([iterable]))
                self.bind(node.target, operators.combined("last", iterable), scope)
                return _END
            self.ask(iterable)
            rounds = [operators.element(iterable, number) for number in range(_ROUNDS)]
        for element in rounds:
            self.bind(node.target, element, scope)
            how = self.block(node.body, scope)
            if how == _RETURN:
                return how
            if how == _BREAK:
                return _END
        return self.block(node.orelse, scope)

    def _while(self, node: ast.While, scope: Scope) -> str:
        while True:
            test = self.evaluate(node.test, scope)
            holds = operators.truth(test)
            if holds is None:
                if any(self.may_send(each, scope) for each in node.body):
                    raise GiveUp
                self._forget([*node.body, *node.orelse], scope, node, own=operators.is_own([test]))
                return _END
            if not holds:
                return self.block(node.orelse, scope)
            how = self.block(node.body, scope)
            if how == _RETURN:
                return how
            if how == _BREAK:
                return _END
            self._statements_left.take()

    def _with(self, node: ast.With, scope: Scope) -> str:
        for item in node.items:
            value = self.evaluate(item.context_expr, scope)
            if item.optional_vars is not None:
                self.bind(item.optional_vars, value, scope)
        return self.block(node.body, scope)

    def _try(self, node: ast.Try, scope: Scope) -> str:
        handlers = [statement for handler in node.handlers for statement in handler.body]
        if any(self.may_send(each, scope) for each in (*handlers, *node.finalbody)):
            raise GiveUp
        how = self.block([*node.body, *node.orelse], scope)
        after = self.block(node.finalbody, scope)
        return after or how

    # ---- ways out

    def _return(self, node: ast.Return, scope: Scope) -> str:
        value = self.evaluate(node.value, scope) if node.value is not None else None
        if self._returned:
            self._returned[-1] = value
        return _RETURN

    def _raise(self, node: ast.Raise, scope: Scope) -> str:
        if node.exc is not None and "SystemExit" in ast.unparse(node.exc):
            raise Exits
        raise Impossible

    def _assert(self, node: ast.Assert, scope: Scope) -> str:
        if operators.truth(self.evaluate(node.test, scope)) is False:
            raise Impossible
        return _END

    def _define(self, node: ast.FunctionDef, scope: Scope) -> str:
        given = {each.arg: self.evaluate(value, scope) for each, value in defaults(node.args) if value is not None}
        self.home(node.name, scope).names[node.name] = Function(node, scope.facts, around=scope, given=given)
        return _END

    def _define_class(self, node: ast.ClassDef, scope: Scope) -> str:
        self.home(node.name, scope).names[node.name] = Class(node, scope.facts)
        return _END


def _is_way_out(node: ast.stmt) -> bool:
    ends = isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
    return isinstance(node, _LEAVES) or (ends and ast.unparse(node).startswith(("sys.exit", "exit(", "os._exit")))


def _own_statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements of a block and of those within, without those of functions that it defines."""
    for statement in body:
        yield statement
        if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            continue
        for field in ("body", "orelse", "finalbody"):
            yield from _own_statements(getattr(statement, field, []))
