"""Which paths a rank has for itself: with its rank, a temporary name, the moment, or what its process alone draws in
them, also through what their names are assigned and what calls give."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Sequence

import libcst as cst

from ddp_lint.launch.callers import CallSite, sites_of
from ddp_lint.launch.one_rank import mentions_own_rank
from ddp_lint.project import Project
from ddp_lint.project.facts import ModuleFacts
from ddp_lint.project.parts import assigned_to
from ddp_lint.source import dotted
from ddp_lint.source.imports import dotted_ast, last_part
from ddp_lint.source.syntax import FunctionNode, calls_below, function_at, text_of, walk
from ddp_lint.source.syntax import names_in as names_of
from ddp_lint.source.tree import called, names_in, subtree
from ddp_lint.view import Module
from ddp_lint.view.wraps import argument, is_init

_RANKED = re.compile(
    r"rank|local|process_index|gpu|proc_id|worker|device|host|shard|pid|uuid|tempfile|mkdtemp|tmp", re.IGNORECASE
)
#: The time to the microsecond, which no two ranks share; a format may cut it to the second.
_MOMENT = re.compile(r"\bnow\(\)|\btime_ns\(\)|(?<!int\()\btime\.time\(\)")
_CUT = re.compile(r"strftime|timespec|%")
#: How a name gets what a path is made of.
_GIVES = ("assign", "augment", "for", "with")
#: What is no file, though it is written to like one.
_MEMORY = frozenset({"io.BytesIO", "io.StringIO"})
#: What each process draws for itself, before it has seeded or whatever it has seeded.
_SYSTEM = ("secrets.", "os.urandom")
_DRAWS = re.compile(r"secrets\.|os\.urandom|random\.(?!Random|seed)|numpy\.random\.(?!default_rng|[A-Z]|seed)")
#: How a process comes to the state of another one.
_FORKS = re.compile(r"\bfork\b|\bProcess\(")
#: What no two processes have alike, whatever they seed.
_OWN = re.compile(r"\buuid[14]\(|\bgetpid\(|\bmkdtemp\(|\btoken_hex\(")


def is_own_path(module: Module, path: cst.BaseExpression) -> bool:
    """Whether a path may hold the rank (it, or what its names are assigned, mentions one), or is no file."""
    if module.qualified(path) == "os.devnull":
        return True
    if any(isinstance(v, cst.Call) and module.qualified(v.func) in _MEMORY for v in values_of(module, path)):
        return True
    texts = list(map(module.code, values_of(module, path)))
    if any(map(_MOMENT.search, texts)) and not any(map(_CUT.search, texts)):
        return True
    if _is_drawn(module, path):
        return True
    texts += _set_elsewhere(module, path)
    project, facts = module.project, module.facts
    if project is not None and facts is not None and _are_made_for_process(project, facts, _names(module, path)):
        return True
    texts += _given_to_objects(module, path)
    return any(_RANKED.search(text) or mentions_own_rank(module, text) for text in texts)


def values_of(module: Module, path: cst.BaseExpression) -> Iterator[cst.BaseExpression]:
    """A path, and what its names are assigned, up to three assignments away."""
    reached, values = {path}, [path]
    for _ in range(4):
        yield from values
        nodes = (node for value in values for node in subtree(value))
        names = [node for node in nodes if isinstance(node, (cst.Name, cst.Attribute)) and dotted(node)]
        bound = [b for name in names for b in module.bindings(name) if b.kind in _GIVES]
        values = [value for value in dict.fromkeys(b.value for b in bound) if value and value not in reached]
        reached.update(values)


def is_given_own(module: Module, site: CallSite, function: cst.FunctionDef, path: cst.BaseExpression) -> bool:
    """Whether a call of a function gives it a rank's own part of a path in it."""
    project = module.project
    parts = [site.given(function, name) for name in names_in(path)]
    if any(part is not None and _RANKED.search(ast.unparse(part)) for part in parts):
        return True
    given = [site.given(function, name) for name in _names(module, path)]
    names = [dotted_ast(each) for each in given if each is not None]
    return project is not None and _are_made_for_process(project, site.facts, names)


def comes_from(module: Module, path: cst.BaseExpression, names: Iterable[str]) -> bool:
    """Whether a path, or what its names are assigned, has one of some names: `folder` of ``self.path``, after
    ``self.path = os.path.join(folder, "log.csv")``."""
    return not _names(module, path).isdisjoint(names)


def parameters_given_own(function: cst.FunctionDef, way: tuple[CallSite, ...]) -> set[str]:
    """The parameters of a function that the calls which lead to it, the last one first, may give each rank a value of
    its own."""
    names = {parameter.name.value for parameter in function.params.params} if way else ()
    return {name for name in names if any(map(_RANKED.search, _texts_given(way, function, name)))}


def parameters_left_open(module: Module, function: cst.FunctionDef, calls: Sequence[cst.Call]) -> set[str]:
    """The parameters of a function of which its calls do not show that all ranks get the same."""
    places = [(i, p) for i, p in enumerate(function.params.params) if p.name.value != "self"]
    return {p.name.value for i, p in places if not calls or not all(_is_shared(module, c, i, p) for c in calls)}


def is_of_each(
    module: Module, call: cst.Call, path: cst.BaseExpression, function: cst.FunctionDef, way: tuple[CallSite, ...]
) -> bool:
    """Whether a path is one of a sample or batch, of which each rank has its own: it has what a loop over more than
    numbers gives, here or where the function is called; or of what a rank does when it has failed."""
    if any(isinstance(up, cst.ExceptHandler) for up in module.ancestors(call)):
        return True
    for value in values_of(module, path):
        for name in (part for part in subtree(value) if isinstance(part, (cst.Name, cst.Attribute))):
            loops = (b.value for b in module.bindings(name) if b.kind == "for" and b.value is not None)
            if any(not isinstance(each, cst.Call) or called(each) != "range" for each in loops):
                return True
    return any(_comes_from_loop(way, function, name) for name in names_in(path))


