"""Functions of the project that join the process group or start its ranks: several ranks run whoever calls one."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from ddp_lint.knowledge import table
from ddp_lint.project import Project
from ddp_lint.project.facts import ModuleFacts
from ddp_lint.project.parts import kept_by_node
from ddp_lint.source.imports import dotted_ast, last_part
from ddp_lint.source.syntax import FunctionNode, calls_below, function_at, statements, walk

#: Files that name one of the calls; a project with more is a framework, whose own functions say little of one file.
_FILES = 40
_SPAWN = "torch.multiprocessing.spawn"


def joining_functions(project: Project, *, starting: bool = True) -> frozenset[str]:
    """The canonical names of the functions, at the top of their files, that make one of the calls. `starting`: also of
    those that only start ranks: what else their callers do, the one process does that starts them."""
    every = frozenset(table("launch")["joining"]["calls"])
    calls = every if starting else every - {_SPAWN}
    return project.remember(("joining functions", starting), lambda: frozenset(_joining(project, calls)))


def _joining(project: Project, calls: frozenset[str]) -> list[str]:
    return [
        f"{facts.name}.{name}" if facts.name else name
        for facts in _files_with(project, calls)
        for name, node in facts.definitions.items()
        if isinstance(node, ast.FunctionDef) and _calls(facts, node, calls)
    ]


def makes_group(project: Project) -> bool:
    """Whether code of the project makes the process group or starts ranks, in a function or not."""
    calls = frozenset(table("launch")["joining"]["calls"])

    def found() -> bool:
        return any(
            _calls(facts, facts.tree, calls) or _makes_by_usual_name(facts) for facts in _files_with(project, calls)
        )

    return project.remember(("makes group",), found)


#: In the name of a flag: it says whether there are several ranks.
_OF_SEVERAL = re.compile(r"dist|ddp|multi|parallel|world|launch", re.IGNORECASE)


def flags_of_joining(project: Project) -> frozenset[str]:
    """The last names of the flags under which code of the project joins the process group: ``if args.distributed:
    setup(args)``. A process for which such a flag is False has no other rank to wait for."""
    return project.remember(("flags of joining",), lambda: frozenset(_flags_of_joining(project)))


def _flags_of_joining(project: Project) -> Iterator[str]:
    calls = frozenset(table("launch")["joining"]["calls"]) - {_SPAWN}
    functions = joining_functions(project, starting=False)
    joining = calls | {name for name in functions if name.rpartition(".")[2] != "main"}  # every file has a main()
    for facts in _files_with(project, joining):
        for node in statements(facts.tree):
            if isinstance(node, ast.If) and any(_joins_in(facts, statement, joining) for statement in node.body):
                parts = node.test.values if isinstance(node.test, ast.BoolOp) else [node.test]
                all_hold = not isinstance(node.test, ast.BoolOp) or isinstance(node.test.op, ast.And)
                names = (dotted_ast(part).rpartition(".")[2] for part in parts if all_hold)
                yield from (name for name in names if _OF_SEVERAL.search(name))


def _joins_in(facts: ModuleFacts, statement: ast.stmt, joining: frozenset[str]) -> bool:
    return any(facts.qualified(call.func) in joining for call in calls_below(statement))


def joins_of_project(project: Project) -> Iterator[tuple[ModuleFacts, ast.Call]]:
    """The calls that make the process group or start ranks themselves, each with its file; none in a framework."""
    calls = frozenset(table("launch")["joining"]["calls"])
    for facts in _files_with(project, calls):
        for call in calls_below(facts.tree):
            if facts.qualified(call.func) in calls or dotted_ast(call.func) == "dist.init_process_group":
                yield facts, call


def joins_otherwise(project: Project) -> bool:
    """Whether anything in the project has a framework join the ranks and train on them."""
    return any(project.contents.holding(word) for word in table("launch")["joining"]["frameworks"])


def _files_with(project: Project, calls: frozenset[str]) -> Iterator[ModuleFacts]:
    """The files, but for tests, that may make one of some calls; none where there are many."""
    words = {name.rpartition(".")[2] for name in calls}
    paths = (path for word in sorted(words) for path in project.contents.holding(f"{word}("))
    return project.modules.but_tests(paths, _FILES)


def _calls(facts: ModuleFacts, within: ast.AST, names: frozenset[str]) -> bool:
    calls = [node for node in calls_below(within) if facts.qualified(node.func) in names]
    return any(call.lineno not in lines_off(facts.tree, facts.file.text) for call in calls)


def _makes_by_usual_name(facts: ModuleFacts) -> bool:
    """Whether a file makes the group by the usual name of torch's module, which it does not import."""
    if facts.imports.resolve("dist") is not None or "dist" in facts.values or facts.imports.stars:
        return False
    return any(dotted_ast(node.func) == "dist.init_process_group" for node in calls_below(facts.tree))


