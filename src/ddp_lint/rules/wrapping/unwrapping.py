"""What was taken out of its DDP or FSDP wrapper: `model.module`, `accelerator.unwrap_model(model)`, and their parts."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import libcst as cst

from ddp_lint.knowledge import frameworks, table
from ddp_lint.project.facts import ClassFacts
from ddp_lint.source import dotted
from ddp_lint.source.control_flow import exclusive
from ddp_lint.source.imports import dotted_ast, last_part
from ddp_lint.source.syntax import FunctionNode
from ddp_lint.view import Module
from ddp_lint.view.scopes import Binding

#: Names of functions and methods that return the module inside a wrapper.
UNWRAPPING = frozenset((*table("wrappers")["unwrapping"], *frameworks.every(lambda each: each.unwrapping)))
_DEPTH = 4
_HELPER = 12  # lines
_TESTS = frozenset({"isinstance", "type", "hasattr", "getattr", "len", "list", "tuple", "range", "zip"})
_CASTS = frozenset({"cast", "typing.cast"})

_LEAVING = (cst.Return, cst.Raise, cst.Continue, cst.Break)

Source = tuple[str, cst.CSTNode]  # the wrapper's name, and the expression that takes the module out of it


class Unwrapping:
    """Follows an expression of one file back to the wrapper that its module was taken out of."""

    def __init__(self, module: Module) -> None:
        self._module = module
        self._strips: dict[str, bool] = {}
        self._properties: dict[tuple[cst.ClassDef, str], str] = {}

    def source(self, expression: cst.BaseExpression, depth: int = _DEPTH) -> Source | None:
        """The wrapper that `expression` is the inside of, or a part of the inside; None when it is not."""
        if not depth:
            return None
        if isinstance(expression, cst.IfExp):
            return self.source(expression.body, depth - 1) or self.source(expression.orelse, depth - 1)
        if isinstance(expression, cst.Call):
            return self._of_call(expression, depth)
        if isinstance(expression, cst.Name):
            return self._of_name(expression, depth)
        if isinstance(expression, cst.Attribute):
            owner = dotted(expression.value)
            if expression.attr.value == "module":
                return (owner, expression) if owner not in ("self", "") else None
            wrapper = self._of_property(expression) if owner == "self" else ""
            return (wrapper, expression) if wrapper else self.source(expression.value, depth - 1)
        if isinstance(expression, cst.Subscript):
            return self.source(expression.value, depth - 1)
        return None

    def _of_call(self, call: cst.Call, depth: int) -> Source | None:
        name = dotted(call.func).rpartition(".")[2]
        if name in UNWRAPPING or self._is_stripped_by(call):
            given = call.args[0].value if call.args else None
            while isinstance(given, (cst.List, cst.Tuple)) and given.elements:
                given = given.elements[0].value
            return (dotted(given), call) if dotted(given) else None
        if name == "getattr" and call.args:
            return self.source(call.args[0].value, depth - 1)
        if isinstance(call.func, cst.Attribute) and name.startswith("get_"):  # a part: `net.get_decoder()`
            return self.source(call.func.value, depth - 1)
        return None

    def _of_name(self, name: cst.Name, depth: int) -> Source | None:
        sources = (self.source(b.value, depth - 1) for b in self._last_bindings(name) if b.value is not None)
        return next(filter(None, sources), None)

    def _of_property(self, attribute: cst.Attribute) -> str:
        """The wrapper that a property of the class around, or of a base, returns the inside of; "" if none does."""
        owner, project, name = self._module.class_of(attribute), self._module.project, attribute.attr.value
        if owner is None or project is None:
            return ""
        if (owner, name) not in self._properties:
            bases = map(project.classes.find, project.classes.lineage(self._module.name_of(owner)))
            found = ((facts, facts.methods[name]) for facts in bases if facts is not None and name in facts.methods)
            facts, method = next(found, (None, None))
            given = _property_of(method) if method is not None else None
            wrapper = self._inside(facts, given) if facts is not None and given is not None else ""
            self._properties[owner, name] = wrapper
        return self._properties[owner, name]

    def _inside(self, facts: ClassFacts, value: ast.expr) -> str:
        """The attribute of the object whose inside a value is: ``self._net.module``, ``unwrap(self._net)``."""
        if isinstance(value, ast.IfExp):
            return self._inside(facts, value.body) or self._inside(facts, value.orelse)
        if isinstance(value, ast.Attribute) and value.attr == "module":
            return _own(value.value)
        if isinstance(value, ast.Call) and value.args:
            project = self._module.project
            helper = project.meanings.of(facts.module, value.func) if project is not None else ""
            strips = last_part(value.func) in UNWRAPPING or self._takes_off(helper)
            return _own(value.args[0]) if strips else ""
        return ""

    def _last_bindings(self, name: cst.Name) -> Iterator[Binding]:
        """The last assignment before a use, and those in the other arms of its `if`; those in arms that leave before
        the use apart."""
        last: Binding | None = None
        for binding in self._module.scopes.last_before(self._module.bindings(name), name):
            if binding.kind != "assign" or self._leaves(binding.node, name):
                continue
            if last is not None and not exclusive(self._module, binding.node, last.node):
                return
            last = last or binding
            yield binding

    def _leaves(self, statement: cst.CSTNode, use: cst.CSTNode) -> bool:
        """Whether the block of a statement ends the function or the round before `use` is reached."""
        around = set(self._module.ancestors(use))
        for up in self._module.ancestors(statement):
            if up in around:
                return False
            last = up.body[-1] if isinstance(up, cst.IndentedBlock) and up.body else None
            if isinstance(last, cst.SimpleStatementLine) and isinstance(last.body[-1], _LEAVING):
                return True
        return False

    def _is_stripped_by(self, call: cst.Call) -> bool:
        """Whether a call hands its argument to a function of the project that takes the wrapper off."""
        return self._takes_off(self._module.callee(call) if call.args else "")

    def _takes_off(self, name: str) -> bool:
        if name and name not in self._strips:
            project = self._module.project
            found = project.meanings.definition(project.meanings.canonical(name)) if project is not None else None
            definition = found[1] if found is not None else None
            self._strips[name] = isinstance(definition, ast.FunctionDef) and _takes_wrapper_off(definition)
        return bool(name) and self._strips[name]


def _property_of(method: FunctionNode) -> ast.expr | None:
    """What a property returns, if it does nothing else."""
    if not any(dotted_ast(each) == "property" for each in method.decorator_list):
        return None
    last = method.body[-1]
    said = all(isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant) for each in method.body[:-1])
    return last.value if said and isinstance(last, ast.Return) else None


def _own(value: ast.expr) -> str:
    name = dotted_ast(value)
    return name if name.startswith("self.") else ""


def _takes_wrapper_off(function: ast.FunctionDef) -> bool:
    """A short function that does nothing but tests, and returns `.module` where there is one."""
    if (function.end_lineno or 0) - function.lineno > _HELPER:
        return False
    nodes = [node for statement in function.body for node in ast.walk(statement)]
    if not any(isinstance(node, ast.Attribute) and node.attr == "module" for node in nodes):
        return False
    calls = [node for node in nodes if isinstance(node, ast.Call)]
    tested = [last_part(part) for call in calls if last_part(call.func) == "isinstance" for part in _alternatives(call)]
    if tested and all("DataParallel" in name and "Distributed" not in name for name in tested):
        return False  # of one process with all GPUs
    return all(dotted_ast(call.func) in _TESTS | _CASTS for call in calls) and any(
        isinstance(node, ast.Return) and node.value is not None for node in nodes
    )


def _alternatives(call: ast.Call) -> list[ast.expr]:
    """The classes that ``isinstance(x, (A, B))`` tests for."""
    given = call.args[1] if len(call.args) > 1 else None
    return given.elts if isinstance(given, ast.Tuple) else [given] if given is not None else []
