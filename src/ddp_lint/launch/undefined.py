"""Expressions that fail wherever they are evaluated: names that a file does not have, options that no parser defines,
calls that a function of the project does not take."""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from ddp_lint.launch.search import imported_through
from ddp_lint.project import Project
from ddp_lint.project.facts import ModuleFacts
from ddp_lint.project.parts import inside
from ddp_lint.project.uses import uses
from ddp_lint.source.imports import dotted_ast
from ddp_lint.source.syntax import FunctionNode, argument_at, below, defaults, parameters, positional, walk

#: Functions that hand the options on, one to the other, which are gone through.
_DEPTH = 4
#: Files that hold the name of a function; where more do, the name says too little to look for its calls.
_FILES = 25
#: Names that a file has without binding them: also those that a shell, a profiler or gettext brings.
_BROUGHT = frozenset(
    {*dir(builtins), *["__file__", "__path__", "__builtins__", "__class__", "__annotations__", "__conditional__"]}
)
_SHELL = frozenset(
    {"get_ipython", "display", "profile", "_", "exit", "quit", "copyright", "credits", "license", "reveal_type"}
)
#: How a file gets names that it does not bind.
_MAKES_NAMES = re.compile(
    r"\b(?:globals|exec|locals|vars)\(|__builtins__|\bbuiltins\b|get_ipython|_getframe|^[ \t]*[%!]\w", re.M
)
#: How a program gives the options what its parser does not define.
_MERGES = re.compile(
    r"(?<![\w.])setattr\((?!\s*(?:self|cls|\w*model|\w*module|layer|parent|m|torch|nn)\b)|__setattr__\("
    r"|(?<!self)\.__dict__\s*(?:\.update|\[|=[^=]|\|=)"
    r"|\bvars\([\w.]+\)\s*(?:\.update|\[[^\]]*\]\s*=[^=])"
)
_GROUPS = ("add_argument_group", "add_mutually_exclusive_group")
_PARSES = ("parse_args", "parse_known_args")
#: Methods of a parser, or of a group of it, that define no options but those that are seen.
_HARMLESS = ("print_help", "print_usage", "error", "exit", "format_help", "format_usage", "get_default")
#: Decorators after which a function takes what it took before.
_SAME = re.compile(r"torch\.\w.*|(\w+\.)*record")


class _Read(NamedTuple):
    """The names of the options that a parser has read, and the modules that they have come through."""

    names: frozenset[str]
    through: frozenset[str]


#: None where they are not known.
_Options = _Read | None


# ---- names


def unbound(project: Project, facts: ModuleFacts) -> frozenset[ast.AST]:
    """The names that a file reads and binds nowhere, nor gets from a module that it imports all of."""
    return project.remember(("unbound names",), lambda: frozenset(_unbound(project, facts)), facts.kept)


def _unbound(project: Project, facts: ModuleFacts) -> Iterator[ast.Name]:
    path = project.find(facts.name) if facts.name else None
    if path is None or path.suffix != ".py" or facts.source.is_test or facts.file.shows(_MAKES_NAMES):
        return
    bound: set[str] = {*_BROUGHT}
    loaded: list[ast.Name] = []
    idle: set[ast.AST] = set()
    for node in walk(facts.tree):
        bound.update(_bound_by(node))
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            loaded.append(node)
        for annotation in (getattr(node, "annotation", None), getattr(node, "returns", None)):
            idle.update(walk(annotation) if isinstance(annotation, ast.AST) else ())
    for each in loaded:
        if each.id not in bound and each not in idle and not _may_come_by_star(project, facts, each.id):
            yield each


def _bound_by(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Name):
        if not isinstance(node.ctx, ast.Load):
            yield node.id
    elif isinstance(node, ast.arg):
        yield node.arg
    elif isinstance(node, ast.alias):
        yield node.asname or node.name.partition(".")[0]
    elif isinstance(node, (ast.Global, ast.Nonlocal)):
        yield from node.names
    else:
        for field in ("name", "rest"):  # definitions, handlers, patterns, type parameters
            value = getattr(node, field, None)
            if isinstance(value, str):
                yield value


def _may_come_by_star(project: Project, facts: ModuleFacts, name: str, depth: int = _DEPTH) -> bool:
    """Whether a file may get a name from a module that it imports all of: from any that is not the project's."""
    for star in facts.imports.stars:
        source = project.facts(star)
        if source is None or not depth or source.file.holds(name) or source.file.shows(_MAKES_NAMES):
            return True
        if _may_come_by_star(project, source, name, depth - 1):
            return True
    return False