def _names(module: Module, path: cst.BaseExpression) -> set[str]:
    """The names in the path and in what its names are assigned."""
    return {dotted(node) for value in values_of(module, path) for node in subtree(value)} - {""}


def _set_elsewhere(module: Module, path: cst.BaseExpression) -> Iterator[str]:
    """What other functions of the file set the attributes in the path to: ``args.log = f"log_{args.rank}"``."""
    named = {dotted(part) for part in subtree(path) if isinstance(part, cst.Attribute)} - {""}
    tree = module.facts.tree if named and module.facts is not None else None
    for node in walk(tree) if tree is not None else ():
        if isinstance(node, ast.Assign) and any(dotted_ast(target) in named for target in node.targets):
            yield ast.unparse(node.value)


def _given_to_objects(module: Module, path: cst.BaseExpression) -> Iterator[str]:
    """What the calls that make objects of a class give the parameters of its constructor that a path comes from:
    ``Log(f"runs/{rank}")``. What a path takes out of settings is not all of them."""
    names = (part for value in values_of(module, path) for part in subtree(value) if isinstance(part, cst.Name))
    parts = [part for part in names if not isinstance(module.parent(part), (cst.Attribute, cst.Subscript))]
    for binding in dict.fromkeys(b for part in parts for b in module.bindings(part) if b.kind == "parameter"):
        function = module.function_of(binding.node)
        if function is not None and is_init(function):
            for site in sites_of(module, function):
                yield from _texts_given((site,), function, binding.name)


def _is_drawn(module: Module, path: cst.BaseExpression) -> bool:
    """Whether a part of the path is random, drawn before the function seeds: Python and NumPy seed each process by
    itself. One that a program forks has the state of its parent."""
    drawn = [
        call
        for value in values_of(module, path)
        for call in subtree(value)
        if isinstance(call, cst.Call) and _DRAWS.match(module.qualified(call.func))
    ]
    if not drawn or module.file.shows(_FORKS) or not module.file.holds("__main__"):
        return False
    if any(module.qualified(call.func).startswith(_SYSTEM) for call in drawn):
        return True
    facts = module.facts
    if facts is None:
        return False
    # Of the whole file: a rule sees the functions alone that it may find something in.
    named = (n.lineno for n in calls_below(facts.tree) if "seed" in last_part(n.func).lower())
    seeds = {line: function_at(facts.tree, line) for line in named}
    # What a function does that is named for it, it does where it is called.
    seeds = {line: f for line, f in seeds.items() if f is None or "seed" not in f.name.lower()}
    lines = [module.span(call).line for call in drawn]
    around = {*seeds.values(), *(function_at(facts.tree, line) for line in lines)}
    return len(around) == 1 and min(seeds, default=max(lines) + 1) > max(lines)


def _is_shared(module: Module, call: cst.Call, place: int, parameter: cst.Param) -> bool:
    """Whether all ranks that make a call give a parameter the same path, as far as the caller itself says it."""
    value = argument(call, place, parameter.name.value) or parameter.default
    if value is None or any(arg.star for arg in call.args) or is_own_path(module, value):
        return False
    return not isinstance(value, cst.Name) or all(b.kind != "parameter" for b in module.bindings(value))


def _comes_from_loop(way: tuple[CallSite, ...], function: cst.FunctionDef | FunctionNode, name: str) -> bool:
    """Whether the calls that lead to a function give one of its parameters what a loop over more than numbers gives."""
    value = way[0].given(function, name) if way else None
    around = way[0].around if way else None
    names = names_of(value) if value is not None else frozenset()
    for loop in (n for n in walk(around) if isinstance(n, ast.For)) if around is not None and names else ():
        over_numbers = isinstance(loop.iter, ast.Call) and last_part(loop.iter.func) == "range"
        if names_of(loop.target) & names and not over_numbers:
            return True
    return around is not None and any(_comes_from_loop(way[1:], around, each) for each in names)


def _texts_given(way: tuple[CallSite, ...], function: cst.FunctionDef | FunctionNode, name: str) -> Iterator[str]:
    """What calls that lead to a function, the last one first, give one of its parameters, and what the names in that
    are assigned."""
    value = way[0].given(function, name) if way else None
    around = way[0].around if way else None
    if value is None or around is None:
        return
    yield ast.unparse(value)
    for each in sorted(names_of(value)):
        yield from map(ast.unparse, assigned_to(each, around))
        yield from _texts_given(way[1:], around, each)


def _are_made_for_process(project: Project, facts: ModuleFacts, names: Iterable[str]) -> bool:
    """Whether a file assigns one of the names, dotted ones too, what a function of the project makes of its process
    alone, such as a random identifier: ``args.run = name_of_run(args)``."""
    made: frozenset[str] = project.remember(
        ("made for a process",), lambda: frozenset(_made(project, facts)), facts.kept
    )
    return not made.isdisjoint(names)


def _made(project: Project, facts: ModuleFacts) -> Iterator[str]:
    for node in walk(facts.tree):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and _is_own(project, facts, node.value):
            yield from filter(None, map(dotted_ast, node.targets))


def _is_own(project: Project, facts: ModuleFacts, call: ast.Call) -> bool:
    found = project.meanings.definition(project.meanings.of(facts, call.func))
    return found is not None and isinstance(found[1], FunctionNode) and _OWN.search(text_of(found[1])) is not None
