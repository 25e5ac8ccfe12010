"""Which code several ranks run: by what a file says, and by the programs that come to it."""

from __future__ import annotations

import ast
import collections
import dataclasses
import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import libcst as cst

from ddp_lint.findings import Span
from ddp_lint.knowledge import frameworks, table
from ddp_lint.launch.alone import MAY_JOIN, run_alone, shown_alone, shows_no_ranks
from ddp_lint.launch.callers import call_sites
from ddp_lint.launch.joining import joining_call, joining_functions, names_off
from ddp_lint.launch.one_process import (
    SIZE,
    has_one_device,
    is_run_by_others,
    is_world_of_one,
    makes_groups_of_one,
    uses_data_parallel,
)
from ddp_lint.launch.reached.names import MODULE, body_at
from ddp_lint.launch.reached.walk import reached
from ddp_lint.launch.search import importers, programs
from ddp_lint.launch.unused import is_variable
from ddp_lint.project import Project
from ddp_lint.project.facts import ModuleFacts
from ddp_lint.project.project_names import written
from ddp_lint.project.uses import uses
from ddp_lint.source.imports import dotted_ast, is_within, last_part
from ddp_lint.source.occurring import occurs
from ddp_lint.source.syntax import (
    defaults,
    function_at,
    walk,
)
from ddp_lint.source.wrap_evidence import in_code
from ddp_lint.view import Module


@dataclasses.dataclass(frozen=True)
class Evidence:
    """What shows that several ranks run a file: the word, where it is, and whether in the file itself."""

    word: str
    span: Span
    own: bool

    @property
    def text(self) -> str:
        return f"`{self.word}`: several ranks run this file" if self.own else f"`{self.word}`: several ranks run this"


def several_ranks(module: Module, node: cst.CSTNode | None = None) -> Evidence | None:
    """Evidence that several ranks run `module`: in the file, else in a file of the project that imports it, by whose
    programs one comes to `node`. None where all programs that come to it, or to `node` in it, are one process."""
    facts, project, name = module.facts, module.project, module.name
    if facts is None or project is None:
        return None
    found = evidence_in(facts, project)
    if found is None and name:
        body = body_at(facts.tree, module.span(node).line) if node is not None else MODULE
        found = project.remember(("several ranks", name, body), lambda: _imported_by_ranks(project, facts, body))
    return None if found is None or runs_alone(module, node) else found


def runs_alone(module: Module, node: cst.CSTNode | None = None) -> bool:
    """Whether all programs that come to a file, or to a place in it, are one process, while others of the project make
    the process group."""
    facts, project = module.facts, module.project
    if facts is None or project is None:
        return False
    return comes_alone(facts, project, module.span(node).line if node is not None else None)


def meets_no_ranks(module: Module, node: cst.CSTNode) -> bool:
    """Whether the programs that come to a place are seen and all are one process, also where nothing in the project
    makes a group: a class of a model that its own script trains."""
    facts, project = module.facts, module.project
    if facts is None or project is None:
        return False
    line = module.span(node).line
    key = ("meets no ranks", line)
    found: bool = project.remember(key, lambda: shows_no_ranks(facts, project, line, _evidence), facts.kept)
    return found


def comes_alone(facts: ModuleFacts, project: Project, line: int | None) -> bool:
    """The same of a file's facts, and of a line of it."""
    alone: bool = project.remember(("alone", line), lambda: run_alone(facts, project, line, _evidence), facts.kept)
    return alone


def is_for_one_process(facts: ModuleFacts, project: Project, line: int) -> bool:
    """Whether all programs that come to a line of a file are one process and are not meant for more, as those are that
    scripts start by a launcher with one process; or the file makes trainers for one device alone."""
    if has_one_device(facts, project) and not is_run_by_others(facts, project):
        return True
    if makes_groups_of_one(facts, project):
        return True
    return comes_alone(facts, project, line) and not shown_alone(facts, project)


def _imported_by_ranks(project: Project, facts: ModuleFacts, body: str) -> Evidence | None:
    users = programs(project, facts.name, holding=joining_words(project))
    return _run_by(project, facts, (user for user in users if _may_meet(project, facts, body, user)))


