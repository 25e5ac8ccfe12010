"""The queries of rules about the tensors of one file, computed at their first use and shared by the rules."""

from __future__ import annotations

import ast
import dataclasses
import functools
import weakref
from typing import ClassVar

import libcst as cst

from ddp_lint.launch.callers import CallSite, call_sites
from ddp_lint.project.facts import ModuleFacts
from ddp_lint.source import dotted
from ddp_lint.source.parsing import CannotParse, parse
from ddp_lint.tensors.classes import ModuleClass, ModuleClasses, Reached, method_key
from ddp_lint.tensors.contexts import evaluation_only_at
from ddp_lint.tensors.evaluated import called_without_gradient
from ddp_lint.tensors.evaluation import Code
from ddp_lint.tensors.flow import Flow
from ddp_lint.tensors.kept import Keeping
from ddp_lint.tensors.state import Write
from ddp_lint.view import Module


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

    @functools.cached_property
    def keeping(self) -> Keeping:
        """What calls of the project's own code save for backward."""
        return Keeping(self.classes)

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
            self._flows[key] = Flow(self._module, function, self.owner(function), self.keeping, on_host)
        return self._flows[key]

    def writes(self, function: Code) -> list[Write]:
        """What the function writes to tensors. Most functions hold nothing that could write: they are not read."""
        may_write = function in self._writing or self._has_layers_in_place(function)
        return self.flow(function).writes if may_write else []

    @functools.cached_property
    def _writing(self) -> frozenset[cst.CSTNode]:
        """The functions with something that may be a write, by its form; with the functions and the module around."""
        module = self._module
        stores = [*module.of_type(cst.AssignTarget), *module.of_type(cst.AnnAssign), *module.of_type(cst.AsName)]
        stores += [*module.of_type(cst.For), *module.of_type(cst.CompFor), *module.of_type(cst.NamedExpr)]
        places: list[cst.CSTNode] = [*module.of_type(cst.AugAssign)]
        places += (node for node in stores if _stores_in_place(node.name if type(node) is cst.AsName else node.target))
        places += (call for call in module.of_type(cst.Call) if self._may_write(call))
        return frozenset(up for place in places for up in module.ancestors(place) if isinstance(up, Code))

    def _may_write(self, call: cst.Call) -> bool:
        name = call.func.attr.value if type(call.func) is cst.Attribute else dotted(call.func)
        if name.endswith("_") or any(a.keyword is not None and a.keyword.value == "inplace" for a in call.args):
            return True
        target: str | None = self._module.imports.names.get(name)
        return target is not None and target.endswith("_")  # under a name of its own

    def _has_layers_in_place(self, function: Code) -> bool:
        """Whether the class of a method has a layer that was made to work in place."""
        owner = self.owner(function)
        return owner is not None and owner.works_in_place

    def reached(self, function: Code, *, training_step: bool = False) -> Reached | None:
        """How `forward` of the function's class reaches it, or the `training_step` that Lightning runs as that of the
        wrapped module; None when training does not."""
        owner = self.owner(function)
        if owner is None or isinstance(function, cst.Module):
            return None
        methods = owner.training_methods if training_step else owner.forward_methods
        return methods.get(method_key(function))

    def called(self, function: Code) -> Reached | None:
        """How the forward of some module class of the project calls a function that belongs to no class; None when it
        does not, and where not all calls can be seen."""
        module = self._module
        if isinstance(function, cst.Module) or module.class_of(function) is not None:
            return None
        found = [self._around(site) for site in call_sites(module, function)]
        known = [reached for reached in found if reached is not None]
        return dataclasses.replace(known[0], chain=(*known[0].chain, known[0].entry)[:1]) if known else None

    def _around(self, site: CallSite) -> Reached | None:
        around, cls = site.around, self.class_around(site)
        if around is None or cls is None or called_without_gradient(site):
            return None
        reached = cls.forward_methods.get(around.name)
        return reached if reached is None or not evaluation_only_at(site.facts, around, site.node) else None

    def class_around(self, site: CallSite) -> ModuleClass | None:
        """The module class in whose method a call is."""
        classes = (node for node in site.facts.tree.body if isinstance(node, ast.ClassDef))
        owner = next((node.name for node in classes if site.around in node.body), "")
        return self.classes.resolve(owner, site.facts)


def _stores_in_place(target: cst.CSTNode) -> bool:
    """Whether a target is a part of something, or the data of a tensor, or holds one that is."""
    if isinstance(target, (cst.Tuple, cst.List)):
        return any(_stores_in_place(element.value) for element in target.elements)
    if isinstance(target, cst.StarredElement):
        return _stores_in_place(target.value)
    if isinstance(target, cst.Subscript):
        index = target.slice[0].slice
        return not (
            isinstance(index, cst.Index) and isinstance(index.value, cst.BaseString)
        )  # a tensor has no such key
    return isinstance(target, cst.Attribute) and target.attr.value == "data"
