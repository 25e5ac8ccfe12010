"""Which lines one rank alone runs: by the tests and decorators around them, and by the calls that lead to them."""

from __future__ import annotations

import ast
import dataclasses
import functools
import re
from collections.abc import Iterable, Iterator, Sequence

import libcst as cst

from ddp_lint.knowledge import frameworks, table
from ddp_lint.knowledge.project_names import rank_value
from ddp_lint.launch.callers import CallSite, call_sites, sites_of
from ddp_lint.launch.joining import is_before_ranks
from ddp_lint.launch.one_process import is_of_several
from ddp_lint.launch.ranks import comes_alone, program_of_ranks
from ddp_lint.launch.search import holds_by, importers
from ddp_lint.launch.texts import is_installed
from ddp_lint.launch.unused import is_plain
from ddp_lint.project import Project
from ddp_lint.project.facts import ModuleFacts
from ddp_lint.project.parts import assigned_to
from ddp_lint.source import dotted
from ddp_lint.source.control_flow import asked_for, conditions, conjuncts, exits_inside
from ddp_lint.source.imports import dotted_ast, last_part
from ddp_lint.source.occurring import occurs
from ddp_lint.source.parsing import parse_expression
from ddp_lint.source.syntax import (
    FunctionNode,
    below,
    calls_below,
    function_at,
    is_none,
    statements,
    text_of,
    walk,
)
from ddp_lint.view import Module
from ddp_lint.view.scopes import Binding


def _decorators() -> tuple[str, ...]:
    """Decorators that keep a function to one rank."""
    return (*table("launch")["one_rank"]["decorators"], *frameworks.every(lambda each: each.launch.decorators))


@functools.cache
def _patterns(kind: str) -> re.Pattern[str]:
    return re.compile("|".join(table("launch")["one_rank"][kind]), re.IGNORECASE)


def on_one_rank(module: Module, node: cst.CSTNode) -> bool:
    """Whether a test or a decorator around `node` keeps it to one rank (of the job, a node or a group)."""
    if any(_is_for_first(module, test, taken) for test, taken in conditions(module, node)):
        return True
    exits = exits_inside(module, node)  # ``if is_initialized(): if get_rank() != 0: return``
    if any(is_of_several(module, outer) and _is_for_first(module, inner, False) for outer, inner in exits):
        return True
    function = module.function_of(node)
    return function is not None and any(_keeps_its_function_to_one(module, d) for d in function.decorators)


def _keeps_its_function_to_one(module: Module, decorator: cst.Decorator) -> bool:
    """Whether one rank alone runs what has a decorator: by its name, or as one of the project that calls the function
    that it is given under a test of the rank."""
    inner = decorator.decorator
    name = dotted(inner.func if isinstance(inner, cst.Call) else inner)
    meant = "" if isinstance(inner, cst.Call) else module.qualified(inner) or module.meaning(name)
    return _is_for_one_rank(name, meant, module.project, own_ranks(module))


def _is_for_one_rank(name: str, meant: str, project: Project | None, own: tuple[str, ...]) -> bool:
    """The same of a decorator by its name and what it means, '' where it is made by a call; `own`: see `own_ranks`."""
    if name.endswith(_decorators()):
        return True
    found = project.meanings.definition(meant) if project is not None and meant else None
    definition = found[1] if found is not None else None
    if not isinstance(definition, FunctionNode) or not definition.args.args:
        return False
    return _are_on_one_rank(_calls_of(definition.args.args[0].arg, definition.body, _Names(own)))


@dataclasses.dataclass(frozen=True)
class _Names:
    """What names say of code that is kept to one rank: `own` (see `own_ranks`), and decorators of the project, as the
    file `facts` names them; without it, decorators by their names alone."""

    own: tuple[str, ...] = ()
    project: Project | None = None
    facts: ModuleFacts | None = None

    def are_for_one_rank(self, decorators: Iterable[ast.expr]) -> bool:
        """Whether one of the decorators keeps what it is put on to one rank."""
        return any(map(self._is_for_one_rank, decorators))

    def _is_for_one_rank(self, decorator: ast.expr) -> bool:
        called = isinstance(decorator, ast.Call)
        name = dotted_ast(decorator.func if isinstance(decorator, ast.Call) else decorator)
        project, facts = self.project, self.facts
        meant = (
            project.meanings.of(facts, decorator) if project is not None and facts is not None and not called else ""
        )
        return _is_for_one_rank(name, meant, project, self.own)


