"""What the project gives a function when it calls it: read from the calls themselves, as far as they can be seen."""

from __future__ import annotations

import ast
import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import cast

import libcst as cst

from ddp_lint.findings import Span
from ddp_lint.knowledge.tensors import names
from ddp_lint.launch.search import importers
from ddp_lint.project import Project
from ddp_lint.project.bound import bound_in
from ddp_lint.project.facts import ClassFacts, ModuleFacts, methods_of
from ddp_lint.project.uses import Use, uses
from ddp_lint.project.uses import constructions as constructions_of
from ddp_lint.source import dotted
from ddp_lint.source.imports import dotted_ast, last_part
from ddp_lint.source.queries import is_false
from ddp_lint.source.syntax import (
    FunctionNode,
    argument_at,
    calls_below,
    defaults,
    function_at,
    is_text,
    positional,
    walk,
)
from ddp_lint.source.tree import parameters_of, positional_of
from ddp_lint.view import Module

#: Files that hold the name of a function; where more do, the name says too little to look for its calls.
_FILES = 25
#: Classes that inherit from one in its file; where more do, their objects are not searched.
_SUBCLASSES = 50
_DEPTH = 4  # of class evidence for one expression
#: Methods of texts and containers: of a class that has one by such a name, the files that import it alone may call it.
_OF_TEXTS = frozenset(name for kind in (str, list, dict, set) for name in dir(kind) if not name.startswith("_"))


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

    def has_stars(self) -> bool:
        """Whether the call unpacks what it gives."""
        return _unpacks(self.node)

    def given(self, function: cst.FunctionDef | FunctionNode, name: str) -> ast.expr | None:
        """What the call gives a parameter; None when it leaves it to the default, or a star hides it."""
        places = _places_of(function)[self.bound and not _is_static(function) :]
        return argument_at(self.node, places.index(name) if name in places else len(self.node.args), name)


def _unpacks(call: ast.Call) -> bool:
    return any(isinstance(each, ast.Starred) for each in call.args) or any(each.arg is None for each in call.keywords)


def _places_of(function: cst.FunctionDef | FunctionNode) -> list[str]:
    if isinstance(function, cst.FunctionDef):
        return [each.name.value for each in positional_of(function)]
    return [each.arg for each in positional(function)]


def _is_static(function: cst.FunctionDef | FunctionNode) -> bool:
    if isinstance(function, cst.FunctionDef):
        return any(dotted(each.decorator) == "staticmethod" for each in function.decorators)
    return any(dotted_ast(each) == "staticmethod" for each in function.decorator_list)


@dataclasses.dataclass(frozen=True)
class _Called:
    """A function or method by its name, with its canonical name and that of its class, '' for a function."""

    facts: ModuleFacts
    name: str
    whole: str
    owner: str


def call_sites(module: Module, function: cst.FunctionDef) -> tuple[CallSite, ...]:
    """The calls of a function or method of `module` in its project, without those of tests. Empty when there are none,
    or when the function is passed on somewhere, so that not all calls can be seen."""
    project = module.project
    if project is None or module.facts is None or module.function_of(function) is not None:
        return ()
    cls = module.class_of(function)
    owner = module.name_of(cls) if cls is not None else ""
    return _sites_of(project, _Called(module.facts, function.name.value, module.name_of(function), owner))


def sites_in_project(project: Project, facts: ModuleFacts, function: FunctionNode) -> tuple[CallSite, ...]:
    """`call_sites` for a function of any file, at its top or in a class there."""
    owner, method = facts.method_at(function.lineno) or (None, None)
    if owner is None and facts.definitions.get(function.name) is function:
        return _sites_of(project, _Called(facts, function.name, f"{facts.name}.{function.name}", ""))
    if owner is None or method is not function:
        return ()
    whole = project.classes.of(facts, owner).name
    return _sites_of(project, _Called(facts, function.name, f"{whole}.{function.name}", whole))


def sites_that_run(project: Project, facts: ModuleFacts, function: FunctionNode) -> tuple[CallSite, ...]:
    """`sites_in_project`; of a constructor the calls that make an object of its class."""
    owner, method = facts.method_at(function.lineno) or (None, None)
    if owner is None or method is not function or function.name != "__init__":
        return sites_in_project(project, facts, function)
    name = project.classes.of(facts, owner).name

    def found() -> tuple[CallSite, ...]:
        uses_of_class = constructions_of(project, name, _FILES)
        return tuple(CallSite(each, call, use.around, bound=True) for each, use, call in uses_of_class)

    return project.remember(("constructions", name), found)


