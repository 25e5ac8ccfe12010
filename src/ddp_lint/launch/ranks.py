"""Which code several ranks run, and which lines of it one rank alone."""

from __future__ import annotations

import ast
import collections
import dataclasses
import functools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import libcst as cst

from ddp_lint.findings import Span
from ddp_lint.knowledge import frameworks, table
from ddp_lint.knowledge.project_names import rank_value
from ddp_lint.launch.alone import MAY_JOIN, run_alone, shown_alone, shows_no_ranks
from ddp_lint.launch.arms import is_joined_elsewhere, is_told_no_rank
from ddp_lint.launch.joining import is_before_ranks, joining_call, joining_functions, names_off, spawns
from ddp_lint.launch.search import holds_by, importers, programs
from ddp_lint.launch.texts import is_installed
from ddp_lint.launch.unused import is_plain, is_variable
from ddp_lint.project import Project
from ddp_lint.project.facts import ModuleFacts
from ddp_lint.project.parts import assigned_to
from ddp_lint.project.project_names import written
from ddp_lint.source import SourceFile, dotted
from ddp_lint.source.control_flow import asked_for, asserted, conditions, conditions_at, conjuncts, exits_inside
from ddp_lint.source.imports import dotted_ast, is_within, last_part
from ddp_lint.source.occurring import occurs
from ddp_lint.source.parsing import parse_expression
from ddp_lint.source.syntax import (
    FunctionNode,
    below,
    calls_below,
    defaults,
    function_at,
    is_none,
    statements,
    text_of,
    walk,
)
from ddp_lint.source.wrap_evidence import in_code
from ddp_lint.tensors.callers import CallSite, call_sites, sites_of
from ddp_lint.tensors.given import is_always
from ddp_lint.view import Module
from ddp_lint.view.scopes import Binding


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
    """Evidence that several ranks run `module`: in the file, else in a file of the project that imports it. None where
    all programs that come to it, or to `node` in it, are one process."""
    if module.facts is None or module.project is None:
        return None
    project, name = module.project, module.name
    found = evidence_in(module.facts, project)
    if found is None and name:
        found = project.remember(("several ranks", name), lambda: _imported_by_ranks(module))
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
    if has_one_device(facts, project) and not _is_run_by_others(facts, project):
        return True
    if makes_groups_of_one(facts, project):
        return True
    return comes_alone(facts, project, line) and not shown_alone(facts, project)


def _imported_by_ranks(module: Module) -> Evidence | None:
    project, facts = module.project, module.facts
    assert project is not None and facts is not None
    return _run_by(project, facts, programs(project, module.name, holding=joining_words(project)))


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
    if occurs(_SIZE, facts.file.text) and is_world_of_one(facts, project):
        return {}
    found: dict[str, ast.AST] = {}
    for word, node in _evidence(facts, project):
        found.setdefault(word, node)
    return found


_SIZE = re.compile(r"world_size|WORLD_SIZE|\bdevices *= *\w")
#: Where a file may have a number of devices that is 1, or a parameter.
_DEVICES = re.compile(r"\bdevices *= *\w")
#: What is given a world size that holds for the whole file.
_TRAINERS = frozenset({"Fabric", "Trainer"})
_ONE = ast.Constant(1)
_SETS_WORLD = frozenset({"Namespace", "SimpleNamespace", "init_process_group"})


def is_world_of_one(facts: ModuleFacts, project: Project) -> bool:
    """Does a file say that it is one process: a world size of 1, which it may pass on as ``args.world_size``, or have
    from where those settings are, or one device for each trainer of Lightning?"""
    if has_one_device(facts, project):
        return True
    sizes = _world_sizes(facts.tree)
    if not sizes and "init_process_group" not in facts.file.text:
        sizes = _sizes_set(facts.tree)
    sizes += _sizes_exported(facts.tree)
    handed_on = [size for size in sizes if isinstance(size, ast.Attribute) and size.attr == "world_size"]
    ones = [size for size in sizes if is_one(size)]
    if len(ones) + len(handed_on) < len(sizes):
        return False
    return bool(ones) or any(_is_one_elsewhere(size.value, facts, project) for size in handed_on)


