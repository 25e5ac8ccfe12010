"""Values that a program keeps by a name and never reads: what is made of them does nothing."""

from __future__ import annotations

import ast
import re

import libcst as cst

from ddp_lint.launch.lacking import has_heirs
from ddp_lint.launch.unused import is_plain
from ddp_lint.project import Project
from ddp_lint.project.facts import ClassFacts
from ddp_lint.project.uses import constructions
from ddp_lint.source import dotted
from ddp_lint.source.syntax import walk
from ddp_lint.source.tree import descendants
from ddp_lint.view import Module

#: Files in which objects of one class are made that are looked at.
_FILES = 25
#: By what a file may read an attribute whose name it does not have.
_READS_ANY = re.compile(r"getattr\(|__dict__|(?<![\w.])(?:vars|locals|eval|exec)\(|asdict\(|pickle|deepcopy")


def is_never_read(module: Module, assign: cst.Assign) -> bool:
    """Whether nothing reads what an assignment gives a variable of a function, or an attribute of ``self``."""
    target = assign.targets[0].target if len(assign.targets) == 1 else None
    function, facts = module.function_of(assign), module.facts
    if function is None or facts is None or facts.file.shows(_READS_ANY):
        return False
    if isinstance(target, cst.Name):
        names = (n for n in descendants(function.body) if isinstance(n, cst.Name) and n.value == target.value)
        return all(each is target or _is_part(module.parent(each), each) for each in names)
    owner, project = module.class_of(function), module.project
    if owner is None or project is None or not isinstance(target, cst.Attribute) or dotted(target.value) != "self":
        return False
    found = project.classes.find(module.name_of(owner))
    return found is not None and _is_left(project, found, target.attr.value)


def _is_part(around: cst.CSTNode | None, name: cst.Name) -> bool:
    """Whether a name is that of an attribute or an argument: ``torch.device``, ``to(device=0)``."""
    return (isinstance(around, cst.Attribute) and around.attr is name) or (
        isinstance(around, cst.Arg) and around.keyword is name
    )


def _is_left(project: Project, owner: ClassFacts, name: str) -> bool:
    """Whether no method of a class reads an attribute, and nothing does of the objects that the project makes: each of
    these has a name of its own, by which it is given to nobody."""
    if not is_plain(project, owner.name) or project.classes.subclass_of(owner.name, "torch.nn.Module"):
        return False
    facts = owner.module
    loads = (n for n in walk(facts.tree) if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Load))
    if any(each.attr == name and not facts.qualified(each) for each in loads) or has_heirs(project, owner):
        return False
    made = constructions(project, owner.name, _FILES)
    return bool(made) and all(
        use.around is not None and _is_kept_apart(project, use.around, call, name) for _, use, call in made
    )


def _is_kept_apart(project: Project, around: ast.AST, call: ast.Call, name: str) -> bool:
    """Whether a function keeps the object that it makes by a name, of which it only calls methods and sets attributes,
    and no file reads the attribute by such a name."""
    given = next((n for n in walk(around) if isinstance(n, ast.Assign) and n.value is call), None)
    target = given.targets[0] if given is not None and len(given.targets) == 1 else None
    if not isinstance(target, ast.Name):
        return False
    attributes = {id(n.value): n for n in walk(around) if isinstance(n, ast.Attribute)}
    for each in walk(around):
        if isinstance(each, ast.Name) and each.id == target.id and isinstance(each.ctx, ast.Load):
            read = attributes.get(id(each))
            if read is None or read.attr == name:
                return False
    return not any(map(project.contents.text, project.contents.holding(f"{target.id}.{name}")))


def kept_in(module: Module, value: cst.CSTNode) -> cst.Assign | None:
    """The assignment of a device that is made of a value alone: ``device = torch.device(f"cuda:{rank}")``."""
    for up in module.ancestors(value):
        if isinstance(up, cst.Assign):
            return up
        if isinstance(up, cst.Call):
            formats = isinstance(up.func, cst.Attribute) and up.func.attr.value == "format"
            if not formats and dotted(up.func) not in ("int", "str") and module.qualified(up.func) != "torch.device":
                return None
        elif not isinstance(up, (cst.Arg, cst.BinaryOperation, cst.FormattedString, cst.FormattedStringExpression)):
            return None
    return None