#: What a name may be given that says which rank this is.
_TESTS = (cst.Comparison, cst.BooleanOperation, cst.UnaryOperation)


def _is_for_first(module: Module, test: cst.BaseExpression, taken: bool) -> bool:
    """`_keeps_to_first`, once for a test: many places are behind it."""
    known = module.for_first.get((test, taken))
    if known is None:
        known = module.for_first[test, taken] = _keeps_to_first(module, test, taken)
    return known


def _keeps_to_first(module: Module, test: cst.BaseExpression, taken: bool) -> bool:
    """Whether an outcome of a test keeps what follows to one rank: by its text, by what a function of the project
    returns, or by the test that a name was given: ``writes = get_rank() == 0``."""
    own = (*own_ranks(module), *_joined_as(module, test))
    if first_rank_test(module.code(test), taken, own):
        return True
    if isinstance(test, cst.UnaryOperation) and isinstance(test.operator, cst.Not):
        test, taken = test.expression, not taken
    return any(
        _is_given_one(module, part, taken, own)
        or _is_made_on_one(module, part, taken, own)
        or (taken and _asks_for_first(module, part))
        for part in (conjuncts(test) if taken else (test,))
    )


def _is_given_one(module: Module, name: cst.BaseExpression, taken: bool, own: tuple[str, ...]) -> bool:
    """Whether what a name is given keeps the outcome `taken` to one rank; a constant is that of one process:
    ``logs = True``, and ``logs = get_rank() == 0`` where there are several, or ``True`` under that test."""
    values = module.assignments(name)
    if not values:
        given = _given_elsewhere(module, name)
        tested = (isinstance(v, (ast.Compare, ast.BoolOp, ast.UnaryOp, ast.Call)) for v in given)
        return bool(given) and all(tested) and all(first_rank_test(text_of(v), taken, own) for v in given)
    tests = [v for v in values if not isinstance(v, cst.Name) or v.value not in ("True", "False")]
    if not tests:
        return taken and any(_is_set_on_first(module, v, own) for v in values)
    return all(_is_value_of_one(module, v, taken, own) for v in tests)


def _is_value_of_one(module: Module, value: cst.BaseExpression, taken: bool, own: tuple[str, ...]) -> bool:
    """Whether the outcome `taken` of a value that a name is given is that of one rank: a test, a call of a function of
    the project that makes one (``is_main_process(rank)``), or a setting that every file gives one."""
    if isinstance(value, _TESTS):
        return first_rank_test(module.code(value), taken, own)
    if isinstance(value, cst.Call):
        return taken and _asks_for_first(module, value)
    given = _given_to_entry(module, value) or _given_elsewhere(module, value)
    tested = all(isinstance(v, ast.Compare) for v in given)
    return bool(given) and tested and all(first_rank_test(text_of(v), taken, own) for v in given)


def _given_to_entry(module: Module, entry: cst.BaseExpression) -> tuple[ast.expr, ...]:
    """What the files of the project give the entry of that key: ``params["verbose"] = rank == 0``."""
    project, index = module.project, entry.slice[0].slice if isinstance(entry, cst.Subscript) else None
    key = index.value if isinstance(index, cst.Index) else None
    if project is None or not isinstance(key, cst.SimpleString):
        return ()
    name = str(key.evaluated_value)
    return project.remember(("given to an entry", name), lambda: _entries(project, name))


def _entries(project: Project, key: str) -> tuple[ast.expr, ...]:
    quoted = (f'"{key}"', f"'{key}'")
    if not any(project.contents.holding(f"[{each}] =") for each in quoted):
        return ()
    paths = dict.fromkeys(
        p for each in quoted for text in (f"[{each}] =", f"{each}:") for p in project.contents.holding(text)
    )
    held = (project.modules.facts_of(path) for path in paths)
    nodes = (node for facts in held if facts is not None for node in walk(facts.tree))
    return tuple(value for node in nodes for value in _values_of(node, key))


def _values_of(node: ast.AST, key: str) -> Iterator[ast.expr]:
    """What an assignment or a dictionary gives the entry of a key."""
    if isinstance(node, ast.Assign):
        subscripts = (target.slice for target in node.targets if isinstance(target, ast.Subscript))
        yield from (node.value for index in subscripts if isinstance(index, ast.Constant) and index.value == key)
    elif isinstance(node, ast.Dict):
        pairs = zip(node.keys, node.values, strict=True)
        yield from (value for name, value in pairs if isinstance(name, ast.Constant) and name.value == key)