#: How a file gets names that it does not assign, or others for those that it does: ``exec(open(settings).read())``.
_GIVES_NAMES = re.compile(r"\bexec\(|\bglobals\(\)")


@kept_by_node(32)
def lines_off(tree: ast.Module, text: str) -> frozenset[int]:
    """The lines under a test of a name that is False wherever the file sets it: ``if ddp:`` after ``ddp = False``."""
    off = names_off(tree)
    if not off or _GIVES_NAMES.search(text):
        return frozenset()
    off -= {node.arg for node in walk(tree) if isinstance(node, ast.arg)}
    off -= {n.target.id for n in walk(tree) if isinstance(n, ast.AnnAssign) and isinstance(n.target, ast.Name)}
    tests = (node for node in statements(tree) if isinstance(node, ast.If) and isinstance(node.test, ast.Name))
    bodies = (test.body for test in tests if isinstance(test.test, ast.Name) and test.test.id in off)
    return frozenset(
        line for body in bodies for line in range(body[0].lineno, (body[-1].end_lineno or body[-1].lineno) + 1)
    )


def names_off(tree: ast.AST) -> frozenset[str]:
    """Names that are False wherever a file assigns them: ``distributed = False``."""
    given: dict[str, list[bool]] = {}
    for node in statements(tree):
        for target in (n for n in getattr(node, "targets", ()) if isinstance(n, ast.Name)):
            value = getattr(node, "value", None)
            given.setdefault(target.id, []).append(isinstance(value, ast.Constant) and value.value is False)
    return frozenset(name for name, off in given.items() if all(off))


def joining_call(facts: ModuleFacts, project: Project) -> ast.Call | None:
    """The first call in a file of a function of another one that joins the process group or starts ranks."""
    functions = joining_functions(project)
    last = {name.rpartition(".")[2] for name in functions}
    for node in calls_below(facts.tree):
        if last_part(node.func) in last:
            meaning = project.meanings.of(facts, node.func)
            if meaning in functions and meaning.rpartition(".")[0] != facts.name:
                return node
    return None


def spawned_functions(project: Project) -> frozenset[str]:
    """The canonical names of the functions that ``torch.multiprocessing.spawn`` runs, with the process's number on its
    node as the first argument."""
    return project.remember(("spawned functions",), lambda: frozenset(_spawned(project)))


def _spawned(project: Project) -> Iterator[str]:
    for path in project.contents.holding(f"{_SPAWN.rpartition('.')[2]}("):
        facts = project.modules.facts_of(path) if "multiprocessing" in (project.contents.text(path) or "") else None
        if facts is None:
            continue
        for call in spawns(facts, project):
            given = call.args[:1] or [k.value for k in call.keywords if k.arg == "fn"]
            yield from filter(None, (project.meanings.of(facts, target) for target in given))


def spawns(facts: ModuleFacts, project: Project) -> Iterator[ast.Call]:
    """The calls of ``torch.multiprocessing.spawn`` in a file."""
    for call in calls_below(facts.tree):
        if last_part(call.func) == "spawn" and project.meanings.of(facts, call.func) == _SPAWN:
            yield call


