"""Which class an expression is an instance of, read from constructors, annotations and factory functions.

This is evidence, not proof: the last assignment that is seen counts, and what is not understood is ''.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from ddp_lint.knowledge import canonical, table
from ddp_lint.project.classes import Classes
from ddp_lint.project.facts import ClassFacts, ModuleFacts, assigned_in, statements_of
from ddp_lint.project.meanings import Meanings
from ddp_lint.project.results import KeptResults
from ddp_lint.source.imports import dotted_ast
from ddp_lint.source.parsing import parse_expression
from ddp_lint.source.syntax import FunctionNode, parameters

_DEPTH = 6
#: From so many values of a name on its class is remembered.
_MANY = 8
#: Generic wrappers in annotations whose argument is the class that counts.
_TRANSPARENT = {"Optional", "Union", "Annotated", "Final", "ClassVar", "Required", "NotRequired"}


def is_class_name(name: str) -> bool:
    """Whether a dotted name reads like a class: its last part is in CapWords."""
    last = name.rpartition(".")[2].lstrip("_")
    return last[:1].isupper() and not (last.isupper() and len(last) > 1 and "_" in last)


class Types:
    """Class evidence across a project's files."""

    def __init__(self, results: KeptResults, meanings: Meanings, classes: Classes) -> None:
        self._results = results
        self._meanings = meanings
        self._classes = classes

    def of_call(self, name: str, depth: int = _DEPTH) -> str:
        """The class of what a call of `name` (canonical) returns: the class itself, or what the function of the
        project returns by its annotation or its `return` statements."""
        if not name or not depth:
            return ""
        owner, _, last = name.rpartition(".")
        if self._classes.find(name) is not None:
            return name
        facts, function = self._meanings.definition(name) or (None, None)
        if facts is not None and isinstance(function, FunctionNode):
            return self._of_return(function, facts, None, depth - 1)
        if owner and is_class_name(owner):
            method = self._classes.method(owner, last)
            if method is not None:
                return self._of_return(method[1], method[0].module, method[0], depth - 1)
            return owner if last.startswith("from_") or last in table("tensors")["layers"]["returning_module"] else ""
        return name if is_class_name(name) else ""

    def of_attribute(self, owner: str, attribute: str, depth: int = _DEPTH) -> str:
        """The class of ``x.attribute`` for an `x` of the class `owner`."""
        if not owner or not depth:
            return ""
        for ancestor in self._classes.lineage(owner):
            facts = self._classes.find(ancestor)
            if facts is None:
                continue
            for value, method in reversed(facts.attribute(attribute)):
                kind = self.of(value, facts.module, method, facts, depth - 1)
                if kind:
                    return kind
            getter = facts.methods.get(attribute)
            if getter is not None and any("property" in dotted_ast(d) for d in getter.decorator_list):
                return self._of_return(getter, facts.module, facts, depth - 1)
        return ""

    def of(
        self, node: ast.expr, facts: ModuleFacts, function: FunctionNode | None, owner: ClassFacts | None, depth: int
    ) -> str:
        """The class of an expression that is in a module, perhaps in a function and a class of it."""
        if not depth:
            return ""
        if isinstance(node, ast.Await):
            node = node.value
        if isinstance(node, ast.Call):
            return self.of_call(self._callee(node.func, facts, function, owner, depth), depth - 1)
        if isinstance(node, ast.IfExp):
            return self.of(node.body, facts, function, owner, depth) or self.of(
                node.orelse, facts, function, owner, depth
            )
        if isinstance(node, ast.BoolOp):
            return next(filter(None, (self.of(v, facts, function, owner, depth) for v in node.values)), "")
        if isinstance(node, ast.Name):
            return self._of_name(node.id, facts, function, owner, depth)
        if isinstance(node, ast.Attribute):
            return self.of_attribute(self.of(node.value, facts, function, owner, depth - 1), node.attr, depth - 1)
        return ""

    def of_element(
        self, node: ast.expr, facts: ModuleFacts, function: FunctionNode | None, owner: ClassFacts | None, depth: int
    ) -> str:
        """The class of what is in a list: of ``self.heads`` after ``self.heads = [Head(n) for n in sizes]``."""
        if not depth:
            return ""
        if isinstance(node, (ast.List, ast.Tuple)):
            return next(filter(None, (self.of(each, facts, function, owner, depth - 1) for each in node.elts)), "")
        if isinstance(node, (ast.ListComp, ast.GeneratorExp)):
            return self.of(node.elt, facts, function, owner, depth - 1)
        if isinstance(node, ast.Call):
            return self.of_element(node.args[0], facts, function, owner, depth - 1) if len(node.args) == 1 else ""
        if isinstance(node, ast.Name) and function is not None:
            values = assigned_in(function, node.id)[:_MANY]
            return next(filter(None, (self.of_element(v, facts, function, owner, depth - 1) for v in values)), "")
        if not isinstance(node, ast.Attribute) or owner is None or dotted_ast(node.value) != "self":
            return ""
        held = owner.attribute(node.attr)
        return next(filter(None, (self.of_element(v, owner.module, by, owner, depth - 1) for v, by in held)), "")

    def _callee(
        self, node: ast.expr, facts: ModuleFacts, function: FunctionNode | None, owner: ClassFacts | None, depth: int
    ) -> str:
        name = self._meanings.of(facts, node)
        if name or not isinstance(node, ast.Attribute):
            return name
        receiver = self.of(node.value, facts, function, owner, depth - 1)
        return f"{receiver}.{node.attr}" if receiver else ""

    def _of_name(
        self, name: str, facts: ModuleFacts, function: FunctionNode | None, owner: ClassFacts | None, depth: int
    ) -> str:
        if function is not None:
            values = assigned_in(function, name)
            if len(values) < _MANY:
                kind = self._of_values(values, facts, function, owner, depth)
            else:  # each use of the name would look at all of them
                key = ("type of a name", name, function, owner.node if owner is not None else None, depth)
                kind = self._results.remember(
                    key, lambda: self._of_values(values, facts, function, owner, depth), facts.kept
                )
            if kind:
                return kind
            known = parameters(function)
            if owner is not None and known and known[0].arg == name:
                return owner.name
            return next((self.of_annotation(a.annotation, facts) for a in known if a.arg == name), "")
        value_at_top = facts.values.get(name)
        return self.of(value_at_top, facts, None, None, depth - 1) if value_at_top is not None else ""

    def _of_values(
        self,
        values: Sequence[ast.expr],
        facts: ModuleFacts,
        function: FunctionNode,
        owner: ClassFacts | None,
        depth: int,
    ) -> str:
        """The class of the last value that shows one."""
        kinds = (
            self.of(v, facts, function, owner, depth - 1) or self.of_annotation(v, facts) for v in reversed(values)
        )
        return next(filter(None, kinds), "")

    def of_annotation(self, node: ast.expr | None, facts: ModuleFacts) -> str:
        """The class that an annotation names, through quotes, `Optional` and ``| None``."""
        names = (self._meanings.of(facts, part) for part in named(node))
        return next((name for name in names if _is_kind(name)), "")

    def _of_return(self, function: FunctionNode, facts: ModuleFacts, owner: ClassFacts | None, depth: int) -> str:
        if owner is not None and function.returns is not None and dotted_ast(function.returns).endswith("Self"):
            return owner.name
        kind = self.of_annotation(function.returns, facts)
        if kind:
            return kind
        for statement in statements_of(function):
            if isinstance(statement, ast.Return) and statement.value is not None:
                kind = self.of(statement.value, facts, function, owner, depth)
                if kind:
                    return kind
        return ""


def named(annotation: ast.expr | None) -> Iterator[ast.expr]:
    """The names that an annotation is made of, without those of containers: ``Optional["Net"]`` -> ``Net``."""
    if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        yield from named(parse_expression(annotation.value))
    elif isinstance(annotation, ast.BinOp):
        yield from named(annotation.left)
        yield from named(annotation.right)
    elif isinstance(annotation, ast.Subscript):
        if dotted_ast(annotation.value).rpartition(".")[2] in _TRANSPARENT:
            inner = annotation.slice
            for part in inner.elts if isinstance(inner, ast.Tuple) else [inner]:
                yield from named(part)
        else:
            yield annotation.value
    elif annotation is not None:
        yield annotation


def _is_kind(name: str) -> bool:
    return is_class_name(name) and canonical(name) not in {"typing.Any", "typing.Callable"}
