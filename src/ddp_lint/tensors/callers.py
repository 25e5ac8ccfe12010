"""What the project gives a function when it calls it: read from the calls themselves, as far as they can be seen."""

from __future__ import annotations

import ast
import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import cast

import libcst as cst

from ddp_lint.findings import Span
from ddp_lint.launch.search import importers
from ddp_lint.project import Project
from ddp_lint.project.facts import ModuleFacts, assigned_in, methods_of
from ddp_lint.project.uses import Use, uses
from ddp_lint.project.uses import constructions as constructions_of
from ddp_lint.source import Module, dotted
from ddp_lint.source.imports import dotted_ast
from ddp_lint.source.syntax import FunctionNode, argument_at, calls_below, parameters, walk
from ddp_lint.source.tree import parameters_of, positional_of
from ddp_lint.tensors.operations import is_factory, names, words_of

#: Files that hold the name of a function; where more do, the name says too little to look for its calls.
_FILES = 25
#: Classes that inherit from one in its file; where more do, their objects are not searched.
_SUBCLASSES = 50
_DEPTH = 4  # of class evidence for one expression


@dataclasses.dataclass(frozen=True)
class CallSite:
    """A call of a function, the file that it is in, and the function around it."""

    facts: ModuleFacts
    node: ast.Call
    around: FunctionNode | None
    bound: bool

    @property
    def span(self) -> Span:
        return self.facts.file.span_of(self.node)

    def given(self, function: cst.FunctionDef, name: str) -> ast.expr | None:
        """What the call gives a parameter; None when it leaves it to the default, or a star hides it."""
        positional = [p.name.value for p in positional_of(function)][self.bound :]
        return argument_at(self.node, positional.index(name) if name in positional else len(self.node.args), name)


def call_sites(module: Module, function: cst.FunctionDef) -> tuple[CallSite, ...]:
    """The calls of a function or method of `module` in its project, without those of tests. Empty when there are none,
    or when the function is passed on somewhere, so that not all calls can be seen."""
    project = module.project
    if project is None or module.facts is None:
        return ()
    key, kept = ("call sites", module.name_of(function)), module.facts.kept
    found: tuple[CallSite, ...] = project.remember(key, lambda: _sites(module, project, function), kept)
    return found


def calls_in_file(module: Module, function: cst.FunctionDef) -> Sequence[cst.Call]:
    """The calls of a function of `module`, where this file has all of them; else none."""
    sites = call_sites(module, function)
    if not sites or any(site.facts is not module.facts for site in sites):
        return ()
    lines = {(site.span.line, site.span.column) for site in sites}
    found = (c for c in module.calls_named(function.name.value) if dotted(c.func))
    calls = [c for c in found if (module.span(c).line, module.span(c).column) in lines]
    return calls if len(calls) == len(lines) else ()


def constructions(module: Module, owner: cst.ClassDef) -> tuple[CallSite, ...]:
    """The calls that make an object of a class of `module` in its project, without those of tests."""
    project, name = module.project, module.name_of(owner)
    if project is None or module.facts is None:
        return ()

    def found() -> tuple[CallSite, ...]:
        uses_of_class = constructions_of(project, name, _FILES)
        return tuple(CallSite(facts, call, use.around, bound=True) for facts, use, call in uses_of_class)

    return project.remember(("constructions", name), found)


def made_for_evaluation(module: Module, owner: cst.ClassDef) -> bool:
    """Whether functions named after evaluation alone make objects of a class, and nothing in the project inherits from
    it or hands it on: a metric, which no training step runs."""
    project, name = module.project, owner.name.value
    around = [site.around for site in constructions(module, owner)]
    words = names("branches", "evaluation")
    if project is None or not around or not all(each is not None and words & words_of(each.name) for each in around):
        return False
    # Asked for last: each search goes through all texts.
    return not any(project.holding(text) for text in (f"({name})", f"({name},", f", {name}):"))


def sites_of(module: Module, function: cst.FunctionDef) -> tuple[CallSite, ...]:
    """The calls of a function; of a constructor those that make an object of its class."""
    owner = module.class_of(function) if function.name.value == "__init__" else None
    return call_sites(module, function) if owner is None else constructions(module, owner)


def _sites(module: Module, project: Project, function: cst.FunctionDef) -> tuple[CallSite, ...]:
    name, owner = function.name.value, module.class_of(function)
    if module.function_of(function) is not None:  # a function inside another one
        return ()
    of_instances = owner is not None and name == "forward"
    subclasses = _subclasses(project, module.name_of(owner)) if owner is not None and of_instances else []
    if len(subclasses) > _SUBCLASSES:
        return ()
    words = [owner.name.value, *subclasses] if owner is not None and of_instances else [name]
    paths = tuple(dict.fromkeys(path for word in words for path in project.holding(word)))
    users: Iterable[ModuleFacts | None] = map(project.facts_of, paths)
    if len(paths) > _FILES:
        users = _importing(module, project, name) if owner is None else ()
    found: list[CallSite] = []
    for facts in users:
        if facts is None or facts.source.is_test:
            continue
        if owner is not None and of_instances:
            found += _calls_of_instances(project, facts, module.name_of(owner))
            continue
        for use in uses(facts, name):
            if not _means(project, facts, module, function, use):
                continue
            call = use.call or _checkpointed(facts, use)
            if call is None:
                return ()
            found.append(CallSite(facts, call, use.around, bound=owner is not None))
    return tuple(found)


