"""Small functions of the project that are called for what they return."""

from __future__ import annotations

import ast
import dataclasses

import libcst as cst

from ddp_lint.project.facts import ClassFacts, ModuleFacts
from ddp_lint.source import dotted
from ddp_lint.source.imports import of_self
from ddp_lint.source.syntax import FunctionNode, parameters, positional, walk
from ddp_lint.view import Module


@dataclasses.dataclass(frozen=True)
class Helper:
    """A function of the project and the file that it is in."""

    facts: ModuleFacts
    function: FunctionNode
    #: The class that has it, of a method.
    owner: ClassFacts | None = None

    @property
    def returned(self) -> list[ast.expr]:
        return [n.value for n in walk(self.function) if isinstance(n, ast.Return) and n.value is not None]

    @property
    def parameters(self) -> set[str]:
        return {argument.arg for argument in parameters(self.function)}

    @property
    def positional(self) -> list[str]:
        """The parameters that a call fills by place: without the object of a method."""
        return [argument.arg for argument in positional(self.function)][self.owner is not None :]

    def part(self, value: ast.expr, index: tuple[int, ...]) -> ast.expr | None:
        """The part of a returned tuple, None where it is not written as one."""
        for number in index:
            if not isinstance(value, ast.Tuple) or number >= len(value.elts):
                return None
            value = value.elts[number]
        return value


def helper_of(module: Module, call: cst.Call) -> Helper | None:
    """The function or method of the project that is called, as far as its name shows."""
    project = module.project
    if project is None:
        return None
    name = of_self(dotted(call.func))
    owner = module.class_of(call) if name else None
    if owner is not None:
        method = project.classes.method(module.name_of(owner), name)
        return Helper(method[0].module, method[1], method[0]) if method is not None else None
    found = project.meanings.definition(module.callee(call))
    return Helper(found[0], found[1]) if found is not None and isinstance(found[1], ast.FunctionDef) else None