def _given_elsewhere(module: Module, name: cst.BaseExpression) -> list[ast.expr]:
    """What functions of the file give an attribute of an object that they hand on: ``args.saves = is_master(args)``."""
    text = dotted(name) if isinstance(name, cst.Attribute) else ""
    found = bool(text) and f"{text} = " in module.file.text  # the search of all nodes is dear, and mostly in vain
    nodes = walk(module.facts.tree) if found and module.facts is not None else ()
    assigned = (node for node in nodes if isinstance(node, ast.Assign))
    return [node.value for node in assigned if any(dotted_ast(target) == text for target in node.targets)]


def _is_set_on_first(module: Module, value: cst.BaseExpression, own: tuple[str, ...]) -> bool:
    """``first = True`` under a test of the rank, which is ``False`` on the others."""
    set_there = isinstance(value, cst.Name) and value.value == "True"
    return set_there and any(first_rank_test(module.code(t), taken, own) for t, taken in conditions(module, value))


def _is_made_on_one(module: Module, test: cst.BaseExpression, taken: bool, own: tuple[str, ...]) -> bool:
    """Whether a test asks for an object that the first rank alone has: ``if writer is not None`` after
    ``writer = Writer() if rank == 0 else None``, here or in all callers that hand it over."""
    name, given = asked_for(test, taken)
    if not given or name is None:
        return False
    bound = module.bindings(name)
    values = [b.value for b in bound if b.kind == "assign" and b.value is not None]
    if not values or len(values) < len(bound):
        return len(bound) == 1 and _is_told_by_one(module, bound[0])
    made = [v for v in values if dotted(v) != "None"]
    if isinstance(name, cst.Attribute) and len(made) == 1:  # ``self.writer = writer``
        stored = module.bindings(made[0]) if isinstance(made[0], cst.Name) else ()
        return len(stored) == 1 and _is_told_by_one(module, stored[0])
    under = (any(first_rank_test(module.code(t), how, own) for t, how in conditions(module, v)) for v in made)
    return bool(made) and len(made) < len(values) and all(under)


def _is_told_by_one(module: Module, name: Binding) -> bool:
    """Whether a name is a parameter that says which rank this is: there on the first one alone, or its test."""
    return name.kind == "parameter" and (_is_handed_by_one(module, name) or _is_given_test(module, name))


def _is_given_test(module: Module, parameter: Binding) -> bool:
    """Whether calls of a function, or of the class whose `__init__` it is, give a parameter the test for the first
    rank, and no call anything else but a constant: ``Log(folder, enabled=rank == 0)``."""
    function = module.function_of(parameter.node)
    if function is None or dotted(parameter.value) not in ("", "None", "True", "False"):
        return False
    own = own_ranks(module)
    sites = [(site, site.given(function, parameter.name)) for site in sites_of(module, function)]
    given = [v for site, value in sites if value is not None for v in _values_at(site, value)]
    tests = [value for value in given if not isinstance(value, ast.Constant)]
    return bool(tests) and all(_tests_first(value, own) for value in tests)


def _values_at(site: CallSite, value: ast.expr) -> Sequence[ast.expr]:
    """What a call gives, or where that is a name that says nothing, what the name is assigned."""
    assigned = assigned_to(value.id, site.around or site.facts.tree) if isinstance(value, ast.Name) else ()
    return tuple(assigned) if assigned and not _tests_first(value, ()) else (value,)


def _is_handed_by_one(module: Module, parameter: Binding) -> bool:
    """Whether all calls of a function, or of the class whose `__init__` it is, give a parameter something on the first
    rank alone, and None on the others."""
    function = module.function_of(parameter.node)
    if function is None or dotted(parameter.value) not in ("", "None"):
        return False
    sites = sites_of(module, function)
    given = [(site, site.given(function, parameter.name)) for site in sites]
    present = [(site, value) for site, value in given if value is not None and not is_none(value)]
    return bool(present) and all(_is_from_first(module, site, value, len(sites)) for site, value in present)


