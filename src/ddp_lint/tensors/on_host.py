"""Whether an expression lies on the host: a number, a tensor there, or what holds nothing else.

Read from `ast`, through the calls, returns and attributes of all files of the project: a matcher gives indices on the
host, which a loss hands on. An expression is asked for with the steps into it: of ``matcher(x)[0]`` the first one of
what the matcher returns.
"""

from __future__ import annotations

import ast
import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Sequence

import libcst as cst

from ddp_lint.findings import Span
from ddp_lint.knowledge.tensors import is_factory, is_tensor_function, is_tensor_method, names
from ddp_lint.launch.callers import CallSite, call_sites, sites_by_keyword, sites_in_project
from ddp_lint.project import Project
from ddp_lint.project.bound import Bound, Path, Step, bound_in
from ddp_lint.project.facts import ClassFacts, ModuleFacts, statements_of
from ddp_lint.project.parts import kept_by_node
from ddp_lint.source.imports import dotted_ast, last_part
from ddp_lint.source.syntax import (
    FunctionNode,
    blocks_at,
    calls_below,
    defaults,
    first_name,
    function_at,
    is_none,
    parameters,
    walk,
    yields,
)
from ddp_lint.source.tree import parameters_of
from ddp_lint.view import Module

#: Calls, returns and parameters that are gone through, one in the other.
_DEPTH = 5
#: Steps into an expression; more are not followed.
_STEPS = 4
#: Expressions that are looked at for one answer.
_MOST = 400
#: Files that hold a word of a class's name which are looked at.
_FILES = 25
_NUMBERS = frozenset({"len", "int", "float", "str", "bool", "range", "round", "isinstance", "hasattr", "id"})
_HAND_ON = frozenset({"list", "tuple", "sorted", "reversed", "set", "iter"})
_REDUCE = frozenset({"max", "min", "sum", "abs"})
#: What gives the elements of what it gets.
_SAME = frozenset({"zip", "enumerate", "list", "tuple", "reversed"})
#: Fields of a batch that are moved one by one: from so many on, what is not moved is left on purpose.
_MOVED = 2
#: Functions and methods that give the same again, or a copy.
_COPIES = frozenset({"copy.copy", "copy.deepcopy"})
_COPYING = frozenset({"copy", "clone"})
#: Methods by which a tensor comes to the host.
_COMES = frozenset({"cpu", "to"})
#: Methods of a module that run when it is called.
_CALLED = ("forward", "__call__")


@dataclasses.dataclass(frozen=True)
class _Scope:
    """Where an expression is. `call`: the call that the function around answers, if one does, and where that is."""

    facts: ModuleFacts
    function: FunctionNode | None
    call: ast.Call | None = None
    caller: _Scope | None = None


def is_on_host(module: Module, node: cst.BaseExpression) -> bool:
    """Whether an expression of a file lies on the host, by what the project shows of its names."""
    facts, project = module.facts, module.project
    if facts is None or project is None:
        return False
    place = module.span(node)
    around = function_at(facts.tree, place.line)
    found = _expression_at(facts, around, place)
    if found is None or any(last_part(call.func) in _COMES for call in calls_below(found)):
        return False  # the copy to the host is what waits
    scope = _Scope(facts, around)
    key = ("is on host", place.line, place.column, place.end_column)
    answer: bool = project.remember(key, lambda: _Reading(project).lies(found, (), scope, _DEPTH), facts.kept)
    return answer


def host_arguments(module: Module, function: cst.FunctionDef) -> frozenset[str]:
    """The parameters that every call gives something on the host: ``self.assign(boxes.cpu())``."""
    sites = call_sites(module, function)
    taken = [param.name.value for param in parameters_of(function)]
    project = module.project
    if project is None or not sites:
        return frozenset()
    return frozenset(name for name in taken if all(gives_host(project, site, function, name) for site in sites))


def gives_host(project: Project, site: CallSite, function: cst.FunctionDef, name: str) -> bool:
    """Whether a call gives a parameter a number, or a tensor on the host."""
    value = site.given(function, name)
    return value is not None and _Reading(project).lies(value, (), _Scope(site.facts, site.around), _DEPTH)