def sites_by_keyword(project: Project, function: FunctionNode, name: str) -> list[CallSite]:
    """The calls of objects of a class that is not seen which give a method what it takes, one parameter by its name:
    ``ctx.model(tokens=x, rows=rows)``."""
    sites = project.remember(("calls by keyword", name), lambda: tuple(_by_keyword(project, name)))
    return [site for site in sites if _takes(function, site.node)]


def _takes(function: FunctionNode, call: ast.Call) -> bool:
    """Whether a method can be called so, with nothing left out or too much."""
    if _unpacks(call):
        return False
    pairs = [(each.arg, default) for each, default in defaults(function.args)][1:]
    given = {name for name, _ in pairs[: len(call.args)]} | {each.arg for each in call.keywords}
    return given <= {name for name, _ in pairs} and all(default is not None or name in given for name, default in pairs)


def _by_keyword(project: Project, name: str) -> Iterator[CallSite]:
    paths = dict.fromkeys((*project.contents.holding(f"{name}="), *project.contents.holding(f"{name} =")))
    for facts in map(project.modules.facts_of, paths if len(paths) <= _FILES else ()):
        for call in calls_below(facts.tree) if facts is not None and not facts.source.is_test else ():
            if facts is None or not any(keyword.arg == name for keyword in call.keywords):
                continue
            around = function_at(facts.tree, call.lineno)
            owner, _ = facts.method_at(call.lineno) or (None, None)
            own = owner is not None and dotted_ast(call.func).partition(".")[0] == "self"
            is_method = own and owner is not None and last_part(call.func) in methods_of(owner)
            if not is_method and not project.meanings.of(facts, call.func):
                yield CallSite(facts, call, around, bound=True)


def _sites_of(project: Project, called: _Called) -> tuple[CallSite, ...]:
    key = ("call sites", called.whole)
    found: tuple[CallSite, ...] = project.remember(key, lambda: _sites(project, called), called.facts.kept)
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


def sites_of(module: Module, function: cst.FunctionDef) -> tuple[CallSite, ...]:
    """The calls of a function; of a constructor those that make an object of its class."""
    owner = module.class_of(function) if function.name.value == "__init__" else None
    return call_sites(module, function) if owner is None else constructions(module, owner)


def _sites(project: Project, called: _Called) -> tuple[CallSite, ...]:
    name, owner = called.name, called.owner
    of_instances = bool(owner) and name == "forward"
    subclasses = _subclasses(project, owner) if of_instances else []
    if len(subclasses) > _SUBCLASSES:
        return ()
    words = [owner.rpartition(".")[2], *subclasses] if of_instances else [name]
    paths = tuple(dict.fromkeys(path for word in words for path in project.contents.holding(word)))
    users: Iterable[ModuleFacts | None] = map(project.modules.facts_of, paths)
    if owner and name in _OF_TEXTS:
        users = _importing(project, called)
    elif len(paths) > _FILES:
        users = _importing(project, called) if not owner else ()
    found: list[CallSite] = []
    for facts in users:
        if facts is None or facts.source.is_test:
            continue
        if of_instances:
            found += _calls_of_instances(project, facts, owner)
            continue
        for use in uses(facts, name):
            if not _means(project, facts, called, use):
                continue
            call = use.call or _checkpointed(facts, use)
            calls = [call] if call is not None else _by_table(use)
            if not calls:
                return ()
            found += (CallSite(facts, each, use.around, bound=bool(owner)) for each in calls)
    return tuple(found)


def _importing(project: Project, called: _Called) -> Sequence[ModuleFacts]:
    """The files that may call a function by a name which many files have: those that import the file that has it."""
    facts = called.facts
    imported = importers(project, facts.name, holding=(called.name,)) if facts.name else iter(())
    found = list(itertools.islice(imported, _FILES))
    return [facts, *found] if len(found) < _FILES else []


def _checkpointed(facts: ModuleFacts, use: Use) -> ast.Call | None:
    """The call that a checkpoint makes of the function that it is given: ``f(x)`` of ``checkpoint(f, x)``."""
    outer = use.given
    if outer is None or facts.qualified(outer.func) not in names("compile", "checkpoints"):
        return None
    if not outer.args or outer.args[0] is not use.node:
        return None
    return ast.copy_location(ast.Call(use.node, outer.args[1:], outer.keywords), outer)