def _may_meet(project: Project, facts: ModuleFacts, body: str, user: ModuleFacts) -> bool:
    """Whether a program that comes to a body of a file may come to what shows ranks in another one as well: a package
    imports all of its classes for whoever uses one of them. True where the programs are not seen."""
    path, found = project.modules.find(facts.name), reached(project)
    if path is None or body == MODULE:
        return True
    own = found.coming_by_code((project.paths.inside(path), body))
    showing = project.remember(("bodies that show ranks",), lambda: _bodies_showing(user, project), user.kept)
    others = frozenset[str]().union(*(found.coming_by_code((user.source.inside, each)) for each in showing))
    return not own or not others or not own.isdisjoint(others)


def _bodies_showing(facts: ModuleFacts, project: Project) -> frozenset[str]:
    """The bodies of a file that show ranks; for what it imports at its top those that use it."""
    shown: list[Any] = [node for _, node in _evidence(facts, project)]
    call = joining_call(facts, project)
    lines = {node.lineno for node in (*shown, call) if node is not None}
    for node in shown:
        for alias in node.names if isinstance(node, (ast.Import, ast.ImportFrom)) else ():
            lines.discard(node.lineno)
            lines.update(use.node.lineno for use in uses(facts, alias.asname or alias.name.rpartition(".")[2]))
    return frozenset(body_at(facts.tree, line) for line in lines) or frozenset({MODULE})


def program_of_ranks(facts: ModuleFacts, project: Project, line: int | None = None) -> Evidence | None:
    """Evidence that several ranks run a file: in it, else in a file that imports it. None where all programs that come
    to it, or to a line of it, are one process."""
    users = importers(project, facts.name, holding=joining_words(project)) if facts.name else iter(())
    found = evidence_in(facts, project) or _run_by(project, facts, users)
    return None if found is None or comes_alone(facts, project, line) else found


def _run_by(project: Project, facts: ModuleFacts, users: Iterator[ModuleFacts]) -> Evidence | None:
    """Evidence in one of the files that import another. A test may have ranks for what other code of its file tests."""
    counted = (user for user in users if facts.source.is_test or not user.source.is_test)
    found = next(filter(None, (evidence_in(user, project) for user in counted)), None)
    return dataclasses.replace(found, own=False) if found is not None else None


def joining_words(project: Project) -> tuple[str, ...]:
    """Words, one of which a file has that ranks run themselves."""
    starts = frameworks.every(lambda framework: framework.launch.starts)
    functions = sorted({function.rpartition(".")[2] for function in joining_functions(project)})
    return (*starts, *project.own.names.beside(starts), *functions)


def has_ranks(module: Module) -> bool:
    """Whether several ranks run any file of the project: elsewhere no rank can leave another one waiting."""
    if several_ranks(module) is not None:
        return True
    project = module.project
    return project is not None and project.remember(("has ranks",), lambda: _runs_ranks(project))


def _runs_ranks(project: Project) -> bool:
    words = sorted(set[str]().union(*_known().values(), frameworks.every(lambda each: each.launch.starts)))
    paths = dict.fromkeys(
        path for word in (*words, *project.own.names.words) for path in project.contents.holding(word)
    )
    held = (project.modules.facts_of(path) for path in paths)
    return any(facts is not None and evidence_in(facts, project) is not None for facts in held)


def evidence_in(facts: ModuleFacts, project: Project, words: tuple[str, ...] = ()) -> Evidence | None:
    """The first evidence in one file (one of `words`, where given). A framework's own files that import each other
    are none."""
    all_found = project.remember(("evidence of ranks",), lambda: _evidence_by_word(facts, project), facts.kept)
    found = next((f for f in all_found.items() if not words or f[0] in words), None)
    if found is None:
        call = None if words else project.remember(("joins",), lambda: joining_call(facts, project), facts.kept)
        return None if call is None else _joins(facts, call)
    word, node = found
    return Evidence(word, _place(facts, node, word), own=True)


def joins_ranks(facts: ModuleFacts, project: Project) -> Evidence | None:
    """Evidence in one file that it is started once for each rank, not only that it would serve several."""
    words = ("LOCAL_RANK", *frameworks.every(lambda framework: framework.launch.starts))
    return evidence_in(facts, project, (*words, *project.own.names.beside(words)))


