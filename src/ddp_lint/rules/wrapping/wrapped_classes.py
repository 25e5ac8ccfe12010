"""The module classes whose objects a project wraps in DDP, or has as parts of what it wraps: by `ast`."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator

from ddp_lint.knowledge import frameworks
from ddp_lint.project import Project
from ddp_lint.project.facts import ClassFacts, ModuleFacts
from ddp_lint.project.handed_on import Given, given_by
from ddp_lint.rules.wrapping.preparing import forwards_attributes
from ddp_lint.source.imports import dotted_ast, last_part, of_self
from ddp_lint.source.syntax import FunctionNode, blocks_at, calls_below, function_at, walk
from ddp_lint.tensors.classes import is_module_class

_DDP = "torch.nn.parallel.DistributedDataParallel"
#: Arguments that say how DDP is to deal with parameters without a gradient.
SEARCHES = ("find_unused_parameters", "static_graph")
#: By what a framework is told of them.
_SETTINGS = "DistributedDataParallelKwargs"
#: What programs call the model that they train.
_MODELS = frozenset({"model", "net", "network"})
_DEPTH = 4
_CLASSES = 400
#: Methods that constructors call to make layers.
_BUILDS = re.compile(r"_*(make|build|create)_")


def wrapped_classes(project: Project) -> frozenset[str]:
    """The classes of the project whose instances, or whose parts, a file of it wraps in DDP."""
    return project.remember(("wrapped classes",), lambda: with_parts(project, (of for of, _ in _given(project))))


def searched_classes(project: Project) -> frozenset[str]:
    """Those of them that a wrap may deal with the parameters of that have no gradient."""

    def found() -> frozenset[str]:
        return with_parts(project, (of for of, may_search in _given(project) if may_search))

    return project.remember(("searched classes",), found)


def ddp_calls(project: Project) -> tuple[tuple[ModuleFacts, ast.Call], ...]:
    """The calls of DDP in a project, without those of tests."""
    return project.remember(("calls of DDP",), lambda: tuple(_ddp_calls(project)))


def wraps_with(project: Project, name: str) -> Iterator[tuple[ModuleFacts, ast.Call]]:
    """Those of them that wrap an object of a class, or what has one as a part."""
    for facts, call in ddp_calls(project):
        if call.args and name in with_parts(project, kinds_of(project, facts, call, call.args[0])):
            yield facts, call


def _ddp_calls(project: Project) -> Iterator[tuple[ModuleFacts, ast.Call]]:
    for path in project.contents.holding(_DDP.rpartition(".")[2]):
        facts = project.modules.facts_of(path)
        for node in walk(facts.tree) if facts is not None and not facts.source.is_test else ():
            if facts is not None and isinstance(node, ast.Call) and project.meanings.of(facts, node.func) == _DDP:
                yield facts, node


def may_search(call: ast.Call) -> bool:
    """Whether a call of DDP gives one of `SEARCHES`, or may do so: any value but a written False."""
    given = [k.value for k in call.keywords if k.arg is None or k.arg in SEARCHES]
    return any(not isinstance(value, ast.Constant) or bool(value.value) for value in given)


def _given(project: Project) -> tuple[tuple[str, bool], ...]:
    """The classes that calls of DDP get an object of, each with whether the call may search."""
    return project.remember(("given to DDP",), lambda: tuple(dict.fromkeys(_given_to_ddp(project))))


def with_parts(project: Project, classes: Iterable[str]) -> frozenset[str]:
    """Classes of modules with those of their parts."""
    found = dict.fromkeys(classes)
    queue = list(found)
    while queue and len(found) < _CLASSES:
        for part in _parts(project, queue.pop()):
            if part not in found:
                found[part] = None
                queue.append(part)
    return frozenset(found)


def _given_to_ddp(project: Project) -> Iterator[tuple[str, bool]]:
    for facts, call in ddp_calls(project):
        for kind in kinds_of(project, facts, call, call.args[0]) if call.args else ():
            yield kind, may_search(call)
    for facts, call in _preparing_calls(project):
        for given in call.args:
            for kind in kinds_of(project, facts, call, given):
                yield kind, bool(project.contents.holding(_SETTINGS))


def _preparing_calls(project: Project) -> Iterator[tuple[ModuleFacts, ast.Call]]:
    """The calls by which a framework wraps what they get in plain DDP: ``accelerator.prepare(model, optimizer)``."""
    for name, entry in frameworks.wrapping_methods().items():
        of, _, method = name.rpartition(".")
        for path in project.contents.holding(f"{method}("):
            facts = project.modules.facts_of(path)
            if facts is None or facts.source.is_test or any(word in facts.file.code for word in entry.unless):
                continue
            calls = (call for call in calls_below(facts.tree) if last_part(call.func) == method)
            for call in calls:
                by = call.func.value if isinstance(call.func, ast.Attribute) else call.func
                if project.types.of(by, facts, *_around(project, facts, call), _DEPTH) == of:
                    yield facts, call


def prepared_wrapped(project: Project) -> Given:
    """The parameters that a call in the project gives a model that such a call has wrapped."""
    return project.remember(("given prepared",), lambda: _prepared_wrapped(project))


def _prepared_wrapped(project: Project) -> Given:
    made: dict[str, tuple[ModuleFacts, dict[ast.Call, frozenset[int]]]] = {}
    for facts, call in _preparing_calls(project):
        if forwards_attributes(project, facts):
            continue
        places = [place for place, given in enumerate(call.args) if _is_model(project, facts, call, given)]
        _, calls = made.setdefault(facts.source.inside, (facts, {}))
        calls[call] = frozenset(places if len(call.args) > 1 else [-1] * len(places))
    return given_by(project, made.values())


def _is_model(project: Project, facts: ModuleFacts, call: ast.Call, given: ast.expr) -> bool:
    """Whether what such a call is given is a model, by its name or its class."""
    return last_part(given) in _MODELS or next(kinds_of(project, facts, call, given), "") != ""


def prepared_attributes(project: Project) -> frozenset[tuple[str, str]]:
    """The attributes that a class of the project gives such a call and gets back wrapped, by the names of the classes
    that it inherits them from: ``self.model, self.opt = self.accelerator.prepare(self.model, self.opt)``."""
    return project.remember(("prepared attributes",), lambda: frozenset(_prepared_attributes(project)))


def _prepared_attributes(project: Project) -> Iterator[tuple[str, str]]:
    for facts, call in _preparing_calls(project):
        around, owner = _around(project, facts, call)
        stored = (
            (n for n in walk(around) if isinstance(n, ast.Assign) and n.value is call) if around is not None else ()
        )
        for target in (store.targets[0] for store in stored):
            targets = target.elts if isinstance(target, ast.Tuple) else [target]
            for to, given in zip(targets, call.args, strict=False):
                if owner is not None and of_self(dotted_ast(to)) and dotted_ast(to) == dotted_ast(given):
                    yield from ((base, dotted_ast(to)) for base in project.classes.lineage(owner.name)[1:])


def _around(project: Project, facts: ModuleFacts, call: ast.Call) -> tuple[FunctionNode | None, ClassFacts | None]:
    classes = [block for block in blocks_at(facts.tree, call.lineno) if isinstance(block, ast.ClassDef)]
    owner = project.classes.of(facts, classes[-1]) if classes else None
    return function_at(facts.tree, call.lineno), owner


def kinds_of(project: Project, facts: ModuleFacts, call: ast.Call, wrapped: ast.expr) -> Iterator[str]:
    """The class of what is wrapped; for ``model = DDP(model)`` the class that the name had before."""
    name, (around, owner) = dotted_ast(wrapped), _around(project, facts, call)
    stored = (node for node in walk(around or facts.tree) if name and isinstance(node, ast.Assign))
    given = [node.value for node in stored if dotted_ast(node.targets[0]) == name]
    for value in (wrapped, *given):
        kind = project.types.of(value, facts, around, owner, _DEPTH)
        if kind and kind != _DDP and is_module_class(project, kind):
            yield kind


def _parts(project: Project, name: str) -> Iterator[str]:
    """The classes of the modules that a class makes in its constructor, or by its methods and the functions that this
    one calls."""
    for ancestor in project.classes.lineage(name):
        facts = project.classes.find(ancestor)
        for method in facts.methods.values() if facts is not None else ():
            if facts is not None and (method.name == "__init__" or _BUILDS.match(method.name)):
                yield from _made_in(project, facts.module, method, _DEPTH)


def _made_in(project: Project, facts: ModuleFacts, function: ast.AST, depth: int) -> Iterator[str]:
    """The classes of the modules that a function makes, itself or by functions of the project that it calls or that it
    gives the class: ``self._make_layer(Bottleneck, 64)``."""
    for call in calls_below(function):
        for part in (call.func, *call.args):
            made = project.meanings.of(facts, part) if isinstance(part, (ast.Name, ast.Attribute)) else ""
            found = project.meanings.definition(made) if made else None
            if found is not None and isinstance(found[1], ast.ClassDef) and is_module_class(project, made):
                yield made
            elif found is not None and part is call.func and depth and found[1] is not function:
                yield from _made_in(project, *found, depth - 1)