def _expression_at(facts: ModuleFacts, around: FunctionNode | None, place: Span) -> ast.expr | None:
    """The expression at a place of a file; of those that begin and end there the outermost."""
    like = (n for n in walk(around or facts.tree) if isinstance(n, ast.expr) and n.lineno == place.line)
    return next((n for n in like if facts.source.span_of(n) == place), None)


class _Reading:
    """One answer: what has been looked at for it."""

    def __init__(self, project: Project) -> None:
        self._project = project
        self._left = _MOST
        #: Names that are being looked at: what one is made of itself says nothing new.
        self._open: set[tuple[FunctionNode, str, Path]] = set()

    def lies(self, node: ast.expr, path: Path, at: _Scope, depth: int) -> bool:
        """Whether what the steps of `path` lead to in an expression lies on the host."""
        self._left -= 1
        if self._left < 0 or depth < 0 or len(path) > _STEPS:
            return False
        if _is_moved_below(node, at.function):
            return True
        read = getattr(self, f"_{type(node).__name__}", None)
        return read is not None and bool(read(node, path, at, depth))

    def _all(self, nodes: Iterable[ast.expr], path: Path, at: _Scope, depth: int) -> bool:
        return all(self.lies(node, path, at, depth) for node in nodes)

    # ---- displays and operators

    def _Constant(self, node: ast.Constant, path: Path, at: _Scope, depth: int) -> bool:
        return True

    _JoinedStr = _Constant

    def _Tuple(self, node: ast.Tuple | ast.List | ast.Set, path: Path, at: _Scope, depth: int) -> bool:
        step, starred = path[0] if path else None, any(isinstance(each, ast.Starred) for each in node.elts)
        if isinstance(step, int) and not starred and -len(node.elts) <= step < len(node.elts):
            return self.lies(node.elts[step], path[1:], at, depth)
        return all(
            self.lies(each.value, (None, *path[1:]), at, depth)
            if isinstance(each, ast.Starred)
            else self.lies(each, path[1:], at, depth)
            for each in node.elts
        )

    _List = _Set = _Tuple

    def _Dict(self, node: ast.Dict, path: Path, at: _Scope, depth: int) -> bool:
        keys = [key.value if isinstance(key, ast.Constant) else None for key in node.keys]
        return self._keyed(list(zip(keys, node.values, strict=True)), path, at, depth)

    def _keyed(self, pairs: Sequence[tuple[object, ast.expr]], path: Path, at: _Scope, depth: int) -> bool:
        """What is under a key, or may be: under none that is not text by its form, or is spread out here."""
        step = path[0] if path else None
        if isinstance(step, str) and all(isinstance(key, str) for key, _ in pairs):
            # One that has no such key is not what is asked for: another branch has returned that.
            pairs = [pair for pair in pairs if pair[0] == step][-1:]
        return self._all((value for _, value in pairs), path[1:], at, depth)

    def _ListComp(
        self, node: ast.ListComp | ast.GeneratorExp | ast.SetComp, path: Path, at: _Scope, depth: int
    ) -> bool:
        return self.lies(node.elt, path[1:], at, depth)

    _GeneratorExp = _SetComp = _ListComp

    def _DictComp(self, node: ast.DictComp, path: Path, at: _Scope, depth: int) -> bool:
        return self.lies(node.value, path[1:], at, depth)

    def _IfExp(self, node: ast.IfExp, path: Path, at: _Scope, depth: int) -> bool:
        return self._all((node.body, node.orelse), path, at, depth)

    def _BoolOp(self, node: ast.BoolOp, path: Path, at: _Scope, depth: int) -> bool:
        return self._all(node.values, path, at, depth)

    def _BinOp(self, node: ast.BinOp, path: Path, at: _Scope, depth: int) -> bool:
        return self._of_operands((node.left, node.right), path, at, depth)

    def _UnaryOp(self, node: ast.UnaryOp, path: Path, at: _Scope, depth: int) -> bool:
        return isinstance(node.op, ast.Not) or self.lies(node.operand, path, at, depth)

    def _Compare(self, node: ast.Compare, path: Path, at: _Scope, depth: int) -> bool:
        of_objects = all(isinstance(each, (ast.Is, ast.IsNot, ast.In, ast.NotIn)) for each in node.ops)
        return of_objects or self._of_operands((node.left, *node.comparators), (), at, depth)

    def _of_operands(self, nodes: Sequence[ast.expr], path: Path, at: _Scope, depth: int) -> bool:
        """A tensor that was copied to the host meets others there alone: ``labels.cpu() == self.ignored``."""
        return any(map(_is_copied_to_host, nodes)) or self._all(nodes, path, at, depth)

    def _NamedExpr(self, node: ast.NamedExpr, path: Path, at: _Scope, depth: int) -> bool:
        return self.lies(node.value, path, at, depth)

    # ---- names

    def _Name(self, node: ast.Name, path: Path, at: _Scope, depth: int) -> bool:
        if at.function is None:
            value = at.facts.values.get(node.id)
            return value is not None and self.lies(value, path, at, depth - 1)
        bound = _bound_before(at.function, node)
        is_parameter = node.id in {each.arg for each in parameters(at.function)}
        if not bound and not is_parameter:
            return self._Name(node, path, _Scope(at.facts, None), depth)
        key = at.function, node.id, path
        if key in self._open:
            return True
        self._open.add(key)
        try:
            if any(_is_empty(each.value) for each in bound) and _is_filled_by_call(node.id, at.function):
                return False
            if not is_parameter and _is_left_by_moves(node.id, bound, at.function):
                return True
            return self._as_bound(bound, path, at, depth) and (
                not is_parameter or self._is_given_host(at.function, node.id, path, at, depth)
            )
        finally:
            self._open.discard(key)

    def _as_bound(self, bound: Sequence[Bound], path: Path, at: _Scope, depth: int) -> bool:
        if bound and all(_is_empty(each.value) for each in bound):
            return False  # it is filled where that is not seen
        made = [each for each in bound if not each.put_in]
        # What is put into a tensor is copied to where that lies.
        is_tensor = bool(made) and all(_makes_tensor(each, at.facts) for each in made if not _is_constant(each))
        for each in made if is_tensor else bound:
            steps = path[1:] if each.put_in else (*each.steps, *path)
            if each.value is None or not self.lies(each.value, steps, at, depth):
                return False
        return True

    def _is_given_host(self, function: FunctionNode, name: str, path: Path, at: _Scope, depth: int) -> bool:
        """Whether the call that a function answers, or else every call of it, gives a parameter what is on the host."""
        if at.call is not None and at.caller is not None:
            # The object of a method comes before what its call gives.
            site = CallSite(at.facts, at.call, at.caller.function, bound=bool(at.facts.method_at(function.lineno)))
            return self._gives(site, at.caller, function, name, path, depth) is not False
        sites: Sequence[CallSite] = sites_in_project(self._project, at.facts, function) if depth else ()
        if depth and not sites and function.name == "forward":
            sites = sites_by_keyword(self._project, function, name)
        if function.name == "forward":
            sites = [site for site in sites if not self._runs_on_host(site, depth - 1)]
        found = [self._gives(site, _Scope(site.facts, site.around), function, name, path, depth - 1) for site in sites]
        return True in found and False not in found

    def _runs_on_host(self, site: CallSite, depth: int) -> bool:
        """Whether a call gives a module nothing but what is on the host: it is tried out there, ``Net()(torch.randn(2,
        3))``, which says nothing of a training."""
        given = [*site.node.args, *(keyword.value for keyword in site.node.keywords)]
        return self._all(given, (), _Scope(site.facts, site.around), depth)

    def _gives(
        self, site: CallSite, caller: _Scope, function: FunctionNode, name: str, path: Path, depth: int
    ) -> bool | None:
        """Whether a call gives a parameter what is on the host; None where it gives nothing but a constant default."""
        value = site.given(function, name)
        if is_none(value):
            return None
        if value is not None:
            return self.lies(value, path, caller, depth)
        if any(isinstance(each, ast.Starred) for each in site.node.args) or any(
            each.arg is None for each in site.node.keywords
        ):
            return False
        kept = {each.arg: default for each, default in defaults(function.args)}.get(name)
        return None if isinstance(kept, ast.Constant) else False

    # ---- parts

    def _Subscript(self, node: ast.Subscript, path: Path, at: _Scope, depth: int) -> bool:
        if not isinstance(node.value, ast.Name) and _is_filled(node.value, at.function):
            return False
        if isinstance(node.slice, (ast.Slice, ast.Tuple)):
            return self.lies(node.value, path, at, depth)
        return self.lies(node.value, (_step(node.slice), *path), at, depth)

    def _Attribute(self, node: ast.Attribute, path: Path, at: _Scope, depth: int) -> bool:
        if node.attr in names("python_values", "attributes"):
            return True
        if node.attr in names("views", "attributes") | names("selection", "padded_fields"):
            return self.lies(node.value, path, at, depth)
        owner, method = self._method(at)
        if owner is None or method is None or dotted_ast(node) != f"{first_name(method)}.{node.attr}":
            return False
        return self._is_kept_on_host(owner, node.attr, path, depth)

    def _method(self, at: _Scope) -> tuple[ClassFacts | None, FunctionNode | None]:
        found = at.facts.method_at(at.function.lineno) if at.function is not None else None
        if found is None or found[1] is not at.function:
            return None, None
        return self._project.classes.of(at.facts, found[0]), found[1]

    def _is_kept_on_host(self, owner: ClassFacts, attribute: str, path: Path, depth: int) -> bool:
        """Whether all methods of a class set an attribute to what is made on the host: a tensor that is no buffer stays
        where it is when the module moves."""
        set_to = owner.attribute(attribute)
        made = [(value, method) for value, method in set_to if not isinstance(value, ast.Constant)]
        return bool(made) and all(
            isinstance(value, ast.Call)
            and is_factory(owner.module.qualified(value.func))
            and self.lies(value, path, _Scope(owner.module, method), depth)
            for value, method in made
        )

    # ---- calls

    def _Call(self, node: ast.Call, path: Path, at: _Scope, depth: int) -> bool:
        name = dotted_ast(node.func)
        if name in _NUMBERS:
            return True
        if name in _HAND_ON and node.args:
            return self.lies(node.args[0], path, at, depth)
        if name in ("zip", "enumerate", "next", "dict") or name in _REDUCE:
            return self._built_in(name, node, path, at, depth)
        qualified = self._project.meanings.of(at.facts, node.func)
        if qualified.partition(".")[0] in names("python_values", "packages"):
            return True
        if is_factory(qualified):
            return not any(keyword.arg in (None, "device") for keyword in node.keywords)
        if any(keyword.arg == "return_tensors" for keyword in node.keywords):  # a tokenizer of transformers
            return not any(keyword.arg in (None, "device") for keyword in node.keywords)
        if qualified in _COPIES and node.args:
            return self.lies(node.args[0], path, at, depth)
        if is_tensor_function(qualified):
            return self._is_computed_on_host(node, node.args, at, depth)
        if isinstance(node.func, ast.Attribute) and not qualified:
            known = self._by_method(node, node.func, path, at, depth)
            if known is not None:
                return known
        return depth > 0 and self._returns_host(node, path, at, depth - 1)

    def _built_in(self, name: str, node: ast.Call, path: Path, at: _Scope, depth: int) -> bool:
        inner = path[1] if len(path) > 1 else None
        if name == "dict":
            pairs = [(keyword.arg, keyword.value) for keyword in node.keywords]
            return not node.args and self._keyed(pairs, path, at, depth)
        if name == "enumerate" and node.args:
            return inner == 0 or self.lies(node.args[0], (None, *path[2:]), at, depth)
        if name == "next" and node.args:
            return self.lies(node.args[0], (None, *path), at, depth)
        given = node.args
        if name == "zip" and isinstance(inner, int) and inner < len(given):
            given = given[inner : inner + 1]
        steps = (None, *path[2:]) if name == "zip" else (None,) if len(given) == 1 else ()
        return bool(given) and self._all(given, steps, at, depth)

    def _is_computed_on_host(self, node: ast.Call, operands: Sequence[ast.expr], at: _Scope, depth: int) -> bool:
        """Whether an operation gets nothing but what is on the host."""
        named = [keyword.value for keyword in node.keywords if keyword.arg not in ("device", "dtype")]
        moved = any(keyword.arg == "device" and not _is_cpu(keyword.value) for keyword in node.keywords)
        return not moved and bool(operands) and self._all((*operands, *named), (), at, depth)

    def _by_method(self, node: ast.Call, func: ast.Attribute, path: Path, at: _Scope, depth: int) -> bool | None:
        """What a method of a tensor or a container gives; None for any other."""
        method, on = func.attr, func.value
        if method in ("cpu", "keys") or method in names("python_values", "methods"):
            return True
        if method == "to":
            given = [*node.args, *(k.value for k in node.keywords if k.arg in ("device", "other"))]
            if any(map(_is_cpu, given)):
                return True
            return all(_is_dtype(value, at.facts) for value in given) and self.lies(on, path, at, depth)
        if method in names("views", "moving"):
            return False
        if method == "items":
            return (len(path) > 1 and path[1] == 0) or self.lies(on, (None, *path[2:]), at, depth)
        if method in ("get", "pop", "popitem", "popleft"):
            key = _step(node.args[0]) if node.args else None
            return self.lies(on, (key, *path), at, depth) and self._all(node.args[1:], path, at, depth)
        if method == "values" or method in _COPYING:
            return self.lies(on, path, at, depth)
        if not is_tensor_method(method) or dotted_ast(on) == "self":
            return None
        operands = [on, *(each for each in node.args if not _is_dtype(each, at.facts))]
        return self._is_computed_on_host(node, operands, at, depth)

    def _returns_host(self, node: ast.Call, path: Path, at: _Scope, depth: int) -> bool:
        """Whether all that may answer a call returns what is on the host."""
        found = self._answering(node, at)
        return bool(found) and all(self._returns(facts, each, node, path, at, depth) for facts, each in found)

    def _returns(
        self, facts: ModuleFacts, function: FunctionNode, call: ast.Call, path: Path, at: _Scope, depth: int
    ) -> bool:
        returned = [n.value for n in statements_of(function) if isinstance(n, ast.Return) and n.value is not None]
        inside = _Scope(facts, function, call, at)
        return bool(returned) and not yields(function) and self._all(returned, path, inside, depth)

    def _answering(self, node: ast.Call, at: _Scope) -> list[tuple[ModuleFacts, FunctionNode]]:
        """The functions and methods that may answer a call, as far as they are known."""
        facts, function = self._project.meanings.definition(self._project.meanings.of(at.facts, node.func)) or (
            None,
            None,
        )
        if facts is not None and isinstance(function, FunctionNode):
            return [(facts, function)]
        owner, method = self._method(at)
        kind = self._project.types.of(node.func, at.facts, at.function, owner, _DEPTH)
        if kind:
            return self._methods(kind, _CALLED)
        if not isinstance(node.func, ast.Attribute):
            return []
        own = f"{first_name(method)}." if owner is not None and method is not None else ""
        of, called, word = dotted_ast(node.func).rpartition(".")
        if own and owner is not None and of + called == own:
            return self._methods(owner.name, (word,)) or self._named(owner, word, _CALLED)
        kind = self._project.types.of(node.func.value, at.facts, at.function, owner, _DEPTH)
        if kind:
            return self._methods(kind, (node.func.attr,))
        kept = of.removeprefix(own) if own and of.startswith(own) else ""
        return self._named(owner, kept, (word,)) if owner is not None and kept.isidentifier() else []

    def _methods(self, kind: str, words: Sequence[str]) -> list[tuple[ModuleFacts, FunctionNode]]:
        found = (self._project.classes.method(kind, word) for word in words)
        return [(cls.module, function) for cls, function in filter(None, found)][:1]

    def _named(self, owner: ClassFacts, attribute: str, words: Sequence[str]) -> list[tuple[ModuleFacts, FunctionNode]]:
        """What runs where a method is called of what the constructor of a class is given, as the project makes
        it by a name in a configuration: that of all classes that are named like the attribute, ``HungarianMatcher`` for
        ``matcher``."""
        set_to, last = owner.attribute(attribute), attribute.rpartition("_")[2]
        constructor = owner.methods.get("__init__")
        given = {each.arg for each in parameters(constructor)} if constructor is not None else set()
        if not set_to or not all(isinstance(value, ast.Name) and value.id in given for value, _ in set_to):
            return []
        paths = self._project.contents.holding(f"{last.capitalize()}(") if len(last) > 1 else ()
        found: list[tuple[ModuleFacts, FunctionNode]] = []
        for facts in filter(None, map(self._project.modules.facts_of, paths if len(paths) <= _FILES else ())):
            for node in facts.definitions.values():
                if isinstance(node, ast.ClassDef) and node.name.endswith(last.capitalize()):
                    found += self._methods(self._project.classes.of(facts, node).name, words)
        return found