def _by_table(use: Use) -> list[ast.Call]:
    """The calls of what a table holds that has a function, where the function around does nothing else with the table:
    ``table[name](x)`` of ``table = {"masks": self.loss_masks}``. None that are not seen."""
    around = use.around
    assigned = (n for n in walk(around) if isinstance(n, ast.Assign)) if around is not None else ()
    held = (n for n in assigned if isinstance(n.value, ast.Dict) and any(v is use.node for v in n.value.values))
    target = next((n.targets[0] for n in held if len(n.targets) == 1), None)
    if around is None or not isinstance(target, ast.Name):
        return []
    reads = [n for n in walk(around) if isinstance(n, ast.Name) and n.id == target.id and n is not target]
    calls = [n for n in calls_below(around) if isinstance(n.func, ast.Subscript) and n.func.value in reads]
    asked = [n for n in walk(around) if isinstance(n, ast.Compare) and n.comparators[0] in reads]
    of_presence = all(isinstance(n.ops[0], (ast.In, ast.NotIn)) and len(n.ops) == 1 for n in asked)
    return calls if of_presence and len(calls) + len(asked) == len(reads) else []


def _subclasses(project: Project, owner: str) -> list[str]:
    """The names of the classes that inherit from a class in the file that defines it."""
    found = project.meanings.split(owner)
    if found is None:
        return []
    facts = found[0]
    return project.remember(("subclasses in", facts.name), lambda: _subclasses_in(project, facts)).get(owner, [])


def _subclasses_in(project: Project, facts: ModuleFacts) -> dict[str, list[str]]:
    """By the canonical names of classes, the names of those that inherit from them in a file."""
    subclasses: dict[str, list[str]] = {}
    for node in facts.definitions.values():
        if isinstance(node, ast.ClassDef):
            name = project.classes.of(facts, node).name
            for ancestor in project.classes.lineage(name):
                if ancestor != name:
                    subclasses.setdefault(ancestor, []).append(node.name)
    return subclasses


def _means(project: Project, facts: ModuleFacts, called: _Called, use: Use) -> bool:
    """Whether an expression may refer to the function: a method by its name, unless it is one of ``self`` in a class
    that has nothing to do with the method's."""
    if not called.owner:
        return project.meanings.of(facts, use.node) == called.whole
    if not isinstance(use.node, ast.Attribute):
        return False
    if dotted_ast(use.node.value) != "self" or use.owner is None:
        # `torch.softmax` is no method of the project's, nor is ``text.replace(" ", "_")``.
        if called.name in _OF_TEXTS and use.call is not None and any(map(is_text, use.call.args)):
            return False
        return facts.qualified(use.node.value).partition(".")[0] != "torch"
    here, there = called.owner, project.classes.of(facts, use.owner).name
    return here in project.classes.lineage(there) or there in project.classes.lineage(here)


def _calls_of_instances(project: Project, facts: ModuleFacts, owner: str) -> Sequence[CallSite]:
    """The calls of objects that a file makes of a module's class: ``self.loss = Loss()``, ``self.loss(x)``."""
    calls = project.remember("calls of objects", lambda: _calls_by_class(project, facts), facts.kept)
    return cast("dict[str, list[CallSite]]", calls).get(owner, ())


def _calls_by_class(project: Project, facts: ModuleFacts) -> dict[str, list[CallSite]]:
    calls: dict[str, list[CallSite]] = {}
    for kind, call in _calls_of_objects(project, facts):
        for ancestor in project.classes.lineage(kind):
            calls.setdefault(ancestor, []).append(call)
    return calls


def _calls_of_objects(project: Project, facts: ModuleFacts) -> Iterator[tuple[str, CallSite]]:
    """All calls of objects in a file whose class is known, with the class."""
    for definition in facts.tree.body:
        cls = project.classes.of(facts, definition) if isinstance(definition, ast.ClassDef) else None
        functions = list(cls.methods.values()) if cls is not None else [definition]
        for function in functions:
            if not isinstance(function, FunctionNode):
                continue
            for node in walk(function):
                called = node.func if isinstance(node, ast.Call) else None
                if not isinstance(node, ast.Call) or not isinstance(called, (ast.Attribute, ast.Name)):
                    continue
                kind = project.types.of(called, facts, function, cls, _DEPTH)
                if not kind and isinstance(called, ast.Name):
                    kind = _of_element(project, facts, called.id, function, cls)
                if kind:
                    yield kind, CallSite(facts, node, function, bound=True)


def _of_element(project: Project, facts: ModuleFacts, name: str, function: FunctionNode, cls: ClassFacts | None) -> str:
    """The class of what a loop gives a name: of ``head`` in ``for x, head in zip(xs, self.heads)``."""
    for bound in bound_in(function).get(name, ()):
        value, steps = bound.value, bound.steps
        if value is None or steps[:1] != (None,):
            continue
        if isinstance(value, ast.Call) and dotted_ast(value.func) in ("zip", "enumerate") and len(steps) > 1:
            place = steps[1] if dotted_ast(value.func) == "zip" else 0
            value = value.args[place] if isinstance(place, int) and place < len(value.args) else None
        kind = project.types.of_element(value, facts, function, cls, _DEPTH) if value is not None else ""
        if kind:
            return kind
    return ""


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


