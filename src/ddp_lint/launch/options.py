"""What the options of a program are: what its parser has read, wherever the program hands it on."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from ddp_lint.launch.search import imported_through
from ddp_lint.launch.started import is_started
from ddp_lint.launch.texts import gathered
from ddp_lint.project import Project
from ddp_lint.project.facts import ModuleFacts
from ddp_lint.project.parts import inside
from ddp_lint.project.uses import uses
from ddp_lint.source.imports import dotted_ast
from ddp_lint.source.syntax import FunctionNode, argument_at, calls_below, is_none, parameters, positional, walk

#: Functions that hand the options on, one to the other, which are gone through.
_DEPTH = 4
#: Files that hold the name of a function; where more do, the name says too little to look for its calls.
_FILES = 25
#: Letters by which a command may pass an option that begins with them.
_TELLING = 4
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


class Options(NamedTuple):
    """The names of the options that a parser has read, those that are False, None or 0 where no command passes them,
    each with that, and the modules that they have come through."""

    names: frozenset[str]
    off: frozenset[tuple[str, bool | int | float | str | None]]
    through: frozenset[str]


#: None where they are not known.
_Options = Options | None


def options_of(project: Project, facts: ModuleFacts, function: FunctionNode | None, name: str) -> _Options:
    """The options that a name has in a function, or outside of any; None where they are not known."""
    if not project.remember(("parses options",), lambda: project.contents.holding("parse_args(")):
        return None
    return _namespace(project, facts, function, name, _DEPTH)


class _Naming(dict[type[ast.AST], tuple[str, ...]]):
    """The fields of a type that hold a name which it binds: of definitions, handlers, patterns and type parameters."""

    def __missing__(self, kind: type[ast.AST]) -> tuple[str, ...]:
        found = self[kind] = tuple(name for name in ("name", "rest") if name in kind._fields)
        return found


_NAMING = _Naming()


class _Binding(dict[type[ast.AST], bool]):
    """Whether nodes of a type can bind names: most can not, and each node of a file is asked."""

    def __missing__(self, kind: type[ast.AST]) -> bool:
        named = (ast.Name, ast.arg, ast.alias, ast.Global, ast.Nonlocal)
        self[kind] = issubclass(kind, named) or bool(_NAMING[kind])
        return self[kind]


_BINDING = _Binding()


def bound_by(node: ast.AST) -> Sequence[str]:
    """The names that a node binds itself."""
    if not _BINDING[node.__class__]:
        return ()
    if isinstance(node, ast.Name):
        return () if isinstance(node.ctx, ast.Load) else (node.id,)
    if isinstance(node, ast.arg):
        return (node.arg,)
    if isinstance(node, ast.alias):
        return (node.asname or node.name.partition(".")[0],)
    if isinstance(node, (ast.Global, ast.Nonlocal)):
        return node.names
    return [value for field in _NAMING[node.__class__] if isinstance(value := getattr(node, field), str)]


def is_set(project: Project, word: str, among: frozenset[str]) -> bool:
    """Whether some modules, or what they import, set an attribute of that name, or any, or have it as a text."""
    sets = re.compile(rf"\.{word}\s*(?:=(?!=)|:[^=\n]+=|,[^=\n]*=(?!=)|\+=)|[\"']-*{word}[\"']")
    return any(each.file.shows(_MERGES) or sets.search(each.file.text) for each in _imported(project, among))


def _imported(project: Project, among: frozenset[str]) -> Iterator[ModuleFacts]:
    """Some modules, and what they import, directly or through others."""
    programs = [facts for name in sorted(among) if (facts := project.modules.facts(name)) is not None]
    names = frozenset[str]().union(*(imported_through(project, facts) for facts in programs))
    return (facts for name in sorted(names) if (facts := project.modules.facts(name)) is not None)


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
    given = [(None, value) for value in _given(inside(facts.tree), name) if not is_none(value)]
    found = [_from_value(project, facts, around, value, depth) for around, value in given]
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
        declares = isinstance(node, (ast.arg, ast.Global, ast.Nonlocal))
        if not declares and name in bound_by(node) and id(node) not in plain:
            yield None


def _method(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else ""


def _joined(found: Iterable[_Options]) -> _Options:
    all_found = [*found]
    known = [each for each in all_found if each is not None]
    if not known or len(known) < len(all_found):
        return None
    names = frozenset[str]().union(*(each.names for each in known))
    on = frozenset[str]().union(*(each.names - {name for name, _ in each.off} for each in known))
    off = (pair for each in known for pair in each.off if pair[0] not in on)
    return Options(names, frozenset(off), frozenset[str]().union(*(each.through for each in known)))


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
    found = project.meanings.definition(project.meanings.of(facts, value.func))
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
    paths, whole = project.contents.holding(word), f"{facts.name}.{word}"
    if len(paths) > _FILES:
        return None
    places = [each.arg for each in positional(function)]
    place = places.index(name) if name in places else len(places)
    found: list[_Options] = []
    for path in paths:
        user = project.modules.facts_of(path)
        for use in uses(user, word) if user is not None and not user.source.is_test else ():
            if user is None or project.meanings.of(user, use.node) != whole:
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


def default_of(project: Project, facts: ModuleFacts, function: FunctionNode | None, value: ast.expr) -> ast.expr | None:
    """What an option that a function reads (``args.device``) is where no command passes it, None where that is not
    known."""
    if not isinstance(value, ast.Attribute) or not isinstance(value.value, ast.Name):
        return None
    options, word = options_of(project, facts, function, value.value.id), value.attr
    if options is None or word not in options.names:
        return None
    sets = re.compile(rf"(?<!\bself)(?<!\bcls)\.{word}\s*=(?!=)")  # an object may keep its own under that name
    if any(each.file.shows(_MERGES) or sets.search(each.file.text) for each in _imported(project, options.through)):
        return None
    defining = _defining(project, options, word)
    given = next((k.value for k in defining[0].keywords if k.arg == "default"), None) if len(defining) == 1 else None
    return given if isinstance(given, ast.Constant) else None


def _defining(project: Project, options: Options, word: str) -> list[ast.Call]:
    """The calls that define an option of that name, in the modules that the options have come through."""
    homes = [facts for name in sorted(options.through) if (facts := project.modules.facts(name)) is not None]
    calls = (call for facts in homes for call in calls_below(facts.tree) if _method(call) == "add_argument")
    return [call for call in calls if word in (_defined_by(call) or ())]


def has_value(project: Project, options: Options, word: str) -> bool:
    """Whether an option is None in no run: its parser gives it a value where no command does, and no code takes it."""
    defining = _defining(project, options, word)
    given = [next((k.value for k in call.keywords if k.arg == "default"), None) for call in defining]
    plain = all(k.arg not in ("action", "type") or _is_plain_type(k.value) for call in defining for k in call.keywords)
    takes = re.compile(rf"\.{word}\s*=\s*None\b|[\"']{word}[\"']\s*[,\]:]")
    if not given or not plain or not all(isinstance(each, ast.Constant) and each.value is not None for each in given):
        return False
    return not any(
        each.file.shows(_MERGES) or takes.search(each.file.text) for each in _imported(project, options.through)
    )


def _is_plain_type(value: ast.expr) -> bool:
    return isinstance(value, ast.Name) and value.id in ("int", "str", "float", "bool")


def _is_parser(facts: ModuleFacts, value: ast.expr | None) -> bool:
    if not isinstance(value, ast.Call) or facts.qualified(value.func) != "argparse.ArgumentParser":
        return False
    return all(keyword.arg not in (None, "parents", "argument_default") for keyword in value.keywords)


def _filled(facts: ModuleFacts, scope: ast.AST, parser: str) -> _Options:
    """The options that a parser has by the calls in a scope, None where it is handed on."""
    nodes = list(walk(scope))
    names = {parser, *_groups(nodes, parser)}
    options: set[str] = set()
    off: set[tuple[str, bool | int | float | str | None]] = set()
    on: set[str] = set()
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
        left = dict(_left_off(call, defined))
        off.update(left.items())
        on.update(name for name in defined if name not in left)
    used = sum(isinstance(n, ast.Name) and n.id in names and isinstance(n.ctx, ast.Load) for n in nodes)
    if used != seen or not options:
        return None
    return Options(frozenset(options), frozenset(o for o in off if o[0] not in on), frozenset({facts.name}))


def _groups(nodes: list[ast.AST], parser: str) -> Iterator[str]:
    assigned = (n for n in nodes if isinstance(n, ast.Assign) and isinstance(n.value, ast.Call))
    for node in assigned:
        call = node.value
        if isinstance(call, ast.Call) and _method(call) in _GROUPS and isinstance(call.func, ast.Attribute):
            of_parser = isinstance(call.func.value, ast.Name) and call.func.value.id == parser
            yield from (t.id for t in node.targets if of_parser and isinstance(t, ast.Name))


def _left_off(call: ast.Call, names: Iterable[str]) -> Iterator[tuple[str, bool | int | float | str | None]]:
    """The options that a call defines which are off where no command passes them, with what they are then."""
    named = {keyword.arg: keyword.value for keyword in call.keywords}
    action, default = named.get("action"), named.get("default", ast.Constant(None))
    how = action.value if isinstance(action, ast.Constant) else None if action is None else "other"
    # What a command has of one letter may be an option of another program.
    long = all(isinstance(a, ast.Constant) and str(a.value).startswith("--") for a in call.args)
    if _method(call) != "add_argument" or not long or "required" in named or how not in (None, "store", "store_true"):
        return
    if isinstance(default, ast.Constant) and not default.value and not isinstance(default.value, (bytes, complex)):
        value = False if how == "store_true" else default.value
        yield from ((name, value) for name in names if isinstance(value, (bool, int, float, str, type(None))))


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


# ---- commands


def is_left_off(project: Project, options: Options, word: str) -> bool:
    """Whether commands of the project start a program, and nothing turns an option of it on: neither they nor another
    text or file pass it, and no code sets it."""
    homes = [facts for name in sorted(options.through) if (facts := project.modules.facts(name)) is not None]
    if not any(is_started(project, facts) for facts in homes):
        return False
    return not _is_passed(project, word) and not _is_assigned(project, word, options.through)


def _is_assigned(project: Project, word: str, among: frozenset[str]) -> bool:
    sets = re.compile(rf"\.{word}\s*(?:=(?!=)|:[^=\n]+=|,[^=\n]*=(?!=)|\+=)|[\"']{word}[\"']")
    return any(each.file.shows(_MERGES) or sets.search(each.file.text) for each in _imported(project, among))


def _is_passed(project: Project, word: str) -> bool:
    """Whether a text of the project holds an option, or its code does more than to define it."""
    flag = f"--{word.replace('_', '-')}"
    flags = project.remember(("options in texts",), lambda: gathered(project, "options", _options_of))
    if flags is None or any(word.startswith(each) for each in flags if len(each) >= _TELLING):
        return True  # argparse takes the beginning of an option, too
    given = re.compile(rf"(?<!add_argument\()[\"' ]--{word.replace('_', '[-_]')}(?![\w-])")
    paths = dict.fromkeys((*project.contents.holding(flag), *project.contents.holding(f"--{word}")))
    return any(given.search(_DEFINES.sub("", project.contents.text(path) or "")) for path in paths)


#: A call that defines an option, up to its name.
_DEFINES = re.compile(r"add_argument\(\s*(?:[\"']-\w[\"'],\s*)?[\"']--[\w-]+[\"']")


def holding_options(text: str) -> str:
    """The options that a text may pass, and the keys that it may set, as the names of attributes (`parts.TESTS`)."""
    return " ".join(sorted(_options_of(text)))


def _options_of(text: str) -> set[str]:
    return {(a or b).replace("-", "_") for a, b in _OPTION.findall(text)}


_OPTION = re.compile(r"--([A-Za-z][\w-]*)|(?m:^[ \t\"'-]*)([A-Za-z_][\w-]*)[\"']?[ \t]*[:=]")
