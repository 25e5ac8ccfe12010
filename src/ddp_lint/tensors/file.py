"""All that rules ask about the tensors of one file, computed when first asked and shared by the rules."""

from __future__ import annotations

import ast
import functools
import weakref
from typing import ClassVar

import libcst as cst

from ddp_lint.project.facts import CannotParse, ModuleFacts, parse
from ddp_lint.source import Module
from ddp_lint.tensors.classes import ModuleClass, ModuleClasses, Reached
from ddp_lint.tensors.evaluation import Code
from ddp_lint.tensors.flow import Flow


class TensorFile:
    """Classes and functions of one file with what is known of their tensors."""

    _known: ClassVar[weakref.WeakKeyDictionary[Module, TensorFile]] = weakref.WeakKeyDictionary()

    def __init__(self, module: Module) -> None:
        self._module = weakref.proxy(module)
        self._flows: dict[tuple[Code, frozenset[str]], Flow] = {}

    @classmethod
    def of(cls, module: Module) -> TensorFile:
        """The one instance of a module: rules share its results."""
        known = cls._known.get(module)
        if known is None:
            known = cls._known[module] = cls(module)
        return known

    @functools.cached_property
    def facts(self) -> ModuleFacts:
        """The `ast` side of the file, from the text in hand."""
        known: ModuleFacts | None = self._module.facts
        if known is not None:
            return known
        try:
            tree = parse(self._module.file.text)
        except CannotParse:
            tree = ast.Module(body=[], type_ignores=[])
        return ModuleFacts(self._module.name, self._module.file, tree, self._module.imports)

    @functools.cached_property
    def classes(self) -> ModuleClasses:
        return ModuleClasses(self.facts, self._module.project)

    def owner(self, function: Code) -> ModuleClass | None:
        """The `nn.Module` class that a function is a method of, None when it is none's."""
        if isinstance(function, cst.Module):
            return None
        parent = self._module.class_of(function)
        direct = parent is not None and self._module.function_of(function) is None
        return self.classes.named(parent.name.value) if direct and parent is not None else None

    def flow(self, function: Code, on_host: frozenset[str] = frozenset()) -> Flow:
        """The reading of a function, with the arguments `on_host` taken to lie there."""
        key = function, on_host
        if key not in self._flows:
            self._flows[key] = Flow(self._module, function, self.owner(function), self.classes, on_host)
        return self._flows[key]

    def reached(self, function: Code) -> Reached | None:
        """How `forward` of the function's class reaches it; None when training does not."""
        owner = self.owner(function)
        if owner is None or isinstance(function, cst.Module):
            return None
        return owner.forward_methods.get(function.name.value)

    def trained(self, function: Code) -> Reached | None:
        """The same where Lightning runs another method than `forward` as that of the wrapped module."""
        owner = self.owner(function)
        if owner is None or isinstance(function, cst.Module):
            return None
        return owner.training_methods.get(function.name.value)