# ---- options


def undefined_option(project: Project, facts: ModuleFacts, function: FunctionNode | None, node: ast.Attribute) -> bool:
    """Whether an attribute, read in a function or outside of any, is of what a parser has read, which defines no such
    option: ``args.learning_rate`` where there is ``--lr`` alone."""
    name, word = node.value, node.attr
    if not isinstance(name, ast.Name) or not isinstance(node.ctx, ast.Load) or word.startswith("_"):
        return False
    if not project.remember(("parses options",), lambda: project.holding("parse_args(")):
        return False
    options = _namespace(project, facts, function, name.id, _DEPTH)
    return options is not None and word not in options.names and not _is_set(project, word, options.through)


def _is_set(project: Project, word: str, among: frozenset[str]) -> bool:
    """Whether some modules, or what they import, set an attribute of that name, or any, or have it as a text."""
    sets = re.compile(rf"\.{word}\s*(?:=(?!=)|:[^=\n]+=|,[^=\n]*=(?!=)|\+=)|[\"']-*{word}[\"']")
    return any(each.file.shows(_MERGES) or sets.search(each.file.text) for each in _imported(project, among))


def _imported(project: Project, among: frozenset[str]) -> Iterator[ModuleFacts]:
    """Some modules, and what they import, directly or through others."""
    programs = [facts for name in sorted(among) if (facts := project.facts(name)) is not None]
    names = frozenset[str]().union(*(imported_through(project, facts) for facts in programs))
    return (facts for name in sorted(names) if (facts := project.facts(name)) is not None)


def _namespace(project: Project, facts: ModuleFacts, function: FunctionNode | None, name: str, depth: int) -> _Options:
    """The options that a name has in a function, None where it is not what a parser gives alone."""
    if depth <= 0 or not facts.name:
        return None
    # What is not found within a depth may be within another one.
    key = ("namespace", depth, facts.name, function.name if function else "", function.lineno if function else 0, name)
    found: _Options = project.remember(key, lambda: _namespace_of(project, facts, function, name, depth))
    return found._replace(through=found.through | {facts.name}) if found is not None else None


def _namespace_of(
    project: Project, facts: ModuleFacts, function: FunctionNode | None, name: str, depth: int
) -> _Options:
    scope = function if function is not None else facts.tree
    given = list(_given(inside(scope), name))
    declared = [n for n in inside(scope) if isinstance(n, (ast.Global, ast.Nonlocal)) and name in n.names]
    if function is not None and name in {each.arg for each in parameters(function)}:
        return _from_callers(project, facts, function, name, depth) if not given else None
    if function is not None and (declared or not given):
        return None if _is_nested(facts, function) else _of_file(project, facts, name, depth)
    if function is None:
        return _of_file(project, facts, name, depth)
    return _joined(_from_value(project, facts, function, value, depth) for value in given)


def _is_nested(facts: ModuleFacts, function: FunctionNode) -> bool:
    """Whether a function may have a name from another one around it."""
    around = (n for n in walk(facts.tree) if isinstance(n, FunctionNode) and n is not function)
    return any(n.lineno < function.lineno <= (n.end_lineno or n.lineno) for n in around)


def _of_file(project: Project, facts: ModuleFacts, name: str, depth: int) -> _Options:
    """The options of a name at the top of a file, also where a function sets it that declares it as global."""
    found = [_from_value(project, facts, None, value, depth) for value in _given(inside(facts.tree), name)]
    for node in walk(facts.tree):
        if isinstance(node, FunctionNode):
            nodes = inside(node)
            if any(isinstance(n, ast.Global) and name in n.names for n in nodes):
                found += [_from_value(project, facts, node, value, depth) for value in _given(nodes, name)]
    return _joined(found)


def _given(nodes: Iterable[ast.AST], name: str) -> Iterator[ast.expr | None]:
    """What a name is given: None for what is no plain assignment. The first of two that are unpacked counts."""
    plain: set[int] = set()
    nodes = list(nodes)
    for node in nodes:
        if not isinstance(node, ast.Assign) or len(node.targets) != 1:
            continue
        target = node.targets[0]
        first = target.elts[0] if isinstance(target, ast.Tuple) and target.elts else target
        known = first is target or (isinstance(node.value, ast.Call) and _method(node.value) == "parse_known_args")
        if known and isinstance(first, ast.Name) and first.id == name:
            plain.add(id(first))
            yield node.value
    for node in nodes:
        if not isinstance(node, ast.arg) and name in _bound_by(node) and id(node) not in plain:
            yield None