def _importing(module: Module, project: Project, name: str) -> Sequence[ModuleFacts]:
    """The files that may call a function at the top of one by a name which many files have: those that import it."""
    imported = importers(project, module.name, holding=(name,)) if module.name else iter(())
    found = list(itertools.islice(imported, _FILES))
    return [module.facts, *found] if module.facts is not None and len(found) < _FILES else []


def _checkpointed(facts: ModuleFacts, use: Use) -> ast.Call | None:
    """The call that a checkpoint makes of the function that it is given: ``f(x)`` of ``checkpoint(f, x)``."""
    outer = use.given
    if outer is None or facts.qualified(outer.func) not in names("compile", "checkpoints"):
        return None
    if not outer.args or outer.args[0] is not use.node:
        return None
    return ast.copy_location(ast.Call(use.node, outer.args[1:], outer.keywords), outer)


def _subclasses(project: Project, owner: str) -> list[str]:
    """The names of the classes that inherit from a class in the file that defines it."""
    found = project.split(owner)
    if found is None:
        return []
    facts = found[0]
    return project.remember(("subclasses in", facts.name), lambda: _subclasses_in(project, facts)).get(owner, [])


def _subclasses_in(project: Project, facts: ModuleFacts) -> dict[str, list[str]]:
    """By the canonical names of classes, the names of those that inherit from them in a file."""
    subclasses: dict[str, list[str]] = {}
    for node in facts.definitions.values():
        if isinstance(node, ast.ClassDef):
            name = project.class_of(facts, node).name
            for ancestor in project.lineage(name):
                if ancestor != name:
                    subclasses.setdefault(ancestor, []).append(node.name)
    return subclasses


def _means(project: Project, facts: ModuleFacts, module: Module, function: cst.FunctionDef, use: Use) -> bool:
    """Whether an expression may refer to the function: a method by its name, unless it is one of ``self`` in a class
    that has nothing to do with the method's."""
    cls = module.class_of(function)
    if cls is None:
        return project.meaning(facts, use.node) == module.name_of(function)
    if not isinstance(use.node, ast.Attribute):
        return False
    if dotted_ast(use.node.value) != "self" or use.owner is None:
        # `torch.softmax` is no method of the project's.
        return facts.qualified(use.node.value).partition(".")[0] != "torch"
    here, there = module.name_of(cls), project.class_of(facts, use.owner).name
    return here in project.lineage(there) or there in project.lineage(here)


def _calls_of_instances(project: Project, facts: ModuleFacts, owner: str) -> Sequence[CallSite]:
    """The calls of objects that a file makes of a module's class: ``self.loss = Loss()``, ``self.loss(x)``."""
    calls = project.remember("calls of objects", lambda: _calls_by_class(project, facts), facts.kept)
    return cast("dict[str, list[CallSite]]", calls).get(owner, ())


def _calls_by_class(project: Project, facts: ModuleFacts) -> dict[str, list[CallSite]]:
    calls: dict[str, list[CallSite]] = {}
    for kind, call in _calls_of_objects(project, facts):
        for ancestor in project.lineage(kind):
            calls.setdefault(ancestor, []).append(call)
    return calls


def _calls_of_objects(project: Project, facts: ModuleFacts) -> Iterator[tuple[str, CallSite]]:
    """All calls of objects in a file whose class is known, with the class."""
    for definition in facts.tree.body:
        cls = project.class_of(facts, definition) if isinstance(definition, ast.ClassDef) else None
        functions = list(cls.methods.values()) if cls is not None else [definition]
        for function in functions:
            if not isinstance(function, FunctionNode):
                continue
            for node in walk(function):
                called = node.func if isinstance(node, ast.Call) else None
                if not isinstance(node, ast.Call) or not isinstance(called, (ast.Attribute, ast.Name)):
                    continue
                kind = project.types.of(called, facts, function, cls, _DEPTH)
                if kind:
                    yield kind, CallSite(facts, node, function, bound=True)


def host_arguments(module: Module, function: cst.FunctionDef) -> frozenset[str]:
    """The parameters that every call gives something on the host: ``self.assign(boxes.cpu())``."""
    sites = call_sites(module, function)
    taken = [param.name.value for param in parameters_of(function)]
    return frozenset(name for name in taken if sites and all(gives_host(site, function, name) for site in sites))


def gives_host(site: CallSite, function: cst.FunctionDef, name: str) -> bool:
    """Whether a call gives a parameter a number, or a tensor on the host."""
    value = site.given(function, name)
    return value is not None and _on_host(value, site.around, site.facts)


