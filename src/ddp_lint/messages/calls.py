"""Expressions and calls on one rank."""

from __future__ import annotations

import ast
import builtins
import dataclasses
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any, Final

from ddp_lint.divergence.resolve import known
from ddp_lint.knowledge import canonical
from ddp_lint.messages import operators
from ddp_lint.messages.job import SIZES_BEHIND, Place
from ddp_lint.messages.values import (
    Bound,
    Class,
    Exits,
    External,
    Function,
    GiveUp,
    Impossible,
    Message,
    Object,
    Program,
    Scope,
    Steps,
    Together,
    Unknown,
    Wait,
)
from ddp_lint.project.facts import ModuleFacts
from ddp_lint.project.parts import children, kept_by_node
from ddp_lint.source.imports import dotted_ast, last_part
from ddp_lint.source.syntax import FunctionNode, calls_below, defaults, positional, walk, yields

if TYPE_CHECKING:
    from ddp_lint.messages.senders import Senders

#: Calls within each other that are followed.
_DEEPEST: Final = 12
#: Collectives in which a rank waits for all others.
_SYNCHRONOUS: Final = frozenset({"barrier", "all_reduce", "all_gather", "all_gather_into_tensor", "all_gather_object"})
#: They start processes of their own, which `find` runs as such.
STARTING: Final = frozenset(
    f"{package}multiprocessing.{name}" for package in ("", "torch.") for name in ("Process", "spawn", "start_processes")
)
#: Methods of lists and dictionaries that are carried out.
_FOLLOWED: Final = frozenset(
    {"append", "extend", "pop", "insert", "items", "values", "keys", "get", "copy", "update", "clear", "index"}
)
_EXITING: Final = frozenset({"sys.exit", "os._exit", "builtins.exit", "builtins.quit"})
_SELF_GROUP: Final = ("torch.distributed.GroupMember.WORLD", "torch.distributed.group.WORLD")