def _joins(facts: ModuleFacts, call: ast.Call) -> Evidence:
    word = last_part(call.func)
    return Evidence(word, _place(facts, call, word), own=True)


def _evidence_by_word(facts: ModuleFacts, project: Project) -> dict[str, ast.AST]:
    """Where each word is first, in the order of the file; nothing in a file that is one process."""
    if occurs(SIZE, facts.file.text) and is_world_of_one(facts, project):
        return {}
    found: dict[str, ast.AST] = {}
    for word, node in _evidence(facts, project):
        found.setdefault(word, node)
    return found


def _place(facts: ModuleFacts, node: ast.AST, word: str) -> Span:
    """Where the word is: in an import, the module's or the imported name itself."""
    line, column = getattr(node, "lineno", 1), getattr(node, "col_offset", 0)
    text = facts.file.lines[line - 1]
    for part in (word, word.rpartition(".")[0], word.rpartition(".")[2]):
        found = text.find(part, column) if part else -1
        if found >= 0:
            return Span(facts.file.path, line, found + 1, line, found + 1 + len(part))
    return Span(facts.file.path, line, column + 1, line, len(text.rstrip()) + 1)


@functools.cache
def _known() -> dict[str, frozenset[str]]:
    """The words of any program and of all frameworks, by what they are."""
    found = {key: {*values} for key, values in table("launch")["several_ranks"].items()}
    for framework in frameworks.frameworks():
        for key in ("identifiers", "bases", "modules", "offline"):
            found.setdefault(key, set()).update(getattr(framework.launch, key))
    return {key: frozenset(values) for key, values in found.items()}


@functools.cache
def _wordy() -> dict[str, re.Pattern[str]]:
    """Module of a framework to the words, one of which a file that runs ranks by it has."""
    launches = [framework.launch for framework in frameworks.frameworks() if framework.launch.words]
    return {module: re.compile(rf"\b({'|'.join(launch.words)})\b") for launch in launches for module in launch.modules}


#: What has an identifier (`_identifier`).
_NAMED: dict[type[ast.AST], str] = {ast.Name: "id", ast.Attribute: "attr", ast.arg: "arg", ast.keyword: "arg"}
#: The nodes of a file by their types.
_Kinds = Mapping[type[ast.AST], Sequence[Any]]


def _evidence(facts: ModuleFacts, project: Project) -> Iterator[tuple[str, ast.AST]]:
    tree, known, own_words = facts.tree, _known(), project.own.names.words
    nodes = list(walk(tree))
    kinds = collections.defaultdict[type[ast.AST], list[Any]](list)
    for node in nodes:
        kinds[node.__class__].append(node)
    listed = known["identifiers"] | own_words
    idle = functools.cache(lambda: _counted(kinds) | _by_default(kinds) | _only_printed(kinds) | names_off(tree))
    used = {node.id for node in kinds[ast.Name]}
    in_use = functools.cache(lambda: _in_use(facts, kinds, used))
    asked = functools.cache(lambda: _asked_for(kinds[ast.Call]))
    spare = _fallen_back(nodes) if uses_data_parallel(facts.file) else frozenset()
    for node in nodes:
        field = _NAMED.get(node.__class__)
        if field is not None:
            name = getattr(node, field)
            is_listed = name in listed and (name in known["identifiers"] or _goes_by(project, facts, node))
            if is_listed and not _is_idle(node, idle()) and not _is_distribution(facts, node, name):
                yield name, node
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            for name in _imported(node):
                if not _is_used(name, node, used, kinds[ast.Attribute]):
                    continue
                foreign = is_within(name, known["modules"]) and not _is_of_project(project, name)
                words = _wordy().get(name.partition(".")[0])
                wordless = words is not None and words.search(in_use()) is None
                if foreign and (wordless or is_within(name, known["offline"])):
                    continue  # it has a function that sets seeds, say
                if not foreign and name.rpartition(".")[2] not in known["identifiers"]:
                    continue
                if _only_asked_for(name, node, kinds[ast.Name], asked()) and not _is_wrapped_elsewhere(facts, project):
                    continue
                yield name, node
        elif isinstance(node, ast.ClassDef):
            bases = (b for b in node.bases if last_part(b) in known["bases"] and _may_run_ranks(project, facts, b))
            yield from ((last_part(b), node) for b in bases)
        elif isinstance(node, ast.Constant) and node.value in known["environment"] and node not in spare:
            yield str(node.value), node