def _is_empty(value: ast.expr | None) -> bool:
    """``[]``, ``{}``, ``dict()``"""
    if isinstance(value, ast.Call):
        return dotted_ast(value.func) in ("list", "dict", "set") and not value.args and not value.keywords
    return (isinstance(value, ast.List) and not value.elts) or (isinstance(value, ast.Dict) and not value.keys)


def _is_filled_by_call(name: str, function: FunctionNode) -> bool:
    """Whether a function hands a name to a call for what that does to it: ``collect(losses)``."""
    calls = (n.value for n in statements_of(function) if isinstance(n, ast.Expr) and isinstance(n.value, ast.Call))
    given = ((*call.args, *(each.value for each in call.keywords)) for call in calls)
    return any(isinstance(each, ast.Name) and each.id == name for values in given for each in values)


def _bound_before(function: FunctionNode, name: ast.Name) -> list[Bound]:
    """What a name may have where it is read: outside of loops nothing that it gets further down."""
    bound = bound_in(function).get(name.id, [])
    if any(isinstance(block, (ast.For, ast.AsyncFor, ast.While)) for block in blocks_at(function, name.lineno)):
        return bound
    return [
        each for each in bound if each.value is None or each.steps[:1] == (None,) or each.value.lineno <= name.lineno
    ]