def _method(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else ""


def _joined(found: Iterable[_Options]) -> _Options:
    all_found = [*found]
    known = [each for each in all_found if each is not None]
    if not known or len(known) < len(all_found):
        return None
    names, through = (frozenset[str]().union(*each) for each in zip(*known, strict=True))
    return _Read(names, through)


def _from_value(
    project: Project, facts: ModuleFacts, function: FunctionNode | None, value: ast.expr | None, depth: int
) -> _Options:
    if isinstance(value, ast.Name):
        return _namespace(project, facts, function, value.id, depth - 1)
    if not isinstance(value, ast.Call) or depth <= 0:
        return None
    if _method(value) in _PARSES and isinstance(value.func, ast.Attribute):
        more = len(value.args) > 1 or any(keyword.arg != "args" for keyword in value.keywords)
        return None if more else _parser_options(facts, function, value.func.value)
    found = project.definition(project.meaning(facts, value.func))
    home, made = found if found is not None else (facts, None)
    if not isinstance(made, FunctionNode) or made.decorator_list:
        return None
    returned = [n.value for n in inside(made) if isinstance(n, ast.Return)]
    return _joined(_from_value(project, home, made, each, depth - 1) for each in returned)


def _from_callers(project: Project, facts: ModuleFacts, function: FunctionNode, name: str, depth: int) -> _Options:
    """The options that all callers of a function at the top of a file give a parameter, also those that start a process
    with it."""
    word = function.name
    if facts.definitions.get(word) is not function:
        return None
    if any(not _SAME.fullmatch(facts.qualified(d) or dotted_ast(d)) for d in function.decorator_list):
        return None
    paths, whole = project.holding(word), f"{facts.name}.{word}"
    if len(paths) > _FILES:
        return None
    places = [each.arg for each in positional(function)]
    place = places.index(name) if name in places else len(places)
    found: list[_Options] = []
    for path in paths:
        user = project.facts_of(path)
        for use in uses(user, word) if user is not None and not user.source.is_test else ():
            if user is None or project.meaning(user, use.node) != whole:
                continue
            call = use.call
            value = argument_at(call, place, name) if call is not None else _started_with(use.given, use.node, place)
            options = (
                _namespace(project, user, use.around, value.id, depth - 1) if isinstance(value, ast.Name) else None
            )
            if options is None:
                return None
            found.append(options)
    return _joined(found)


def _started_with(call: ast.Call | None, function: ast.AST, place: int) -> ast.expr | None:
    """What the function gets that a call starts in other processes: ``spawn(work, args=(args,), nprocs=2)``."""
    if call is None:
        return None
    named = {keyword.arg: keyword.value for keyword in call.keywords}
    last = dotted_ast(call.func).rpartition(".")[2]
    given: ast.expr | None = named.get("args")
    if last == "spawn" and (named.get("fn") is function or call.args[:1] == [function]):
        place -= 1
        given = given or (call.args[1] if len(call.args) > 1 else None)
    elif last != "Process" or named.get("target") is not function:
        return None
    return given.elts[place] if isinstance(given, ast.Tuple) and 0 <= place < len(given.elts) else None


def _parser_options(facts: ModuleFacts, function: FunctionNode | None, parser: ast.expr) -> _Options:
    """The options of a parser that is made and filled in one function, or at the top of the file."""
    if not isinstance(parser, ast.Name):
        return None
    for scope in (function, facts.tree):
        if scope is None:
            continue
        made = list(_given(inside(scope), parser.id))
        if made:
            return _filled(facts, scope, parser.id) if len(made) == 1 and _is_parser(facts, made[0]) else None
    return None


def _is_parser(facts: ModuleFacts, value: ast.expr | None) -> bool:
    if not isinstance(value, ast.Call) or facts.qualified(value.func) != "argparse.ArgumentParser":
        return False
    return all(keyword.arg not in (None, "parents", "argument_default") for keyword in value.keywords)


def _filled(facts: ModuleFacts, scope: ast.AST, parser: str) -> _Options:
    """The options that a parser has by the calls in a scope, None where it is handed on."""
    nodes = list(walk(scope))
    names = {parser, *_groups(nodes, parser)}
    options: set[str] = set()
    seen = 0
    for call in (n for n in nodes if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute)):
        of = call.func.value if isinstance(call.func, ast.Attribute) else None
        if isinstance(of, ast.Call) and _method(of) in _GROUPS:  # ``parser.add_argument_group("x").add_argument(..)``
            return None
        if not isinstance(of, ast.Name) or of.id not in names:
            continue
        defined = _defined_by(call)
        if defined is None:
            return None
        seen += 1
        options.update(defined)
    used = sum(isinstance(n, ast.Name) and n.id in names and isinstance(n.ctx, ast.Load) for n in nodes)
    return _Read(frozenset(options), frozenset({facts.name})) if used == seen and options else None