def makes_groups_of_one(facts: ModuleFacts, project: Project) -> bool:
    """Whether a file makes process groups, each of a world size that is written as 1: one process that may have several
    GPUs."""

    def found() -> bool:
        made = [call for call in calls_below(facts.tree) if _last(call.func) == "init_process_group"]
        sizes = [{k.arg: k.value for k in call.keywords}.get("world_size") for call in made]
        return bool(sizes) and all(size is not None and is_one(size) for size in sizes)

    return occurs(_SIZE_OF_ONE, facts.file.text) and project.remember(("groups of one",), found, facts.kept)


_SIZE_OF_ONE = re.compile(r"world_size *= *1\b")


def has_one_device(facts: ModuleFacts, project: Project) -> bool:
    """Whether a file makes trainers of Lightning for one device alone, and no process group: ``Fabric(devices=1)``."""
    if not occurs(_DEVICES, facts.file.text) or "init_process_group" in facts.file.text:
        return False
    found: bool = project.remember(("one device",), lambda: _makes_for_one_device(facts, project), facts.kept)
    return found


def _is_run_by_others(facts: ModuleFacts, project: Project) -> bool:
    """Whether a file that imports one makes trainers itself, for more devices: what the other one starts is a trial."""
    users = importers(project, facts.name, holding=tuple(_TRAINERS)) if facts.name else ()
    return any(_trainers(user, project) and not has_one_device(user, project) for user in users)


def _trainers(facts: ModuleFacts, project: Project) -> list[ast.Call]:
    """The calls that make trainers of Lightning."""
    calls = (n for n in calls_below(facts.tree) if _last(n.func) in _TRAINERS)
    return [call for call in calls if "lightning" in project.meanings.of(facts, call.func).partition(".")[0]]


def _makes_for_one_device(facts: ModuleFacts, project: Project) -> bool:
    made = _trainers(facts, project)
    given = [(call, {keyword.arg: keyword.value for keyword in call.keywords}) for call in made]
    return bool(given) and all(
        "devices" in each
        and _is_one_device(each["devices"], call, facts, project)
        and is_one(each.get("num_nodes", _ONE))
        for call, each in given
    )


def _is_one_device(count: ast.expr, call: ast.Call, facts: ModuleFacts, project: Project) -> bool:
    """Whether a trainer has one device: also where it is left to choose on a machine without a GPU, whose CPU is one:
    ``1 if torch.cuda.is_available() else None``, and where the number is a parameter that nobody gives another one."""
    if isinstance(count, ast.Name):
        function = function_at(facts.tree, call.lineno)
        return function is not None and is_always(project, facts, function, count.id, (1, "1"))
    if not isinstance(count, ast.IfExp) or not isinstance(count.test, ast.Call):
        return is_one(count)
    on_cpu = count.orelse
    left_open = isinstance(on_cpu, ast.Constant) and on_cpu.value in (None, 1, "auto")
    return left_open and is_one(count.body) and facts.qualified(count.test.func) == "torch.cuda.is_available"


def _world_sizes(tree: ast.AST) -> list[ast.expr]:
    return [
        keyword.value
        for node in calls_below(tree)
        if _last(node.func) in _SETS_WORLD
        for keyword in node.keywords
        if keyword.arg == "world_size"
    ]


def _sizes_set(tree: ast.AST) -> list[ast.expr]:
    """What a file sets world sizes to: ``params["world_size"] = 1``."""
    assignments = (node for node in statements(tree) if isinstance(node, ast.Assign))
    return [a.value for a in assignments if any("world_size" in text_of(target) for target in a.targets)]


def _sizes_exported(tree: ast.AST) -> list[ast.expr]:
    """What a file sets the variable of the size to, under no condition: ``os.environ["WORLD_SIZE"] = "1"``."""
    fallbacks = {id(n) for node in statements(tree) if isinstance(node, (ast.If, ast.Try)) for n in statements(node)}
    assignments = (node for node in statements(tree) if isinstance(node, ast.Assign) and id(node) not in fallbacks)
    return [a.value for a in assignments if any(map(_is_exported_size, a.targets))]