def _is_left_by_moves(name: str, bound: Sequence[Bound], function: FunctionNode) -> bool:
    """Whether a name is of a batch that a function moves to the GPU by its fields, and is none of those: ``rows =
    batch["rows"]`` beside ``model(ids=batch["ids"].to(device), mask=batch["mask"].to(device), rows=rows)``."""
    batches = {_batch_of(each.value, each.steps) for each in bound}
    if not batches or "" in batches:
        return False
    moved: set[str] = set()
    for call in calls_below(function):
        if isinstance(call.func, ast.Attribute) and call.func.attr in ("to", "cuda"):
            moved.add(ast.unparse(call.func.value))
    fields = {
        other
        for other, values in bound_in(function).items()
        if other != name and any(_batch_of(each.value, each.steps) in batches for each in values)
    }
    named = {each for each in moved if each in fields or any(each.startswith(f"{of}[") for of in batches)}
    return len(named) >= _MOVED and name not in moved and not batches & moved


def _is_moved_below(node: ast.expr, function: FunctionNode | None) -> bool:
    """Whether a function moves a field of what it is given to a GPU further down than where it reads it: ``ids =
    batch["ids"]``, ``count = ids.max().item()``, ``ids = ids.to(device)``."""
    if function is None or not isinstance(node, (ast.Name, ast.Attribute, ast.Subscript)):
        return False
    moves = _moves_in(function)
    if not moves or moves[-1][1].lineno <= node.lineno:
        return False
    wholes = {ast.unparse(whole) for whole in _wholes(node)}
    lines = [call.lineno for moved, call in moves if not wholes.isdisjoint(moved)]
    return bool(lines) and min(lines) > node.lineno and _is_field(node, function)