def _groups(nodes: list[ast.AST], parser: str) -> Iterator[str]:
    assigned = (n for n in nodes if isinstance(n, ast.Assign) and isinstance(n.value, ast.Call))
    for node in assigned:
        call = node.value
        if isinstance(call, ast.Call) and _method(call) in _GROUPS and isinstance(call.func, ast.Attribute):
            of_parser = isinstance(call.func.value, ast.Name) and call.func.value.id == parser
            yield from (t.id for t in node.targets if of_parser and isinstance(t, ast.Name))


def _defined_by(call: ast.Call) -> Iterable[str] | None:
    """The options that a call of a parser, or of a group of it, defines; None where that is not known."""
    method = _method(call)
    if method in (*_GROUPS, *_PARSES, *_HARMLESS):
        return ()
    named = {keyword.arg: keyword.value for keyword in call.keywords}
    if None in named:
        return None
    if method == "set_defaults":
        return [name for name in named if name is not None]
    if method != "add_argument" or not all(isinstance(a, ast.Constant) and isinstance(a.value, str) for a in call.args):
        return None
    action = named.get("action")
    if action is not None and not isinstance(action, ast.Constant) and not dotted_ast(action).startswith("argparse."):
        return None
    if "dest" in named:
        dest = named["dest"]
        return [dest.value] if isinstance(dest, ast.Constant) and isinstance(dest.value, str) else None
    flags = [str(a.value) for a in call.args if isinstance(a, ast.Constant)]
    long = next((f for f in flags if f.startswith("--")), flags[0] if flags else "")
    return [long.lstrip("-").replace("-", "_")] if long else None


# ---- calls


def is_refused(project: Project, facts: ModuleFacts, call: ast.Call) -> bool:
    """Whether a function or a class of the project does not take the arguments of a call: it lacks one, or has one too
    many."""
    if any(isinstance(a, ast.Starred) for a in call.args) or any(keyword.arg is None for keyword in call.keywords):
        return False
    found = project.definition(project.meaning(facts, call.func)) if dotted_ast(call.func) else None
    if found is None or found[1].decorator_list or found[0].source.is_test:
        return False
    taking: ast.AST | None = found[1]
    bound = isinstance(taking, ast.ClassDef)
    if isinstance(taking, ast.ClassDef):
        taking = _constructor(taking)
    if not isinstance(taking, FunctionNode) or taking.decorator_list or not _is_only_one(found[0], found[1].name):
        return False
    return _does_not_take(taking, call, bound)


def _is_only_one(facts: ModuleFacts, name: str) -> bool:
    """Whether a file binds a name at its top once: of two definitions the last one counts."""
    return sum(name in _bound_by(node) for node in inside(facts.tree)) == 1 and not facts.file.shows(_MAKES_NAMES)


def _constructor(owner: ast.ClassDef) -> FunctionNode | None:
    """The `__init__` that a class has itself; none where another way to make objects may come first."""
    if owner.keywords or any(
        dotted_ast(b).rpartition(".")[2] not in ("Module", "object", "Dataset") for b in owner.bases
    ):
        return None
    methods = [n for n in owner.body if isinstance(n, FunctionNode) and n.name in ("__init__", "__new__")]
    others = [n for n in below(owner) if isinstance(n, (ast.If, ast.Try))]
    return methods[0] if len(methods) == 1 and methods[0].name == "__init__" and not others else None


def _does_not_take(function: FunctionNode, call: ast.Call, bound: bool) -> bool:
    places = [each.arg for each in positional(function)][bound:]
    only_placed = {each.arg for each in function.args.posonlyargs}
    names = {each.arg for each in parameters(function)} - only_placed
    given = {keyword.arg for keyword in call.keywords if keyword.arg is not None}
    if function.args.kwarg is None and not given <= names:
        return True
    if function.args.vararg is None and len(call.args) > len(places):
        return True
    filled = given | set(places[: len(call.args)])
    needed = [each.arg for each, value in defaults(function.args) if value is None][bound:]
    return any(name not in filled for name in needed)