def _is_from_first(module: Module, site: CallSite, value: ast.expr, calls: int) -> bool:
    """Whether what a call hands over is None except on the first rank: by its own test, by those around what its name
    is assigned, or by the test around the call, where others hand over nothing."""
    own = own_ranks(module)
    on_first = _on_first(module, site.facts)
    if calls > 1 and site.node in on_first:
        return True
    scope = site.around or site.facts.tree
    values = assigned_to(value.id, scope) if isinstance(value, ast.Name) else [value]
    present = [v for v in values if not is_none(v)]
    chosen = [isinstance(v, ast.IfExp) and is_none(v.orelse) and _tests_first(v.test, own) for v in present]
    if all(chosen):
        return bool(chosen)
    return len(present) < len(values) and all(each or v in on_first for each, v in zip(chosen, present, strict=True))


def _on_first(module: Module, facts: ModuleFacts) -> frozenset[ast.AST]:
    """The parts of expressions of a file that a test or a decorator keeps to one rank."""
    own = own_ranks(module)

    def found() -> frozenset[ast.AST]:
        names = _Names(own, module.project, facts)
        return frozenset(node for node, one_rank in _expressions(facts.tree.body, names) if one_rank)

    return module.project.remember(("on one rank", own), found, facts.kept) if module.project else found()


def is_on_first(module: Module, facts: ModuleFacts, node: ast.AST) -> bool:
    """Whether a test or a decorator keeps a part of an expression of any file of the project to one rank, by the names
    that `module` has for it."""
    return node in _on_first(module, facts)


def calls_of(module: Module, facts: ModuleFacts, name: str) -> Iterator[bool]:
    """For every call of a function, or of a method by its name, in a file: whether it is kept to one rank."""
    names = _Names(own_ranks(module), module.project, facts)
    yield from _calls_of(name, facts.tree.body, names)
    yield from _calls_of(f".{name}", facts.tree.body, names)


def _tests_first(test: ast.expr, own: tuple[str, ...]) -> bool:
    return first_rank_test(text_of(test), True, own)


def _asks_for_first(module: Module, test: cst.BaseExpression) -> bool:
    """Whether a test calls a function of the project that returns whether this is the first rank:
    ``return not is_initialized() or get_rank() == 0``, or ``if self.rank == 0: return True``."""
    for returned, taken in holds_by(module, test):
        either = returned.values if isinstance(returned, ast.BoolOp) else [returned]
        if any(first_rank_test(text_of(part), taken) for part in either):
            return True
    return False


def comes_on_one_rank(module: Module, node: cst.CSTNode) -> bool:
    """Whether one rank alone comes to `node`: by a test or a decorator around it, or by those around all calls of its
    function."""
    return on_one_rank(module, node) or called_on_one_rank(module, node)


def called_on_one_rank(module: Module, node: cst.CSTNode) -> bool:
    """Whether `node` is in a function that is called in this file, on one rank only, and in no other file that several
    ranks run; or in a method whose name no other file of the project has; or in either, if all calls in the project are
    kept to one rank or made in a program of one process."""
    function, facts, project = module.function_of(node), module.facts, module.project
    if function is None or facts is None or project is None:
        return False
    name = function.name.value
    method = module.class_of(function) is not None
    if not method and name not in facts.definitions:
        return False
    called = f".{name}" if method else name
    calls = functools.partial(_calls_of, called, facts.tree.body, _Names(own_ranks(module), project, facts))
    here = project.remember(("calls on one rank", called), lambda: _are_on_one_rank(calls()), facts.kept)
    if method:
        alone = here and len(project.contents.holding(name)) == 1
    else:
        whole = (module.name, f"{module.name}.{name}")
        users = importers(project, module.name, holding=(name,)) if here and module.name else ()
        also = (u for u in users if any(t in whole for t in (*u.imports.names.values(), *u.imports.stars)))
        alone = here and not any(program_of_ranks(user, project) for user in also)
    return alone or _all_calls_on_one_rank(module, project, function)


def _all_calls_on_one_rank(module: Module, project: Project, function: cst.FunctionDef) -> bool:
    """Whether one rank alone makes all calls of a function or method, wherever they are: some under a test of the rank,
    others in programs of one process. Of methods that a base class of another package may call not all calls are
    seen."""
    owner, name = module.class_of(function), function.name.value
    if name.startswith("__") or (owner is not None and name == "forward") or function.decorators:
        return False
    sites = call_sites(module, function)
    first = [site for site in sites if is_on_first(module, site.facts, site.node)]
    others = [site for site in sites if site not in first]
    if not first or not all(comes_alone(site.facts, project, site.node.lineno) for site in others):
        return False
    return (owner is None or is_plain(project, module.name_of(owner))) and not is_installed(project, module.facts)