def is_always_false(module: Module, value: cst.BaseExpression | None, at: cst.CSTNode) -> bool:
    """Whether an argument is False: as it is written, or as the parameter of the function around `at` that is so by
    default, or in all calls that give it."""
    function = module.function_of(at)
    if value is None or function is None or is_false(value):
        return is_false(value)
    found = next((p for p in parameters_of(function) if p.name.value == dotted(value)), None)
    sites = call_sites(module, function) if found is not None else ()
    if found is None or not sites or not isinstance(value, cst.Name):
        return False
    given = [site.given(function, value.value) for site in sites if not site.has_stars()]
    falsely = (
        is_false(found.default) if g is None else isinstance(g, ast.Constant) and g.value is False for g in given
    )
    return len(given) == len(sites) and all(falsely)


def comes_first(module: Module, use: cst.CSTNode, other: cst.CSTNode) -> bool:
    """Do all who call the methods that the two lie in call the one of `use` first, or constructors that one alone?"""
    user, later = module.function_of(use), module.function_of(other)
    if user is None or later is None or user is later or module.project is None:
        return False
    if "__init__" in (user.name.value, later.name.value):
        return False
    if module.class_of(use) is module.class_of(other) and _is_of_construction(module, user, later):
        return True
    return order_of(module.project, user.name.value, later.name.value) == "before"


def _is_of_construction(module: Module, method: cst.FunctionDef, other: cst.FunctionDef) -> bool:
    """Whether constructors call a method, and nothing else does, while none leads to the other one."""
    sites = call_sites(module, method)
    if not sites or not all(map(_is_in_constructor, sites)) or module.facts is None or module.project is None:
        return False
    found = function_at(module.facts.tree, module.span(other.name).line)
    return found is not None and not _comes_by_constructor(module.project, module.facts, found)


def _comes_by_constructor(project: Project, facts: ModuleFacts, function: FunctionNode, depth: int = _DEPTH) -> bool:
    """Whether a constructor calls a function, itself or by way of others; also where that is too far to see."""
    sites = sites_in_project(project, facts, function)
    return depth == 0 or any(
        _is_in_constructor(site)
        or (site.around is not None and _comes_by_constructor(project, site.facts, site.around, depth - 1))
        for site in sites
    )


def _is_in_constructor(site: CallSite) -> bool:
    return site.around is not None and site.around.name == "__init__"


def order_of(project: Project, first: str, second: str) -> str:
    """In which order the functions of a project call two methods that they both call: "before" where all call `first`
    before `second`, "after" where all do it the other way round, '' where they differ or none calls both. Where no
    function calls both itself, the methods of the file that call them count as well."""
    return project.remember(("order of calls", first, second), lambda: _order_of(project, first, second))


def _order_of(project: Project, first: str, second: str) -> str:
    others = set(project.contents.holding(f".{second}("))
    paths = [path for path in project.contents.holding(f".{first}(") if path in others]
    trees = [facts.tree for facts in map(project.modules.facts_of, paths) if facts is not None]
    orders = _orders(trees, first, second, through=False) or _orders(trees, first, second, through=True)
    return orders.pop() if len(orders) == 1 else ""


def _orders(trees: Iterable[ast.Module], first: str, second: str, *, through: bool) -> set[str]:
    """The orders in which the functions of some files call two methods; with `through`, also one that calls another
    method of the file which calls it."""
    orders = set()
    for tree in trees:
        functions = [n for n in walk(tree) if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Module))]
        names = {name: _with_callers(functions, name) if through else {name} for name in (first, second)}
        for function in functions:
            lines = {
                name: min(filter(None, (_first_call(function, n) for n in names[name])), default=0) for name in names
            }
            if all(lines.values()) and lines[first] != lines[second]:
                orders.add("before" if lines[first] < lines[second] else "after")
    return orders


def _with_callers(functions: Iterable[ast.AST], name: str) -> set[str]:
    """A method and those that call it, without constructors."""
    callers = {
        f.name for f in functions if isinstance(f, (ast.FunctionDef, ast.AsyncFunctionDef)) and _first_call(f, name)
    }
    return {name} | (callers - {"__init__"})


def _first_call(function: ast.AST, name: str) -> int:
    """The line of the first call of a method in a function, or in what a module runs itself; 0 where there is none."""
    parts = [function]
    if isinstance(function, ast.Module):
        parts = [s for s in function.body if not isinstance(s, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))]
    calls = (n for part in parts for n in calls_below(part) if isinstance(n.func, ast.Attribute))
    return min((n.lineno for n in calls if isinstance(n.func, ast.Attribute) and n.func.attr == name), default=0)
