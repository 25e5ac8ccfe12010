"""Attributes that objects of a project's class lack, as nothing sets them: who reads one raises, wrapped or not."""

from __future__ import annotations

import ast
import collections
import re

from ddp_lint.knowledge import table
from ddp_lint.launch.texts import called_in_texts, is_installed, named_in_texts
from ddp_lint.project import Project
from ddp_lint.project.facts import ClassFacts, ModuleFacts, assigned_in
from ddp_lint.project.parts import kept_by_node
from ddp_lint.project.uses import constructions
from ddp_lint.source.imports import dotted_ast
from ddp_lint.source.syntax import FunctionNode, below, parameters, walk

_FILES = 25
#: Bases outside of the project that have no attributes but those that are listed.
_KNOWN = frozenset({"object", "abc.ABC", "torch.nn.Module"})
_OF_MODULES = frozenset({*table("wrappers")["module_attributes"], "training"})
#: How a class may get attributes that its code does not name, and how it may answer for any.
_SETS_ANY = re.compile(
    r"setattr\(|__dict__|\bvars\(|__getattr|__slots__|\bexec\(|(?:add_module|register_\w+)\(\s*(?![\"'\s])"
)
#: Methods of modules that give back the object itself, and functions that copy one.
_SAME = frozenset({"to", "cuda", "cpu", "half", "float", "double", "eval", "train", "requires_grad_"})
_COPIES = frozenset({"copy.copy", "copy.deepcopy"})
_DEPTH = 4


def lacks(project: Project, facts: ModuleFacts, around: FunctionNode | None, node: ast.Attribute) -> bool:
    """Whether an attribute is read of an object of a class of the project that has none of that name: neither the class
    nor what it inherits from sets it, and nor does the project of anything else."""
    name = node.attr
    if around is None or not isinstance(node.ctx, ast.Load) or name.startswith("_") or hasattr(object, name):
        return False
    kind = kind_of(project, facts, around, node.value)
    if kind is None or not _has_none(project, kind, name) or _is_ever_set(project, name):
        return False
    # A class that nothing makes may be there for others to inherit from. Others may also set what a page speaks of.
    if not constructions(project, kind.name, _FILES) and not called_in_texts(project, kind.node.name):
        return False
    return not (is_installed(project, kind.module) and named_in_texts(project, name))


def kind_of(project: Project, facts: ModuleFacts, around: FunctionNode, node: ast.expr) -> ClassFacts | None:
    """The class of the project that an expression is an object of: a parameter whose annotation says no more than that,
    a name that the function gives nothing but what it makes, or a copy of either."""
    return _kind_of(project, facts, around, node, _DEPTH)


def _kind_of(
    project: Project, facts: ModuleFacts, around: FunctionNode, node: ast.expr, depth: int
) -> ClassFacts | None:
    if isinstance(node, ast.Call):
        return _made(project, facts, around, node, depth - 1) if depth else None
    if not isinstance(node, ast.Name):
        return None
    stores = _stored(around).get(node.id, 0)
    own = next((each for each in parameters(around) if each.arg == node.id), None)
    if own is None:
        values = assigned_in(around, node.id)
        only = values[0] if len(values) == stores == 1 else None
        return _kind_of(project, facts, around, only, depth) if isinstance(only, ast.Call) else None
    if stores:
        return None
    owner = facts.method_at(around.lineno)
    if owner is not None and owner[1] is around and parameters(around)[0] is own:
        static = {dotted_ast(each) for each in around.decorator_list} & {"staticmethod", "classmethod"}
        return project.classes.of(facts, owner[0]) if not static else None
    return named_class(project, facts, own.annotation)


@kept_by_node(256)
def _stored(function: FunctionNode) -> collections.Counter[str]:
    """How often a function, and those in it, bind each name."""
    names = (n for n in walk(function) if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Load))
    return collections.Counter(each.id for each in names)


def _made(project: Project, facts: ModuleFacts, around: FunctionNode, call: ast.Call, depth: int) -> ClassFacts | None:
    if facts.qualified(call.func) in _COPIES and len(call.args) == 1:
        return _kind_of(project, facts, around, call.args[0], depth)
    if isinstance(call.func, ast.Attribute) and call.func.attr in _SAME:
        kind = _kind_of(project, facts, around, call.func.value, depth)
        return kind if kind is not None and call.func.attr not in kind.methods else None
    return named_class(project, facts, call.func)


def named_class(project: Project, facts: ModuleFacts, node: ast.expr | None) -> ClassFacts | None:
    """The class of the project that a name or an annotation is."""
    name = dotted_ast(node) if node is not None else ""
    if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.isidentifier():
        name = node.value
    whole = project.meanings.canonical(facts.qualified(name)) if name else ""
    return project.classes.find(whole) if whole else None


def has_heirs(project: Project, owner: ClassFacts) -> bool:
    """Whether a class of the project inherits from one, or may: of a name that many files hold that is not seen."""
    paths = project.contents.holding(owner.node.name)
    if len(paths) > _FILES:
        return True

    def found() -> bool:
        files = (project.modules.facts_of(path) for path in paths)
        classes = (
            project.classes.of(facts, node)
            for facts in files
            if facts is not None
            for node in walk(facts.tree)
            if isinstance(node, ast.ClassDef) and node.bases
        )
        return any(each.name != owner.name and project.classes.subclass_of(each.name, owner.name) for each in classes)

    return project.remember(("heirs of class", owner.name), found)


def _has_none(project: Project, kind: ClassFacts, name: str) -> bool:
    """Whether objects of a class lack an attribute that nothing sets by its name: all that it inherits from is seen."""
    for each in project.classes.lineage(kind.name):
        owner = project.classes.find(each)
        if owner is None and (each not in _KNOWN or (each == "torch.nn.Module" and name in _OF_MODULES)):
            return False
        if owner is not None and (name in owner.methods or owner.attribute(name) or _may_get_any(owner)):
            return False
    return True


def _may_get_any(owner: ClassFacts) -> bool:
    """Whether a class may have attributes that its code does not name: of a base that is not seen, by a decorator or a
    metaclass, by calls that set them."""
    remade = bool(owner.node.decorator_list or owner.node.keywords)
    return remade or "" in owner.bases or owner.module.file.shows(_SETS_ANY)


def _is_ever_set(project: Project, name: str) -> bool:
    """Whether the project sets or defines an attribute of that name, of whatever, or has the name as a string."""

    def found() -> bool:
        paths = project.contents.holding(name)
        if len(paths) > _FILES:
            return True
        files = [project.modules.facts_of(path) for path in paths]
        return any(facts is None or _sets(facts, name) for facts in files)

    return project.remember(("is ever set", name), found)


def _sets(facts: ModuleFacts, name: str) -> bool:
    for node in walk(facts.tree):
        if isinstance(node, ast.Attribute):
            if node.attr == name and isinstance(node.ctx, ast.Store):
                return True
        elif isinstance(node, ast.Constant):
            if node.value == name:
                return True
        elif isinstance(node, ast.ClassDef):
            if _defines(node, name):
                return True
        elif isinstance(node, (FunctionNode, ast.alias)) and name in (node.name, getattr(node, "asname", None)):
            return True
    return False


def _defines(owner: ast.ClassDef, name: str) -> bool:
    """Whether the body of a class gives a name something, below a condition too: not its methods."""
    stack: list[ast.AST] = [*owner.body]
    while stack:
        node = stack.pop()
        if isinstance(node, ast.Name) and node.id == name and not isinstance(node.ctx, ast.Load):
            return True
        stack += below(node) if not isinstance(node, (FunctionNode, ast.ClassDef)) else ()
    return False