def spawns_inside(facts: ModuleFacts, project: Project, function: FunctionNode) -> bool:
    """Whether a function spawns ranks itself: what it raises ends the parent, after all of them."""
    if not facts.file.holds("spawn"):
        return False
    lines = range(function.lineno, (function.end_lineno or function.lineno) + 1)
    return any(call.lineno in lines for call in spawns(facts, project))


def is_before_ranks(facts: ModuleFacts, project: Project, call: ast.Call, around: FunctionNode) -> bool:
    """Whether a call in a function is made before there are ranks: above where the function itself spawns them, or in
    one that is called above that place alone."""
    return facts.file.holds("spawn") and _is_above(facts, call, around, spawns(facts, project))


def is_done_before_ranks(facts: ModuleFacts, project: Project, call: ast.Call, around: FunctionNode | None) -> bool:
    """Whether the process that spawns the ranks makes a call before it does so, whoever makes it besides."""
    if not facts.file.holds("spawn"):
        return False
    calls = [n for n in calls_below(facts.tree) if around is not None and dotted_ast(n.func) == around.name]
    return any(
        function_at(facts.tree, c.lineno) is function_at(facts.tree, place.lineno) and c.lineno < place.lineno
        for place in spawns(facts, project)
        for c in (call, *calls)
    )


def is_before_fit(facts: ModuleFacts, project: Project, call: ast.Call, around: FunctionNode) -> bool:
    """Whether a call is made above ``trainer.fit()`` in a program of Lightning that no launcher starts: only there the
    first process starts the others, which come to this place after it has left it."""
    if not facts.file.holds(".fit(") or _LAUNCHED.search(facts.file.text):
        return False
    made = (n for n in calls_below(facts.tree) if last_part(n.func) == "Trainer")
    if not any("lightning" in project.meanings.of(facts, n.func).partition(".")[0] for n in made):
        return False
    fits = (n for n in calls_below(facts.tree) if last_part(n.func) == "fit")
    return _is_above(facts, call, around, fits)


def is_before_spawned_ranks(facts: ModuleFacts, project: Project, call: ast.Call, around: FunctionNode) -> bool:
    """Whether a call is made above ``trainer.fit()`` where that spawns the ranks as functions: all trainers of the file
    are told ``gpus=`` and not how to start, which Lightning did by `ddp_spawn` as long as it took that name."""
    if not is_before_fit(facts, project, call, around):
        return False
    made = [n for n in calls_below(facts.tree) if last_part(n.func) == "Trainer"]
    given = [{keyword.arg for keyword in trainer.keywords} for trainer in made]
    return all("gpus" in names and not names & _START_OTHERWISE for names in given)


#: How a trainer of Lightning is told to start its ranks otherwise; None for settings that a file does not show.
_START_OTHERWISE = frozenset({"accelerator", "strategy", "distributed_backend", "plugins", "num_nodes", None})


def is_prepared_alone(facts: ModuleFacts, name: str) -> bool:
    """Whether a method by a name is what Lightning runs in one process, behind which the others wait:
    ``prepare_data``."""
    return name == "prepare_data" and "lightning" in facts.file.text


#: What a program has that starts all its ranks at once.
_LAUNCHED = re.compile(r"init_process_group|LOCAL_RANK|SLURM_|torchrun|\bnum_nodes\b")


def _is_above(facts: ModuleFacts, call: ast.Call, around: FunctionNode, places: Iterator[ast.Call]) -> bool:
    """Whether a call is above one of the places in the same function, or in one that is called there alone."""
    calls = [n for n in calls_below(facts.tree) if dotted_ast(n.func) == around.name]
    for place in places:
        scope = function_at(facts.tree, place.lineno)
        above = [call] if scope is around else calls
        if above and all(function_at(facts.tree, c.lineno) is scope and c.lineno < place.lineno for c in above):
            return True
    return False