def _is_exported_size(target: ast.expr) -> bool:
    if not isinstance(target, ast.Subscript) or not dotted_ast(target.value).endswith("environ"):
        return False
    return isinstance(target.slice, ast.Constant) and target.slice.value == "WORLD_SIZE"


def is_one(size: ast.expr) -> bool:
    """Whether a size is given as the number 1."""
    return isinstance(size, ast.Constant) and size.value in (1, "1")


def _is_one_elsewhere(settings: ast.expr, facts: ModuleFacts, project: Project) -> bool:
    """Whether settings come from a file of the project that has a world size of 1 alone."""
    found = project.meanings.split(project.meanings.of(facts, settings))
    sizes = _world_sizes(found[0].tree) if found is not None and found[0] is not facts else []
    return bool(sizes) and all(map(is_one, sizes))


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


def _decorators() -> tuple[str, ...]:
    """Decorators that keep a function to one rank."""
    return (*table("launch")["one_rank"]["decorators"], *frameworks.every(lambda each: each.launch.decorators))


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
    in_use = functools.cache(lambda: _in_use(facts, nodes, used))
    asked = functools.cache(lambda: _asked_for(nodes))
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
                if not _is_used(name, node, used, nodes):
                    continue
                foreign = is_within(name, known["modules"]) and not _is_of_project(project, name)
                words = _wordy().get(name.partition(".")[0])
                wordless = words is not None and words.search(in_use()) is None
                if foreign and (wordless or is_within(name, known["offline"])):
                    continue  # it has a function that sets seeds, say
                if not foreign and name.rpartition(".")[2] not in known["identifiers"]:
                    continue
                if _only_asked_for(name, node, nodes, asked()) and not _is_wrapped_elsewhere(facts, project):
                    continue
                yield name, node
        elif isinstance(node, ast.ClassDef):
            bases = (b for b in node.bases if _last(b) in known["bases"] and _may_run_ranks(project, facts, b))
            yield from ((_last(b), node) for b in bases)
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
    falls_back = isinstance(value, ast.Call) and _last(value.func) == "get" and len(value.args) > 1
    last = value.args[-1] if isinstance(value, ast.Call) and falls_back else value
    last = last.operand if isinstance(last, ast.UnaryOp) and isinstance(last.op, ast.USub) else last
    return isinstance(last, ast.Constant) and isinstance(last.value, int)