def _wholes(node: ast.expr) -> Iterator[ast.expr]:
    """A dotted name with its subscripts, and what it is a part of: ``batch.ids[0]``, ``batch.ids``, ``batch``."""
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        yield node
        node = node.value
    yield node


def _is_field(node: ast.expr, function: FunctionNode, above: frozenset[str] = frozenset(), field: bool = False) -> bool:
    """Whether an expression is a field of what a function is given, or an element of one: ``batch["ids"]``,
    ``target[0].ids``. What a helper is given as a whole lies where its callers have it, and it may move that only to
    be sure; what an object has is its own."""
    *parts, node = _wholes(node)
    field = field or any(not _is_element(part) for part in parts)
    if isinstance(node, ast.Call):
        same = dotted_ast(node.func) in _SAME
        handed = node.args if same else [node.func] if _is_lookup(node) else []
        return bool(handed) and all(_is_field(each, function, above, field or not same) for each in handed)
    if not isinstance(node, ast.Name) or node.id == "self":
        return False
    bound = _bound_before(function, node) if node.id not in above else []
    if not bound:
        return field and any(each.arg == node.id for each in parameters(function))
    above |= {node.id}
    return all(each.value is not None and _is_field(each.value, function, above, field) for each in bound)


@kept_by_node(64)
def _moves_in(function: FunctionNode) -> list[tuple[frozenset[str], ast.Call]]:
    """The calls of a function that move something to a device, in their order, with the texts of what is moved and of
    what that is an element of: ``ids[0]`` and ``ids``."""
    found = []
    for call in calls_below(function):
        if isinstance(call.func, ast.Attribute) and _goes_to_device(call, call.func.attr):
            of = itertools.takewhile(_is_element, _wholes(call.func.value))
            texts = (ast.unparse(each.value) for each in of if isinstance(each, ast.Subscript))
            found.append((frozenset((ast.unparse(call.func.value), *texts)), call))
    return sorted(found, key=lambda each: each[1].lineno)