def _is_distribution(facts: ModuleFacts, node: ast.AST, name: str) -> bool:
    """Whether a name that functions have which make a group is one of a variable: ``init_dist = Normal(0, 1)``."""
    if not isinstance(node, ast.Name) or MAY_JOIN.fullmatch(name) is None:
        return False
    return is_variable(node, function_at(facts.tree, node.lineno))


def _is_idle(node: ast.AST, idle: frozenset[str]) -> bool:
    """Whether a name is one of these, or an argument gets one of them or a number."""
    given = node.value if isinstance(node, ast.keyword) else node
    if isinstance(given, (ast.Name, ast.arg)) and _identifier(given) in idle:
        return True
    return isinstance(node, ast.keyword) and _is_default(node.value)


def _may_run_ranks(project: Project, facts: ModuleFacts, base: ast.expr) -> bool:
    """Whether a base class by such a name may run ranks: one of the project has to show them in a file of its own."""
    found = project.meanings.split(project.meanings.of(facts, base))
    return found is None or (found[0] is not facts and any(True for _ in _evidence(found[0], project)))


def _goes_by(project: Project, facts: ModuleFacts, node: ast.AST) -> bool:
    """Whether an expression has a name that the configuration lists."""
    return bool(project.own.find(written(node), project.meanings.of(facts, node)))


def _is_default(value: ast.expr) -> bool:
    """A number, or what a configuration may hold, with one to fall back on: ``config.get("local_rank", 0)``."""
    falls_back = isinstance(value, ast.Call) and last_part(value.func) == "get" and len(value.args) > 1
    last = value.args[-1] if isinstance(value, ast.Call) and falls_back else value
    last = last.operand if isinstance(last, ast.UnaryOp) and isinstance(last.op, ast.USub) else last
    return isinstance(last, ast.Constant) and isinstance(last.value, int)


def _counted(kinds: _Kinds) -> frozenset[str]:
    """Names that one process gives to each rank's part in turn: ``for local_rank in range(shards):``."""
    loops = (*kinds[ast.For], *kinds[ast.comprehension])
    return frozenset(
        loop.target.id
        for loop in loops
        if isinstance(loop.target, ast.Name)
        and isinstance(loop.iter, ast.Call)
        and last_part(loop.iter.func) == "range"
    )


def _by_default(kinds: _Kinds) -> frozenset[str]:
    """World sizes that functions have as a number by default, wherever they are taken: ``def plan(world_size=2):``.
    Each rank gets the size."""
    taken: dict[str, list[bool]] = {}
    for arguments in kinds[ast.arguments]:
        for parameter, default in defaults(arguments):
            if parameter.arg in _known()["sizes"]:
                taken.setdefault(parameter.arg, []).append(isinstance(default, ast.Constant))
    return frozenset(name for name, constant in taken.items() if all(constant))


def _only_printed(kinds: _Kinds) -> frozenset[str]:
    """Names of the number of GPUs that nothing but a print reads: ``world_size = torch.cuda.device_count()``."""
    assigned = [n for n in kinds[ast.Assign] if isinstance(n.targets[0], ast.Name)]
    given = collections.defaultdict[str, list[ast.expr]](list)
    for each in assigned:
        given[last_part(each.targets[0])].append(each.value)
    counts = {name for name, values in given.items() if all(map(_is_device_count, values))}
    if not counts:
        return frozenset()
    prints = [call for call in kinds[ast.Call] if last_part(call.func) == "print"]
    printed = {id(part) for call in prints for part in walk(call)}
    read = {n.id for n in kinds[ast.Name] if isinstance(n.ctx, ast.Load) and id(n) not in printed}
    return frozenset(counts - read)


def _is_device_count(value: ast.expr) -> bool:
    return isinstance(value, ast.Call) and last_part(value.func) == "device_count"