def _counted(kinds: _Kinds) -> frozenset[str]:
    """Names that one process gives to each rank's part in turn: ``for local_rank in range(shards):``."""
    loops = (*kinds[ast.For], *kinds[ast.comprehension])
    return frozenset(
        loop.target.id
        for loop in loops
        if isinstance(loop.target, ast.Name) and isinstance(loop.iter, ast.Call) and _last(loop.iter.func) == "range"
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
    calls = (n for n in nodes if isinstance(n, ast.Call) and _last(n.func) in ("get", "getenv"))
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


def _is_used(name: str, imported: ast.Import | ast.ImportFrom, used: set[str], nodes: list[ast.AST]) -> bool:
    """Whether anything is done with what an import brings: an import that was left behind shows nothing."""
    alias = next((a for a in imported.names if name.endswith(a.name)), None)
    if alias is None or alias.name == "*":
        return True
    if alias.asname is None and isinstance(imported, ast.Import) and "." in name:  # ``import torch.distributed``
        return any(isinstance(node, ast.Attribute) and dotted_ast(node) == name for node in nodes)
    if alias.asname is None and isinstance(imported, ast.Import):
        return True
    return (alias.asname or alias.name) in used


def _asked_for(nodes: list[ast.AST]) -> frozenset[int]:
    """The parts (their ``id``) of the classes that `isinstance` tests for."""
    tests = (n for n in nodes if isinstance(n, ast.Call) and _last(n.func) == "isinstance" and len(n.args) > 1)
    return frozenset(id(part) for test in tests for part in walk(test.args[1]))


def _only_asked_for(
    name: str, imported: ast.Import | ast.ImportFrom, nodes: list[ast.AST], asked: frozenset[int]
) -> bool:
    """Whether all that is done with what an import brings is to ask whether objects are of that class:
    ``isinstance(model, DDP)``."""
    alias = next((a for a in imported.names if name.endswith(a.name)), None)
    if alias is None or isinstance(imported, ast.Import):
        return False
    bound = alias.asname or alias.name
    return all(id(n) in asked for n in nodes if isinstance(n, ast.Name) and n.id == bound)


def _is_wrapped_elsewhere(facts: ModuleFacts, project: Project) -> bool:
    """Whether another file of the project may wrap models for several ranks, make a group or learn of a launcher: else
    who asks for a wrapper may do so for code that was left behind."""
    found = (path for word in ("LOCAL_RANK", *joining_words(project)) for path in project.contents.holding(word))
    return any(project.paths.inside(path) != facts.source.inside for path in found)


def _in_use(facts: ModuleFacts, nodes: list[ast.AST], used: set[str]) -> str:
    """The code of a file without comments, without strings that nothing reads (what a notebook has switched off), and
    without imports that were left behind."""
    lines = in_code(facts.file.text, facts.tree).split("\n")
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and not any(_is_used(name, node, used, nodes) for name in _imported(node)):
            for number in range(node.lineno - 1, node.end_lineno or node.lineno):
                lines[number] = ""
    return "\n".join(lines)


def _identifier(node: ast.AST) -> str:
    for field in ("id", "attr", "arg"):
        value = getattr(node, field, None)
        if isinstance(value, str):
            return value
    return ""


def _last(node: ast.expr) -> str:
    return dotted_ast(node).rpartition(".")[2]


# ---- one rank alone


@functools.cache
def _patterns(kind: str) -> re.Pattern[str]:
    return re.compile("|".join(table("launch")["one_rank"][kind]), re.IGNORECASE)


def on_one_rank(module: Module, node: cst.CSTNode) -> bool:
    """Whether a test or a decorator around `node` keeps it to one rank (of the job, a node or a group)."""
    if any(_is_for_first(module, test, taken) for test, taken in conditions(module, node)):
        return True
    exits = exits_inside(module, node)  # ``if is_initialized(): if get_rank() != 0: return``
    if any(_is_of_several(module, outer) and _is_for_first(module, inner, False) for outer, inner in exits):
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
        return len(bound) == 1 and bound[0].kind == "parameter" and _is_handed_by_one(module, bound[0])
    made = [v for v in values if dotted(v) != "None"]
    if isinstance(name, cst.Attribute) and len(made) == 1:  # ``self.writer = writer``
        stored = module.bindings(made[0]) if isinstance(made[0], cst.Name) else ()
        return len(stored) == 1 and stored[0].kind == "parameter" and _is_handed_by_one(module, stored[0])
    under = (any(first_rank_test(module.code(t), how, own) for t, how in conditions(module, v)) for v in made)
    return bool(made) and len(made) < len(values) and all(under)


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


def _is_of_several(module: Module, test: cst.BaseExpression) -> bool:
    """Whether a test holds where there are several processes."""
    text = module.code(test)
    return _SEVERAL.fullmatch(text) is not None and not text.startswith("not ")


#: Tests of how many processes there are: of several where they hold, or of one.
_SEVERAL = re.compile(
    r"(not )?(dist|[\w.]*distributed)\.is_initialized\(\)|(not )?[\w.]*(\b|_)(distributed|ddp)(\(\))?|"
    r"(not )?[\w.]+\[[\"'](\w+_)?(distributed|ddp)[\"']\]|"
    r"[\w.]*(world_size|num_processes)(\(\))? *(> *1|>= *2|!= *1)|([\w.]*[._])?rank is not None"
)
_ALONE = re.compile(r"[\w.]*(world_size|num_processes)(\(\))? *(< *2|<= *1|== *1)|([\w.]*[._])?rank is None")
_DDP = r"[\"'](?i:ddp|DistributedDataParallel)[\"']"
_IS_DDP = re.compile(rf"[\w.]+ *== *{_DDP}")
_IS_NONE = re.compile(r"([\w.]+) *(?:is|==) *None")
#: What a file knows besides of models that several ranks train.
_OTHER_KINDS = re.compile(r"fsdp|FullyShardedDataParallel|fully_shard|deepspeed|horovod|hvd|\btpu\b|xla", re.IGNORECASE)
#: Where ranks may be started by no call that is seen.
_ON_TPUS = re.compile(r"\btpu\b|xla", re.IGNORECASE)
#: A test of whether one process has several GPUs, where there is a wrap for that: a rank has one.
_SEVERAL_GPUS = re.compile(r"[\w.]*n_gpus? *(> *1|>= *2|!= *1)")
_DATA_PARALLEL = re.compile(r"\bDataParallel\(")


def uses_data_parallel(file: SourceFile) -> bool:
    """Whether a file wraps a model by `nn.DataParallel`, which trains on all GPUs in one process."""
    return file.shows(_DATA_PARALLEL)


def as_one_process(module: Module, node: cst.CSTNode) -> bool:
    """Whether a test around `node`, or an `assert` above it, says that there is one process: ``if world_size < 2``,
    ``if not distributed``, ``if rank is None``, ``if "RANK" not in os.environ``, the other branch of ``if
    args.parallel == "DDP"`` where a file knows no other kind, ``if n_gpu > 1`` before DataParallel, or a setting for
    which the file makes no group; or all groups that the file makes are of one process."""
    if asserts_one_process(module, node):
        return True
    if module.facts is not None and module.project is not None and makes_groups_of_one(module.facts, module.project):
        return True
    for test, taken in conditions(module, node):
        for part in conjuncts(test) if taken else (test,):
            text = module.code(part)
            if is_told_no_rank(module, part, taken):
                return True
            if taken and _SEVERAL_GPUS.fullmatch(text) and uses_data_parallel(module.file):
                return True
            if not taken and _IS_DDP.fullmatch(text) and not module.file.shows(_OTHER_KINDS):
                return True
            if taken and _is_of_no_kind(module, text):
                return True
            if _is_of_one(text, taken):
                return True
    return _has_ranks_of_group(module) and is_joined_elsewhere(module, node)


def is_kept_to_one_process(function: FunctionNode, node: ast.AST) -> bool:
    """Whether a test around a node of a function says that there is one process, as far as its text shows."""
    tests = ((part, taken) for test, taken in conditions_at(function, node) for part in conjuncts(test))
    return any(_is_of_one(cst.Module(()).code_for_node(part), taken) for part, taken in tests)


def _has_ranks_of_group(module: Module) -> bool:
    """Whether the ranks of a file are those that make its group: on TPUs they may do without, unless the file spawns
    them itself as processes of PyTorch."""
    if not module.file.shows(_ON_TPUS):
        return True
    facts, project = module.facts, module.project
    return facts is not None and project is not None and any(spawns(facts, project))


def _is_of_no_kind(module: Module, text: str) -> bool:
    """Whether a test says that a name is None for which the file knows the kind of several processes alone:
    ``if parallel_type is None``, where others are for ``parallel_type != "ddp"``."""
    found = _IS_NONE.fullmatch(text)
    if found is None or module.file.shows(_OTHER_KINDS):
        return False
    return re.search(rf"{re.escape(found[1])} *[=!]= *{_DDP}", module.file.code) is not None


def asserts_one_process(module: Module, node: cst.CSTNode) -> bool:
    """Whether an `assert` above `node` says that there is one process: ``assert not cfg.distributed``."""
    held = (part for test in asserted(module, node) for part in conjuncts(test))
    return any(_is_of_one(module.code(part), True) for part in held)


def _is_of_one(text: str, taken: bool) -> bool:
    """Whether the outcome of a test of how many processes there are is that of one."""
    if _SEVERAL.fullmatch(text):
        return text.startswith("not ") == taken
    return taken and _ALONE.fullmatch(text) is not None


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
    return (owner is None or is_plain(project, module.name_of(owner))) and not is_installed(project)


def called_in_one_process(module: Module, node: cst.CSTNode) -> bool:
    """Whether `node` is in a function that other files alone call, none of which several ranks run: of the helpers in
    one file some are for the training, and some for an evaluation in one process."""
    function, project = module.function_of(node), module.project
    if function is None or project is None or module.class_of(function) is not None:
        return False
    sites = call_sites(module, function)
    others = all(site.facts.name != module.name for site in sites)
    return bool(sites) and others and not any(program_of_ranks(site.facts, project) for site in sites)


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


# ---- rank expressions of the project's own


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