def _on_host(value: ast.expr, around: FunctionNode | None, facts: ModuleFacts) -> bool:
    if isinstance(value, ast.Constant):
        return True
    if isinstance(value, ast.Subscript):
        return not _is_filled(value.value, around) and _on_host(value.value, around, facts)
    if isinstance(value, ast.Attribute):
        own = around is not None and dotted_ast(value) == f"self.{value.attr}"
        return (
            value.attr in names("python_values", "attributes")
            or (own and _is_kept_on_host(value.attr, around, facts))
            or (value.attr in names("selection", "padded_fields") and _on_host(value.value, around, facts))
        )
    if isinstance(value, ast.Name) and around is not None:
        known = {p.arg for p in parameters(around)}
        given = assigned_in(around, value.id)
        return (
            value.id not in known
            and bool(given)
            and all(not isinstance(v, ast.Name) and _on_host(v, around, facts) for v in given)
        )
    if not isinstance(value, ast.Call):
        return False
    if dotted_ast(value.func) in ("len", "int", "float", "str", "bool"):
        return True
    if is_factory(facts.qualified(value.func)):
        return not any(keyword.arg in (None, "device") for keyword in value.keywords)
    if any(keyword.arg == "return_tensors" for keyword in value.keywords):  # a tokenizer of transformers
        return not any(keyword.arg in (None, "device") for keyword in value.keywords)
    if not isinstance(value.func, ast.Attribute):
        return False
    to_host = value.func.attr == "to" and any(
        isinstance(a, ast.Constant) and a.value == "cpu" for a in (*value.args, *(k.value for k in value.keywords))
    )
    return to_host or value.func.attr in ("cpu", "numpy") or value.func.attr in names("python_values", "methods")


def _is_filled(value: ast.expr, around: FunctionNode | None) -> bool:
    """Whether a function puts anything into what a name holds: ``batch[key] = batch[key].cuda()``."""
    stored = (
        (n for n in walk(around) if isinstance(n, ast.Subscript) and isinstance(n.ctx, ast.Store)) if around else ()
    )
    return any(dotted_ast(each.value) == dotted_ast(value) for each in stored)


def _is_kept_on_host(attribute: str, method: FunctionNode | None, facts: ModuleFacts) -> bool:
    """Whether all methods of a class set an attribute to what they make on the host: a tensor that is no buffer stays
    where it is when the module moves."""
    classes = (node for node in facts.definitions.values() if isinstance(node, ast.ClassDef))
    owner = next((node for node in classes if method in methods_of(node).values()), None)
    if owner is None:
        return False
    set_to = [value for each in methods_of(owner).values() for value in assigned_in(each, f"self.{attribute}")]
    made = [value for value in set_to if not isinstance(value, ast.Constant)]
    return bool(made) and all(
        isinstance(value, ast.Call) and is_factory(facts.qualified(value.func)) and _on_host(value, None, facts)
        for value in made
    )


def constant_arguments(module: Module, function: cst.FunctionDef) -> dict[str, bool]:
    """The parameters that every call gives the same constant, with its truth value."""
    sites = call_sites(module, function)
    found: dict[str, bool] = {}
    for param in parameters_of(function):
        given = [site.given(function, param.name.value) for site in sites]
        values = {bool(v.value) for v in given if isinstance(v, ast.Constant)}
        if given and all(isinstance(v, ast.Constant) for v in given) and len(values) == 1:
            found[param.name.value] = values.pop()
    return found


def comes_first(module: Module, use: cst.CSTNode, other: cst.CSTNode) -> bool:
    """Do all who call the methods that the two lie in call the one of `use` first?"""
    user, later = module.function_of(use), module.function_of(other)
    if user is None or later is None or user is later or module.project is None:
        return False
    if "__init__" in (user.name.value, later.name.value):
        return False
    return order_of(module.project, user.name.value, later.name.value) == "before"


def order_of(project: Project, first: str, second: str) -> str:
    """In which order the functions of a project call two methods that they both call: "before" where all call `first`
    before `second`, "after" where all do it the other way round, '' where they differ or none calls both."""
    return project.remember(("order of calls", first, second), lambda: _order_of(project, first, second))


def _order_of(project: Project, first: str, second: str) -> str:
    orders = set()
    others = set(project.holding(f".{second}("))
    for path in project.holding(f".{first}("):
        facts = project.facts_of(path) if path in others else None
        for function in walk(facts.tree) if facts is not None else ():
            if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Module)):
                lines = {name: _first_call(function, name) for name in (first, second)}
                if all(lines.values()):
                    orders.add("before" if lines[first] < lines[second] else "after")
    return orders.pop() if len(orders) == 1 else ""


def _first_call(function: ast.AST, name: str) -> int:
    """The line of the first call of a method in a function, 0 where there is none."""
    calls = (n for n in calls_below(function) if isinstance(n.func, ast.Attribute))
    return min((n.lineno for n in calls if isinstance(n.func, ast.Attribute) and n.func.attr == name), default=0)