def _is_element(node: ast.expr) -> bool:
    """Whether an expression is an element of a list or of a tensor: not ``batch["ids"]``."""
    return isinstance(node, ast.Subscript) and not isinstance(_step(node.slice), str)


def _goes_to_device(call: ast.Call, method: str) -> bool:
    """``x.cuda()``, ``x.to(y.device)``, ``x.to(device=rank)``"""
    if method == "cuda":
        return True
    given = [*call.args[:1], *(each.value for each in call.keywords if each.arg == "device")]
    return method == "to" and any("device" in ast.unparse(value) and not _is_cpu(value) for value in given)


def _is_lookup(call: ast.Call) -> bool:
    """``batch.get("ids")``, ``batch.items()``"""
    return isinstance(call.func, ast.Attribute) and call.func.attr in ("get", "items", "values", "pop")


def _batch_of(value: ast.expr | None, steps: Path) -> str:
    """The batch that a value is a field of: ``batch["rows"]``, ``batch.get("rows", None)``; '' for any other value."""
    if steps:
        return ""
    if isinstance(value, ast.Subscript) and isinstance(_step(value.slice), str):
        return ast.unparse(value.value)
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr == "get":
        key = _step(value.args[0]) if value.args else None
        return ast.unparse(value.func.value) if isinstance(key, str) else ""
    return ""