def _are_on_one_rank(calls: Iterable[bool]) -> bool:
    found = list(calls)
    return bool(found) and all(found)


def is_kept_to_one_rank(project: Project | None, facts: ModuleFacts, call: ast.Call, around: ast.stmt) -> bool:
    """Whether tests or a decorator of the function around keep all of its calls of what `call` calls to one rank."""
    return all(_calls_of(dotted_ast(call.func), [around], _Names((), project, facts)))


#: Names of what lets one rank act before the others, or makes them wait for each other.
IN_TURN = re.compile(r"first|(?<!b)lock|barrier|wait|broadcast|gather|all_?reduce|rendezvous", re.IGNORECASE)
#: By its name a call that only waits for the other ranks.
BARRIERS = ("barrier", "wait_for_everyone")
#: Calls on the way to a place which are followed.
_CALLS_ABOVE = 3


def all_ranks_call(site: CallSite, project: Project) -> bool:
    """Whether all ranks of a program come by a call, none of them before the others, nor what starts them."""
    if site.around is None or program_of_ranks(site.facts, project, site.node.lineno) is None:
        return False
    if is_before_ranks(site.facts, project, site.node, site.around):
        return False
    before = (n for n in calls_below(site.around) if n.lineno <= site.node.lineno)
    in_turn = any(IN_TURN.search(dotted_ast(n.func)) for n in before)
    kept = is_kept_to_one_rank(project, site.facts, site.node, site.around)
    return not in_turn and not kept and _is_reached_by_all(site, project)


def _is_reached_by_all(site: CallSite, project: Project, above: int = _CALLS_ABOVE) -> bool:
    """Whether a function of the file that calls the one around a place does so on all ranks at once, if any does: not
    under a test for one rank, nor where one rank comes first, which has a barrier of its own there."""
    callers = list(_callers_here(site)) if above else []
    return not callers or any(
        not is_kept_to_one_rank(project, each.facts, each.node, each.around)
        and not has_turns(each.around, each.node)
        and _is_reached_by_all(each, project, above - 1)
        for each in callers
        if each.around is not None
    )


def has_turns(function: FunctionNode, call: ast.Call) -> bool:
    """Whether a call is between ``if rank != 0: barrier()`` and ``if rank == 0: barrier()``."""
    for block in (node.body for node in (function, *statements(function)) if hasattr(node, "body")):
        place = next((i for i, s in enumerate(block) if s.lineno <= call.lineno <= (s.end_lineno or s.lineno)), None)
        if place is not None and all(any(map(_has_barrier, part)) for part in (block[:place], block[place + 1 :])):
            return True
    return False


def _has_barrier(statement: ast.stmt) -> bool:
    calls = (n for n in calls_below(statement) if isinstance(statement, ast.If))
    return any(last_part(call.func) in BARRIERS for call in calls)


def _callers_here(site: CallSite) -> Iterator[CallSite]:
    """The calls that other functions of the file make of the one around a call; of a method those of its class."""
    name = site.around.name if site.around is not None else ""
    owner, _ = site.facts.method_at(site.around.lineno) or (None, None) if site.around is not None else (None, None)
    for node in calls_below(site.facts.tree):
        if dotted_ast(node.func) != (name if owner is None else f"self.{name}"):
            continue
        around = function_at(site.facts.tree, node.lineno)
        of_class, _ = site.facts.method_at(node.lineno) or (None, None) if owner is not None else (None, None)
        if around is not None and around is not site.around and of_class is owner:
            yield dataclasses.replace(site, node=node, around=around)


def _calls_of(name: str, body: list[ast.stmt], names: _Names) -> Iterator[bool]:
    """For every call of a function, or of a method of any object (`.name`), below `body`: whether a test or a decorator
    keeps it to one rank."""
    for node, one_rank in _expressions(body, names):
        called = getattr(node, "func", None)
        if called is not None and name in (dotted_ast(called), f".{getattr(called, 'attr', '')}"):
            yield one_rank