def _fallen_back(nodes: list[ast.AST]) -> frozenset[ast.AST]:
    """The names of variables that are read with a number to fall back on: ``os.getenv("RANK", 0)``. A file that gives
    all GPUs to one process, which no launcher starts, gets that number."""
    calls = (n for n in nodes if isinstance(n, ast.Call) and last_part(n.func) in ("get", "getenv"))
    return frozenset(n.args[0] for n in calls if len(n.args) > 1 and _is_number(n.args[1]))


def _is_number(value: ast.expr) -> bool:
    return isinstance(value, ast.Constant) and str(value.value).isdigit()


def _is_of_project(project: Project, name: str) -> bool:
    """Whether an imported name is one of the project's own, also in a part of a namespace package that it shares with
    others: the project has the module, or what it is in."""
    parts = name.split(".")
    return any(project.modules.find(".".join(parts[:count])) is not None for count in range(1, len(parts) + 1))


def _imported(node: ast.Import | ast.ImportFrom) -> list[str]:
    base = f"{node.module}." if isinstance(node, ast.ImportFrom) and node.module and not node.level else ""
    return [base + alias.name for alias in node.names]


def _is_used(
    name: str, imported: ast.Import | ast.ImportFrom, used: set[str], attributes: Sequence[ast.Attribute]
) -> bool:
    """Whether anything is done with what an import brings: an import that was left behind shows nothing."""
    alias = next((a for a in imported.names if name.endswith(a.name)), None)
    if alias is None or alias.name == "*":
        return True
    if alias.asname is None and isinstance(imported, ast.Import) and "." in name:  # ``import torch.distributed``
        last = name.rpartition(".")[2]
        return any(node.attr == last and dotted_ast(node) == name for node in attributes)
    if alias.asname is None and isinstance(imported, ast.Import):
        return True
    return (alias.asname or alias.name) in used


def _asked_for(calls: Sequence[ast.Call]) -> frozenset[int]:
    """The parts (their ``id``) of the classes that `isinstance` tests for."""
    tests = (call for call in calls if last_part(call.func) == "isinstance" and len(call.args) > 1)
    return frozenset(id(part) for test in tests for part in walk(test.args[1]))


def _only_asked_for(
    name: str, imported: ast.Import | ast.ImportFrom, names: Sequence[ast.Name], asked: frozenset[int]
) -> bool:
    """Whether all that is done with what an import brings is to ask whether objects are of that class:
    ``isinstance(model, DDP)``."""
    alias = next((a for a in imported.names if name.endswith(a.name)), None)
    if alias is None or isinstance(imported, ast.Import):
        return False
    bound = alias.asname or alias.name
    return all(id(n) in asked for n in names if n.id == bound)


def _is_wrapped_elsewhere(facts: ModuleFacts, project: Project) -> bool:
    """Whether another file of the project may wrap models for several ranks, make a group or learn of a launcher: else
    who asks for a wrapper may do so for code that was left behind."""
    found = (path for word in ("LOCAL_RANK", *joining_words(project)) for path in project.contents.holding(word))
    return any(project.paths.inside(path) != facts.source.inside for path in found)


def _in_use(facts: ModuleFacts, kinds: _Kinds, used: set[str]) -> str:
    """The code of a file without comments, without strings that nothing reads (what a notebook has switched off), and
    without imports that were left behind."""
    lines = in_code(facts.file.text, facts.tree).split("\n")
    for node in kinds[ast.ImportFrom]:
        if not any(_is_used(name, node, used, kinds[ast.Attribute]) for name in _imported(node)):
            for number in range(node.lineno - 1, node.end_lineno or node.lineno):
                lines[number] = ""
    return "\n".join(lines)


def _identifier(node: ast.AST) -> str:
    for field in ("id", "attr", "arg"):
        value = getattr(node, field, None)
        if isinstance(value, str):
            return value
    return ""


def called_in_one_process(module: Module, node: cst.CSTNode) -> bool:
    """Whether `node` is in a function that other files alone call, none of which several ranks run: of the helpers in
    one file some are for the training, and some for an evaluation in one process."""
    function, project = module.function_of(node), module.project
    if function is None or project is None or module.class_of(function) is not None:
        return False
    sites = call_sites(module, function)
    others = all(site.facts.name != module.name for site in sites)
    return bool(sites) and others and not any(program_of_ranks(site.facts, project) for site in sites)