def _is_constant(binding: Bound) -> bool:
    return isinstance(binding.value, ast.Constant)


def _makes_tensor(binding: Bound, facts: ModuleFacts) -> bool:
    """Whether a binding is a tensor by its form."""
    value = binding.value
    if binding.steps or not isinstance(value, ast.Call):
        return False
    return is_factory(facts.qualified(value.func)) or last_part(value.func) in names("views", "maybe")


def _step(index: ast.expr) -> Step:
    """The step that an index makes: a constant place or key."""
    if isinstance(index, ast.UnaryOp) and isinstance(index.op, ast.USub) and isinstance(index.operand, ast.Constant):
        value = index.operand.value
        return -value if type(value) is int else None
    return index.value if isinstance(index, ast.Constant) and isinstance(index.value, (int, str)) else None


def _is_cpu(value: ast.expr) -> bool:
    """``"cpu"``, ``torch.device("cpu")``"""
    if isinstance(value, ast.Call) and last_part(value.func) == "device" and value.args:
        value = value.args[0]
    return isinstance(value, ast.Constant) and value.value == "cpu"


def _is_dtype(value: ast.expr, facts: ModuleFacts) -> bool:
    own = isinstance(value, ast.Attribute) and value.attr == "dtype"
    return own or facts.qualified(value).startswith("torch.") or isinstance(value, ast.Constant)


def _is_filled(value: ast.expr, around: FunctionNode | None) -> bool:
    """Whether a function puts anything into what a dotted name holds: ``self.batch[key] = batch[key].cuda()``."""
    stored = (
        (n for n in walk(around) if isinstance(n, ast.Subscript) and isinstance(n.ctx, ast.Store)) if around else ()
    )
    return any(ast.unparse(each.value) == ast.unparse(value) for each in stored)


def _is_copied_to_host(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "cpu"