def _expressions(body: list[ast.stmt], names: _Names, one_rank: bool = False) -> Iterator[tuple[ast.AST, bool]]:
    """All parts of expressions below `body`, each with whether a test or a decorator keeps it to one rank."""
    own = names.own
    for statement in body:
        if isinstance(statement, ast.If):
            test = text_of(statement.test)
            yield from _expressions(statement.body, names, one_rank or first_rank_test(test, True, own))
            yield from _expressions(statement.orelse, names, one_rank or first_rank_test(test, False, own))
            if isinstance(statement.body[-1], (ast.Return, ast.Continue, ast.Raise)):
                one_rank = one_rank or first_rank_test(test, False, own)
            continue
        inside = one_rank
        if isinstance(statement, FunctionNode):
            inside = names.are_for_one_rank(statement.decorator_list)
        parts = [child for child in below(statement) if not isinstance(child, ast.stmt)]
        for blocks in (getattr(statement, field, []) for field in ("body", "orelse", "finalbody")):
            yield from _expressions(blocks, names, inside)
        for handler in getattr(statement, "handlers", []):
            yield from _expressions(handler.body, names, inside)
        for part in (n for child in parts if not isinstance(child, ast.ExceptHandler) for n in walk(child)):
            yield part, one_rank


@functools.lru_cache(4096)
def first_rank_test(text: str, taken: bool, own: tuple[str, ...] = ()) -> bool:
    """Whether the outcome `taken` of a test keeps what follows to one rank; `own`: see `own_ranks`."""
    negated, (first, others) = text.startswith("not "), _own_patterns(own)
    test = parse_expression(f"({text}\n)") if negated else None
    if isinstance(test, ast.BoolOp):  # ``not is_initialized() or get_rank() == 0``: the negation is of one part
        return any(first_rank_test(text_of(part), taken, own) for part in test.values)
    if occurs(_patterns("true_on_others"), text) or (own and others.search(text)):
        return taken == negated
    holds = occurs(_patterns("true_on_first"), text) or (bool(own) and first.search(text) is not None)
    return holds and taken != negated


def own_ranks(module: Module) -> tuple[str, ...]:
    """How the rank expressions that the configuration lists can be spelled in a file."""
    if module.project is None or not module.project.own.ranks:
        return ()
    return module.project.own.ranks.spelled_in(module.facts) if module.facts is not None else ()


def mentions_own_rank(module: Module, text: str) -> bool:
    """Whether some code of a file has a rank expression that the configuration lists."""
    own = own_ranks(module)
    return bool(own) and re.search(rf"\b({_alternatives(own)})\b", text) is not None


def _joined_as(module: Module, at: cst.CSTNode) -> tuple[str, ...]:
    """The parameters of the function around that it joins the process group with: ``rank=index``. Whatever its name,
    such a number is the rank."""
    function, facts, project = module.function_of(at), module.facts, module.project
    if function is None or facts is None or project is None or not facts.file.holds("init_process_group"):
        return ()
    found = project.remember(("ranks that join",), lambda: _given_as_rank(facts), facts.kept)
    names = [name for around, name in found if around == function.name.value]
    bound = [(name, module.bindings(name, at)) for name in names]
    return tuple(name for name, places in bound if [place.kind for place in places] == ["parameter"])


def _given_as_rank(facts: ModuleFacts) -> frozenset[tuple[str, str]]:
    """The functions of a file that join the process group, each with the name that it gives as the rank, or adds to
    the ranks of the nodes before: ``rank=index + node * gpus``."""
    joins = (call for call in calls_below(facts.tree) if facts.qualified(call.func) == _JOINS)
    ranks = ((call, n) for call in joins for k in call.keywords if k.arg == "rank" for n in _addends(k.value))
    named = ((function_at(facts.tree, call.lineno), rank.id) for call, rank in ranks if isinstance(rank, ast.Name))
    return frozenset((function.name, name) for function, name in named if function is not None)


def _addends(node: ast.expr) -> list[ast.expr]:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return [*_addends(node.left), *_addends(node.right)]
    return [node]


_JOINS = "torch.distributed.init_process_group"


@functools.cache
def _own_patterns(own: tuple[str, ...]) -> tuple[re.Pattern[str], re.Pattern[str]]:
    """What a test looks like that holds on the first rank alone, and on all but the first."""
    asks = [name for name in own if rank_value(name) in ("is_first", "is_local_first")]
    called = r"(\(.*?\))?"
    holds = rf"\b({_alternatives(tuple(asks))})\b"
    number = rf"\b({_alternatives(tuple(set(own) - {*asks}))})\b{called} *"
    return re.compile(rf"{holds}|{number}((==|in|<=) *[(\[{{]*(0|-1)|< *1)\b"), re.compile(rf"{number}(!=|>) *0\b")


def _alternatives(names: tuple[str, ...]) -> str:
    return "|".join(map(re.escape, names)) or r"(?!)"