class Calls:
    """Evaluates the expressions of one rank, and records what it sends and receives."""

    block: Callable[[list[ast.stmt], Scope], str]
    bind: Callable[[ast.expr, Any, Scope], None]
    body_of: Callable[[Function, Scope], Any]

    def __init__(self, place: Place, senders: Senders, steps: Steps) -> None:
        self.place = place
        self.program = Program()
        self.steps = steps
        self._senders = senders
        self._sending: dict[ast.AST, bool] = {}
        self._modules: dict[str, Scope] = {}
        self._returned: list[Any] = []
        self._looking_up: set[tuple[str, str]] = set()
        self._depth = 0
        self._way: list[tuple[ModuleFacts, ast.Call]] = []
        self._expressions: dict[type[ast.AST], Callable[[Any, Scope], Any]] = {
            ast.Constant: lambda node, scope: node.value, ast.Name: self._name, ast.Attribute: self._attribute,
            ast.Call: self._call, ast.BinOp: self._binary, ast.UnaryOp: self._unary, ast.Compare: self._compare,
            ast.BoolOp: self._boolean, ast.IfExp: self._either, ast.Subscript: self._item, ast.List: self._list,
            ast.Tuple: lambda node, scope: tuple(self._list(node, scope)), ast.ListComp: self._comprehension,
            ast.GeneratorExp: self._comprehension, ast.Dict: self._dict, ast.NamedExpr: self._named,
            ast.JoinedStr: self._text, ast.Lambda: lambda node, scope: Function(node, scope.facts, around=scope),
            ast.Starred: lambda node, scope: self.evaluate(node.value, scope),
        }  # fmt: skip

    # ---- what decides

    def ask(self, value: Any) -> None:
        """What follows depends on an unknown: all ranks have to have the same. Raises GiveUp where they have not."""
        if operators.is_own([value]):
            raise GiveUp
        key: Hashable = operators.key_of(value)
        self.program.asked[key] = self.program.asked.get(key, 0) + 1

    def may_send(self, node: ast.AST, scope: Scope) -> bool:
        """May a statement send or receive?"""
        if node not in self._sending:
            self._sending[node] = any(self._senders.may_send(scope.facts, call) for call in calls_below(node))
        return self._sending[node]

    def matters(self, scope: Scope) -> bool:
        """Is it in code that sends or receives, or outside of functions?"""
        return scope.function is None or getattr(scope.function, "name", "") in self._senders.names

    # ---- names

    def module(self, facts: ModuleFacts) -> Scope:
        return self._modules.setdefault(facts.name, Scope(facts))

    def home(self, name: str, scope: Scope) -> Scope:
        """Where a name is assigned."""
        return self.module(scope.facts) if name in scope.globals else scope

    def evaluate(self, node: ast.expr, scope: Scope) -> Any:
        self.steps.take()
        evaluate = self._expressions.get(type(node))
        if evaluate is not None:
            return evaluate(node, scope)
        if self.may_send(node, scope):
            raise GiveUp
        return Unknown((scope.facts.name, "expression", ast.unparse(node)))

    def found(self, node: ast.expr, scope: Scope) -> Any:
        """What a name or an attribute of an object holds so far; None for anything else. Calls nothing."""
        if isinstance(node, ast.Name):
            holder = _holder(node.id, scope) or self.module(scope.facts)
            return holder.names.get(node.id)
        of = self.found(node.value, scope) if isinstance(node, ast.Attribute) else None
        return of.attributes.get(node.attr) if isinstance(node, ast.Attribute) and isinstance(of, Object) else None

    def _name(self, node: ast.Name, scope: Scope) -> Any:
        holder = _holder(node.id, scope)
        return holder.names[node.id] if holder is not None else self._global(node.id, scope.facts)

    def _global(self, name: str, facts: ModuleFacts) -> Any:
        scope = self.module(facts)
        if name in scope.names:
            return scope.names[name]
        definition = facts.definitions.get(name)
        if definition is not None:
            made = Class(definition, facts) if isinstance(definition, ast.ClassDef) else Function(definition, facts)
            return scope.names.setdefault(name, made)
        if (target := facts.imports.resolve(name)) is not None:
            return scope.names.setdefault(name, self._imported(target))
        if (
            name in facts.values
            and (facts.name, name) not in self._looking_up
            and not _is_set_in_functions(name, facts)
        ):
            self._looking_up.add((facts.name, name))
            value = self.evaluate(facts.values[name], scope) if not self.may_send(facts.values[name], scope) else None
            self._looking_up.discard((facts.name, name))
            return scope.names.setdefault(name, value)
        if (numbered := self.place.named("name", name)) is not None:
            return numbered
        if hasattr(builtins, name) or name in ("exit", "quit"):
            return External(f"builtins.{name}")
        return Unknown((facts.name, "name", name), own=_is_set_in_functions(name, facts))

    def _imported(self, target: str) -> Any:
        found = self._senders.project.meanings.definition(target)
        if found is None:
            return External(canonical(self._senders.project.meanings.canonical(target)))
        facts, node = found
        return Class(node, facts) if isinstance(node, ast.ClassDef) else Function(node, facts)

    def _attribute(self, node: ast.Attribute, scope: Scope) -> Any:
        of = self.evaluate(node.value, scope)
        if isinstance(of, External):
            return self._imported(f"{of.name}.{node.attr}")
        if isinstance(of, (Object, Class)):
            return self._of_object(of, node)
        if isinstance(of, (list, dict, str, Message, tuple)):
            return Bound(of, node.attr)
        if isinstance(of, Unknown) and (numbered := self.place.named("attribute", node.attr)) is not None:
            return numbered
        return operators.combined(("attribute", node.attr), of)

    def _of_object(self, of: Object | Class, node: ast.Attribute) -> Any:
        if isinstance(of, Object) and node.attr in of.attributes:
            return of.attributes[node.attr]
        class_ = of.of if isinstance(of, Object) else of.node
        found = self.member(class_, of.facts, node.attr)
        if isinstance(found, FunctionNode):
            static = any(last_part(each) == "staticmethod" for each in found.decorator_list)
            method = Function(found, of.facts, of if isinstance(of, Object) and not static else None)
            is_property = any(last_part(each) == "property" for each in found.decorator_list)
            return self.invoke(method, [], {}) if is_property else method
        if isinstance(found, ast.expr):
            return self.evaluate(found, self.module(of.facts))
        numbered = self.place.named("attribute", node.attr)
        return numbered if numbered is not None else Unknown(("attribute", class_.name, node.attr))

    def member(self, class_: ast.ClassDef, facts: ModuleFacts, name: str, depth: int = 0) -> ast.AST | None:
        """A method, or what a class assigns to a name in its body; that of a base in the same file, too."""
        for statement in class_.body:
            if isinstance(statement, FunctionNode) and statement.name == name:
                return statement
            targets = statement.targets if isinstance(statement, ast.Assign) else []
            if isinstance(statement, ast.Assign) and name in [last_part(target) for target in targets]:
                return statement.value
        for base in class_.bases if depth < _DEEPEST else ():
            above = facts.definitions.get(dotted_ast(base))
            found = self.member(above, facts, name, depth + 1) if isinstance(above, ast.ClassDef) else None
            if found is not None:
                return found
        return None

    # ---- expressions

    def _binary(self, node: ast.BinOp, scope: Scope) -> Any:
        return operators.apply(type(node.op), self.evaluate(node.left, scope), self.evaluate(node.right, scope))

    def _unary(self, node: ast.UnaryOp, scope: Scope) -> Any:
        value = self.evaluate(node.operand, scope)
        holds = operators.truth(value)
        if isinstance(node.op, ast.Not) and holds is not None:
            return not holds
        return operators.apply(type(node.op), value)

    def _compare(self, node: ast.Compare, scope: Scope) -> Any:
        left, result = self.evaluate(node.left, scope), True
        for operation, right in zip(node.ops, node.comparators, strict=True):
            value = self.evaluate(right, scope)
            result = operators.apply(type(operation), left, value)
            if result is False or isinstance(result, Unknown):
                return result
            left = value
        return result

    def _boolean(self, node: ast.BoolOp, scope: Scope) -> Any:
        decisive, values = isinstance(node.op, ast.Or), list[Any]()
        for part in node.values:
            value = self.evaluate(part, scope)
            holds = operators.truth(value)
            if holds is decisive:
                return value if not any(isinstance(each, Unknown) for each in values) else decisive
            values.append(value)
        unknown = [value for value in values if isinstance(value, Unknown)]
        if len(unknown) < 2:
            return unknown[0] if unknown else values[-1]
        result = operators.combined(type(node.op).__name__, *unknown)
        return dataclasses.replace(result, counted=all(value.counted for value in unknown))

    def _either(self, node: ast.IfExp, scope: Scope) -> Any:
        test = self.evaluate(node.test, scope)
        holds = operators.truth(test)
        if holds is None:
            if self.may_send(node.body, scope) or self.may_send(node.orelse, scope):
                raise GiveUp
            return operators.combined("either", test)
        return self.evaluate(node.body if holds else node.orelse, scope)

    def _item(self, node: ast.Subscript, scope: Scope) -> Any:
        of = self.evaluate(node.value, scope)
        if isinstance(of, External) and of.name == "os.environ":
            return self._environment([self.evaluate(node.slice, scope)])
        if isinstance(node.slice, ast.Slice):
            bounds = [
                self.evaluate(b, scope) if b else None for b in (node.slice.lower, node.slice.upper, node.slice.step)
            ]
            plain = all(bound is None or isinstance(bound, int) for bound in bounds)
            return (
                of[slice(*bounds)]
                if isinstance(of, (list, tuple, range, str)) and plain
                else operators.combined("slice", of, bounds)
            )
        index = self.evaluate(node.slice, scope)
        try:
            if isinstance(of, (list, tuple, range, dict)) and isinstance(index, (int, str)):
                return of[index]  # type: ignore[index]
        except (LookupError, TypeError):
            raise GiveUp from None
        return operators.combined("item", of, index)

    def _list(self, node: ast.List | ast.Tuple, scope: Scope) -> list[Any]:
        values: list[Any] = []
        for each in node.elts:
            value = self.evaluate(each, scope)
            if isinstance(each, ast.Starred):
                held = operators.elements(value)
                values += held if held is not None else [operators.combined("rest", value)]
            else:
                values.append(value)
        return values

    def _dict(self, node: ast.Dict, scope: Scope) -> Any:
        values = [self.evaluate(value, scope) for value in node.values]
        keys = [self.evaluate(key, scope) if key is not None else None for key in node.keys]
        if all(isinstance(key, (int, str)) for key in keys):
            return dict(zip(keys, values, strict=True))
        return operators.combined("dict", keys, values)

    def _named(self, node: ast.NamedExpr, scope: Scope) -> Any:
        value = self.evaluate(node.value, scope)
        self.bind(node.target, value, scope)
        return value

    def _text(self, node: ast.JoinedStr, scope: Scope) -> Any:
        parts = [self.evaluate(part.value, scope) for part in node.values if isinstance(part, ast.FormattedValue)]
        return operators.combined("text", *parts)

    def _comprehension(self, node: ast.ListComp | ast.GeneratorExp, scope: Scope) -> Any:
        inner, found = Scope(scope.facts, scope.function, around=scope, globals=scope.globals), list[Any]()
        generator, *more = node.generators
        iterable = self.evaluate(generator.iter, scope)
        rounds = operators.elements(iterable)
        if rounds is None or more:
            if self.may_send(node, scope):
                raise GiveUp
            return operators.combined(("elements", ast.unparse(node)), iterable)
        for element in rounds:
            self.bind(generator.target, element, inner)
            tests = [operators.truth(self.evaluate(test, inner)) for test in generator.ifs]
            if None in tests:
                if self.may_send(node, scope):
                    raise GiveUp
                return operators.combined(("elements", ast.unparse(node)), iterable)
            if all(tests):
                found.append(self.evaluate(node.elt, inner))
        return found

    # ---- calls

    def _call(self, node: ast.Call, scope: Scope) -> Any:
        function = self.evaluate(node.func, scope)
        values: list[Any] = []
        for argument in node.args:
            value = self.evaluate(argument, scope)
            held = operators.elements(value) if isinstance(argument, ast.Starred) else [value]
            values += held if held is not None else [operators.combined("rest", value)]
        named = {each.arg or "**": self.evaluate(each.value, scope) for each in node.keywords}
        if isinstance(function, (Function, Class, Object)):
            self._way.append((scope.facts, node))
            try:
                return self._of_project(function, values, named, node)
            finally:
                self._way.pop()
        if isinstance(function, External):
            return self._of_library(function.name, values, named, node, scope)
        if isinstance(function, Bound):
            return self._of_value(function, values, node, scope)
        return self._unfollowed(last_part(node.func), ("call", ast.unparse(node.func)), function, values, named)

    def _of_project(
        self, function: Function | Class | Object, values: list[Any], named: dict[str, Any], node: ast.Call
    ) -> Any:
        """A call of a function or a class of the project, or of an object of one."""
        if isinstance(function, Function):
            return self.invoke(function, values, named)
        if isinstance(function, Class):
            return self._made(function, values, named)
        for name in ("__call__", "forward"):
            method = self.member(function.of, function.facts, name)
            if isinstance(method, ast.FunctionDef):
                return self.invoke(Function(method, function.facts, function), values, named)
        return self._unfollowed(last_part(node.func), ("call", ast.unparse(node.func)), function, values, named)

    def _unfollowed(self, name: str, key: Hashable, function: Any, values: list[Any], named: dict[str, Any]) -> Any:
        """A call of what is not known: it must not send or receive."""
        if name in self._senders.names or any(map(self._is_sender, (*values, *named.values()))):
            raise GiveUp
        return operators.combined((key, tuple(named)), function, values, list(named.values()))

    def _is_sender(self, value: Any) -> bool:
        """A function that sends or receives, which nobody knows when it is called, or a list of such."""
        functions = (part for part in operators.bounded(value) if isinstance(part, Function))
        return any(isinstance(each.node, ast.Lambda) or each.node.name in self._senders.names for each in functions)

    def invoke(self, function: Function, values: list[Any], named: dict[str, Any]) -> Any:
        """Run a function of the project."""
        node = function.node
        name = getattr(node, "name", "")
        followed = not isinstance(node, ast.AsyncFunctionDef) and self._depth < _DEEPEST and not yields(node)
        if name in self._senders.names and any(
            not self._is_plain(function.facts, each) for each in getattr(node, "decorator_list", ())
        ):
            raise GiveUp
        if not followed:
            return self._unfollowed(name, ("function", name), None, values, named)
        self.program.entered.add(node)
        scope = Scope(function.facts, node, around=function.around, globals=_globals_of(node))
        scope.names.update(self._given(function, values, named))
        self._depth += 1
        try:
            return self.body_of(function, scope)
        finally:
            self._depth -= 1

    def _is_plain(self, facts: ModuleFacts, decorator: ast.expr) -> bool:
        """Does a decorator run the function on all ranks? One of the project, or a gate, may not."""
        node = decorator.func if isinstance(decorator, ast.Call) else decorator
        if last_part(node) in ("staticmethod", "classmethod", "property"):
            return True
        name = self._senders.project.meanings.of(facts, node)
        return bool(name) and known().gate(name) is None and self._senders.project.meanings.definition(name) is None

    def _given(self, function: Function, values: list[Any], named: dict[str, Any]) -> dict[str, Any]:
        """The parameters of a function that is called."""
        signature = function.node.args
        values = [function.receiver, *values] if function.receiver is not None else values
        places = [parameter.arg for parameter in positional(function.node)]
        by_place = dict(zip(places, values, strict=False))
        found: dict[str, Any] = {}
        for parameter, default in defaults(signature):
            name = parameter.arg
            if name in by_place:
                found[name] = by_place[name]
            elif name in named:
                found[name] = named[name]
            elif name in function.given and "**" not in named:
                found[name] = function.given[name]
            elif "**" in named or default is None:
                found[name] = Unknown(("parameter", getattr(function.node, "name", ""), name))
            else:
                found[name] = self.evaluate(default, self.module(function.facts))
        if signature.vararg is not None:
            found[signature.vararg.arg] = tuple(values[len(places) :])
        if signature.kwarg is not None:
            found[signature.kwarg.arg] = {k: v for k, v in named.items() if k not in found and k != "**"}
        return found

    def start(self, function: Function, *, spawned: bool = False) -> None:
        """Run a function of which no caller is known, or that processes are started with; `spawned`: by a call that
        gives each its number first."""
        named: dict[str, Any] = {}
        before = ""
        for parameter, _ in defaults(function.node.args):
            numbered = self.place.named("name", parameter.arg) if named or not spawned else self.place.rank
            if numbered is None and before and SIZES_BEHIND.fullmatch(parameter.arg):
                numbered = self.place.size
            ranked = known().named_rank("name", parameter.arg)
            is_rank = (ranked is not None and ranked.value == "rank") or (spawned and not named)
            before = parameter.arg if is_rank else ""
            named[parameter.arg] = (
                numbered
                if numbered is not None
                else Unknown(("parameter", getattr(function.node, "name", ""), parameter.arg))
            )
        if function.receiver is not None and (places := positional(function.node)):
            named.pop(places[0].arg, None)
        self.invoke(function, [], named)

    def made_unseen(self, class_: ast.ClassDef, facts: ModuleFacts) -> Object:
        """An object whose constructor gets what nobody knows."""
        made = Object(class_, facts)
        constructor = self.member(class_, facts, "__init__")
        if isinstance(constructor, ast.FunctionDef):
            self.start(Function(constructor, facts, made))
        return made

    def _made(self, class_: Class, values: list[Any], named: dict[str, Any]) -> Object:
        made = Object(class_.node, class_.facts)
        constructor = self.member(class_.node, class_.facts, "__init__")
        if isinstance(constructor, ast.FunctionDef):
            self.invoke(Function(constructor, class_.facts, made), values, named)
        return made

    def _of_value(self, bound: Bound, values: list[Any], node: ast.Call, scope: Scope) -> Any:
        """A method of a list, a dictionary, a text or a message."""
        of, name = bound.of, bound.name
        if isinstance(of, Message):
            if name == "wait":
                self.program.operations.append(Wait(of, node, scope.facts))
            return operators.combined(("work", name))
        if not isinstance(of, (list, dict)):
            return operators.combined(("method", name), of, values)
        if name not in _FOLLOWED or (name in ("pop", "extend") and any(map(operators.holds_unknown, values))):
            raise GiveUp
        operators.bounded(of, *values)
        operators.short(*values)
        try:
            result = getattr(of, name)(*values)
        except Exception:  # what it raises the program raises, too
            raise GiveUp from None
        return list(result) if name in ("items", "values", "keys") else result

    # ---- what the libraries do

    def _environment(self, values: list[Any]) -> Any:
        name = values[0] if values else None
        found = self.place.environment(name) if isinstance(name, str) else None
        return found if found is not None else operators.combined("environment", *values)

    def _of_library(self, name: str, values: list[Any], named: dict[str, Any], node: ast.Call, scope: Scope) -> Any:
        entry = known().collectives.get(name)
        if name in ("os.environ.get", "os.getenv"):
            return self._environment(values)
        if name in _EXITING:
            raise Exits
        if name in STARTING:
            return Unknown(("process", name))
        if name.startswith("builtins."):
            last = name.rpartition(".")[2]
            found = operators.builtin(last, values) if not named else operators.combined(last, *values)
            return found if not any(map(self._is_sender, values)) else self._unfollowed(last, last, None, values, named)
        if name == "torch.distributed.init_process_group":
            return self._join(values, named)
        given = dict(zip(entry.takes, values, strict=False)) | named if entry is not None else named
        if entry is not None and entry.kind == "p2p":
            return self._message(entry.op, entry.peer, given, node, scope)
        group = given.get("group", values[0] if name.endswith(("get_rank", "get_world_size")) and values else None)
        everyone = group is None or (isinstance(group, External) and group.name in _SELF_GROUP)
        if entry is not None and entry.op in _SYNCHRONOUS and everyone and not given.get("async_op"):
            self.program.operations.append(Together(node, scope.facts, ast.unparse(node.func)))
            return operators.combined(("call", name))
        numbered = self.place.called(name)
        if numbered is not None:
            return numbered if everyone else Unknown(("of group", name, operators.key_of(group)), own=True)
        return self._unfollowed(name.rpartition(".")[2] if "." not in name else "", ("call", name), None, values, named)

    def _join(self, values: list[Any], named: dict[str, Any]) -> None:
        given = {
            **dict(zip(("backend", "init_method", "timeout", "world_size", "rank"), values, strict=False)),
            **named,
        }
        size, rank = given.get("world_size"), given.get("rank")
        if isinstance(rank, int) and rank not in (-1, self.place.rank):
            raise GiveUp  # the program of one rank: the others run another one
        if isinstance(size, int) and size not in (-1, self.place.size):
            raise Impossible
        self.program.joined = True

    def _message(self, op: str, peer: str, given: dict[str, Any], node: ast.Call, scope: Scope) -> Any:
        if op == "batch_isend_irecv":
            messages = given.get("p2p_op_list")
            if not isinstance(messages, list) or not all(isinstance(each, Message) for each in messages):
                raise GiveUp
            self.program.operations += messages
            return list(messages)
        how = given.get("op") if op == "P2POp" else None
        op = how.name.rpartition(".")[2] if isinstance(how, External) else op
        other = given.get(peer)
        by_group = any(given.get(f"group_{each}") is not None for each in ("dst", "src", "peer"))
        wrong = isinstance(other, bool) or not (isinstance(other, int) or (other is None and peer == "src"))
        if op == "P2POp" or by_group or wrong or "**" in given:
            raise GiveUp
        if isinstance(other, int) and not 0 <= other < self.place.size:
            raise Impossible
        blocks = op not in ("isend", "irecv")
        called = node.args[0] if peer == "peer" and node.args else node.func
        message = Message("send" in op, other, node, scope.facts, ast.unparse(called), blocks, tuple(self._way))
        if peer != "peer":
            self.program.operations.append(message)
        return message if not blocks else operators.combined(("received", op))


def _holder(name: str, scope: Scope) -> Scope | None:
    """The innermost scope around that has a name; None for one of the module that was not needed so far."""
    inner: Scope | None = scope
    while inner is not None and name not in inner.names:
        inner = inner.around
    return inner


def _globals_of(node: FunctionNode | ast.Lambda) -> frozenset[str]:
    return frozenset(name for each in children(node) if isinstance(each, ast.Global) for name in each.names)


def _is_set_in_functions(name: str, facts: ModuleFacts) -> bool:
    """Does a function assign the variable of its module: ``global rank``?"""
    return name in _set_in_functions(facts.tree)


@kept_by_node(256)
def _set_in_functions(tree: ast.Module) -> frozenset[str]:
    return frozenset(name for node in walk(tree) if isinstance(node, ast.Global) for name in node.names)
