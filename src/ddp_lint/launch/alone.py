"""Programs that are one process, in a project whose other programs make the process group themselves, or are started by
its scripts with several: the names that they share with those (``args.distributed``, a sampler) show no ranks."""

from __future__ import annotations

import ast
import dataclasses
import functools
import pathlib
import re
from collections.abc import Callable, Iterator

from ddp_lint.knowledge import table
from ddp_lint.launch.fixed_ranks import is_fixed
from ddp_lint.launch.joining import joining_functions, lines_off, makes_group
from ddp_lint.launch.reached.names import MODULE, body_at
from ddp_lint.launch.reached.walk import is_reached_from, reached
from ddp_lint.launch.search import imported_through_at, importers
from ddp_lint.launch.sizes import spawns_one
from ddp_lint.launch.started import launched_alone, started_alone, starts_several
from ddp_lint.launch.texts import is_installed
from ddp_lint.launch.unused import TAKES_GLOBALS, does_something, is_unused, is_unused_at, is_variable
from ddp_lint.project import Project
from ddp_lint.project.facts import ModuleFacts
from ddp_lint.project.parts import kept_by_node
from ddp_lint.project.results import OfNames
from ddp_lint.project.uses import uses
from ddp_lint.source.imports import dotted_ast, is_script, last_part
from ddp_lint.source.syntax import (
    calls_below,
    defaults,
    function_at,
    holds_line,
    is_int,
    is_main_guard,
    main_guards,
    statements,
    walk,
)

#: What shows ranks in a file: each word with its node.
Shown = Callable[[ModuleFacts, Project], Iterator[tuple[str, ast.AST]]]

#: Files between a helper and the programs that run it which are looked at; of a helper with more nothing is said.
_ABOVE = 40
#: Calls that may join a group or start ranks, by their names alone: of what is not in the project.
MAY_JOIN = re.compile(r"init\w*_(dist|ddp|process_group)|(dist|ddp)\w*_init|spawn|start_processes|launch\w*|torchrun")
#: What only ranks of a group can call, as is done without a test of whether there is one.
_WRAPS = frozenset(
    {"torch.nn.parallel.DistributedDataParallel", "torch.distributed.fsdp.FullyShardedDataParallel"}
    | {f"torch.distributed.{name}" for name in ("barrier", "all_reduce", "all_gather", "broadcast", "new_group")}
)
#: Classes of other packages whose objects start the ranks, or join them, without a word of it in the program.
_RUNNERS = re.compile(r"\w*(Trainer|TrainingArguments|Strategy|Runner|Engine|Accelerator|Fabric)(_\w+)?")
#: Packages whose classes of such names start no ranks.
_STARTS_NONE = re.compile(r"typing|torch\.(?!distributed\b)")
#: How a program starts other processes.
_STARTS_ITSELF = re.compile(
    r"\bspawn\(|start_processes|notebook_launcher|\bsubprocess\b|os\.system\(|\w*Process\(|\w*launch\w*\("
)
#: The one GPU that a program leaves itself, whatever its rank.
_ONE_GPU = re.compile(
    r"(?m)^os\.environ\[[\"']CUDA_VISIBLE_DEVICES[\"']\] *= *"
    r"(?:[\"']\d[\"']|[\"'],[\"']\.join\((?:str\((\w+)\) for \1 in|map\(str,) *\[\d\]\)+) *$"
)
#: What makes options of a program of the parameters of its functions.
_MAKES_OPTIONS = re.compile(r"\b(fire|Fire|click|typer|tyro|jsonargparse|plac|defopt|CLI)\b")
#: How a program comes to modules that it does not import by their names.
_BY_NAME = re.compile(rf"import_module\(|__import__\(|(?<!\w)_target_(?!\w)|\binstantiate\(|{TAKES_GLOBALS}|Fire\(\)")


def run_alone(facts: ModuleFacts, project: Project, line: int | None, shown: Shown) -> bool:
    """Whether each program that comes to a file, or to a line of it, is one process. False where no program is seen, or
    where the project neither makes a group itself nor starts its programs: then whatever starts the ranks is not
    seen."""
    if not facts.name or not (makes_group(project) or starts_several(project)):
        return False
    programs = _coming_to(facts, project, line)
    if not programs and line is not None:
        return _is_in_no_program(facts, project, line)
    return bool(programs) and all(_is_alone(project, program, shown) for program in programs)


@dataclasses.dataclass(frozen=True)
class _Program(OfNames):
    """A file that is run, by the name of its module and its path below the root: hundreds come to a function of a
    large project, whose syntax trees would not all stay in memory."""

    name: str
    inside: str

    def facts(self, project: Project) -> ModuleFacts | None:
        return project.modules.facts_of(pathlib.Path(project.paths.absolute(self.inside)))


def _is_in_no_program(facts: ModuleFacts, project: Project, line: int) -> bool:
    """Whether a line is in what no program comes to that imports the file: those that call a method by that name have
    it from another class."""
    programs = _programs_above(facts, project) if not is_installed(project, facts) else ()
    own = _Program(facts.name, facts.source.inside)
    # A program that stands alone may be an excerpt, which leaves out who calls its methods.
    left = (
        bool(programs)
        and own not in programs
        and not any(is_reached_from(project, program.name, facts, line) for program in (*programs, own))
    )
    return left and not is_unused(project, facts, line)  # what nothing calls is another matter


def shows_no_ranks(facts: ModuleFacts, project: Project, line: int | None, shown: Shown) -> bool:
    """Whether the programs that come to a file, or to a line of it, are seen, and none of them shows several ranks,
    whether or not others of the project do. Who has installed a project may run its modules in other programs."""
    if not facts.name or is_installed(project, facts):
        return False
    programs = _coming_to(facts, project, line)
    return bool(programs) and all(
        _is_alone(project, each, shown) or _shows_nothing(project, each, shown) for each in programs
    )


def modules_around(facts: ModuleFacts, project: Project, line: int | None) -> frozenset[str]:
    """The modules of all programs that come to a file, or to a line of it; none where these are not seen, or others
    may use what the project has."""
    programs = _coming_to(facts, project, line) if facts.name and not is_installed(project, facts) else ()
    return frozenset[str]().union(*(_modules(project, program) for program in programs))


def _coming_to(facts: ModuleFacts, project: Project, line: int | None) -> tuple[_Program, ...]:
    """The programs that come to a file, or to a line of it."""
    if line is not None and _is_in_guard(facts, line):
        return (_Program(facts.name, facts.source.inside),)
    path, found = project.modules.find(facts.name), reached(project)
    if path is not None:
        body = body_at(facts.tree, line) if line is not None else MODULE
        files = found.coming_to((project.paths.inside(path), body))
        known = [(file, _standing(project, file)) for file in sorted(files)]
        # Of a file that has no more than a function `main` it is not seen who calls that.
        seen = tuple(
            _Program(each.name, file) for file, each in known if each is not None and each.name and each.is_run
        )
        if seen and len(seen) == len(known):
            return seen
    programs = _programs_above(facts, project)
    return tuple(each for each in programs if line is None or is_reached_from(project, each.name, facts, line))


@dataclasses.dataclass(frozen=True)
class _Standing(OfNames):
    """Of a file the name of its module, whether it is a test, whether it says that it may be the program, and whether
    it does something where it is run."""

    name: str
    is_test: bool
    is_main: bool
    is_run: bool


def _standing(project: Project, inside: str) -> _Standing | None:
    """That of a file, by its path below the root; None where it cannot be read."""

    def found() -> _Standing | None:
        facts = _Program("", inside).facts(project)
        if facts is None:
            return None
        return _Standing(facts.name, facts.source.is_test, facts.file.holds("__main__"), _is_run(facts))

    return project.remember(("standing of file", inside), found)


def _is_run(facts: ModuleFacts) -> bool:
    """Whether a file does something where it is run."""
    return facts.file.holds("__main__") or does_something(facts) or is_script(facts.file.text)


def _is_in_guard(facts: ModuleFacts, line: int) -> bool:
    """Whether a line is below the test of a file for whether it is the program: who imports it does not come there."""
    around = (statement for statement in facts.tree.body if holds_line([statement], line))
    return any(is_main_guard(statement) and not statement.orelse for statement in around)


def shown_alone(facts: ModuleFacts, project: Project) -> bool:
    """Whether the project shows how to start all programs that come to a file, each by a launcher with one process, or
    they leave themselves one GPU: of several ranks nothing is seen."""
    programs = _programs_above(facts, project) if facts.name else ()
    return bool(programs) and all(_has_one_gpu(project, p) or launched_alone(project, p.inside) for p in programs)


def _has_one_gpu(project: Project, program: _Program) -> bool:
    facts = program.facts(project)
    return facts is not None and facts.file.shows(_ONE_GPU)


def _programs_above(facts: ModuleFacts, project: Project) -> tuple[_Program, ...]:
    return project.remember(("programs above", facts.name), lambda: _programs(facts, project))


def _programs(facts: ModuleFacts, project: Project) -> tuple[_Program, ...]:
    """The files that are run and import this one, directly or through others. None where one that nothing imports is no
    program: who uses it is not seen."""
    own = _Program(facts.name, facts.source.inside)
    found, queue = {own.name}, [own]
    programs = []
    while queue:
        each = queue.pop()
        above, standing = _users(each.name, project), _standing(project, each.inside)
        if standing is not None and (standing.is_main or (not above and standing.is_run)):
            programs.append(each)
        elif not above:
            return ()
        new = [user for user in above if user.name not in found]
        found.update(user.name for user in new)
        queue += new
        if len(found) > _ABOVE:
            return ()
    return tuple(programs)


def _users(name: str, project: Project) -> tuple[_Program, ...]:
    """The files that import a module, but for tests, looked for once: all files below it in the imports ask."""

    def found() -> tuple[_Program, ...]:
        users = importers(project, name, holding=("import",))
        return tuple(_Program(u.name, u.source.inside) for u in users if u.name and not u.source.is_test)

    return project.remember(("users of module", name), found)


def _modules(project: Project, program: _Program) -> frozenset[str]:
    return imported_through_at(project, program.name, program.inside)


def _is_alone(project: Project, program: _Program, shown: Shown) -> bool:
    def found() -> bool:
        facts = program.facts(project)
        if facts is None:
            return False
        if _is_started_alone(project, program, facts, shown) or spawns_one(facts, project):
            return True
        return makes_group(project) and _shows_nothing(project, program, shown)

    return project.remember(("alone", program.name), found)


def _is_started_alone(project: Project, program: _Program, facts: ModuleFacts, shown: Shown) -> bool:
    """Whether the project's scripts start a program as one process. One that is started without a launcher may start
    ranks itself, and one that shows ranks may be started by a launcher as well."""
    how = started_alone(project, program.inside)
    if how != "plain":
        return how == "one"
    if next(shown(facts, project), None) is not None:
        return False
    return not any(_may_start_ranks(project, name) for name in _modules(project, program))


def _may_start_ranks(project: Project, name: str) -> bool:
    """Whether a module may start processes by what it calls itself, or by names that it does not have."""

    def found() -> bool:
        facts = project.modules.facts(name)
        if facts is None:
            return False
        return facts.file.shows(_STARTS_ITSELF) or _comes_by_name(project, facts)

    return project.remember(("may start ranks", name), found)


def _comes_by_name(project: Project, facts: ModuleFacts) -> bool:
    return facts.file.shows(_BY_NAME) or has_runner(facts, project)


def _shows_nothing(project: Project, program: _Program, shown: Shown) -> bool:
    """Whether nothing that a program comes to makes a group, starts ranks or is told its rank by a launcher."""
    if program.inside in reached(project).programs:
        return program.inside not in project.remember(("programs that show ranks",), lambda: _showing(project, shown))
    key = ("shows nothing of ranks", program.name)
    return project.remember(key, lambda: _is_without_signs(project, program, shown))


def _showing(project: Project, shown: Shown) -> frozenset[str]:
    """The files of the programs that come to what makes a group, starts ranks or is told its rank by a launcher."""
    found, showing = reached(project), set[str]()
    for inside in [file for file, body in found.bits if body == MODULE]:
        facts = _Program("", inside).facts(project)
        if facts is None or _comes_by_name(project, facts):
            showing |= found.coming_to((inside, MODULE))
            continue
        for line, name in _lines_of_ranks(facts, project, shown):
            coming = found.coming_to((inside, body_at(facts.tree, line))) - showing
            showing |= {file for file in coming if not _is_idle_in(project, file, facts, line, name)}
    return frozenset(showing)


def _is_idle_in(project: Project, inside: str, facts: ModuleFacts, line: int, name: str) -> bool:
    """Whether a line of a program, by its file, shows no ranks there: a name at it is a parameter that is given numbers
    alone, or nothing uses the function around, which whoever starts the file might call."""
    standing = _standing(project, inside)
    if standing is None:
        return False
    among = _modules(project, _Program(standing.name, inside))
    if name and is_fixed(project, facts, line, name, among):
        return True
    return inside == facts.source.inside and is_unused_at(project, facts, line, among, facts.name)


def _is_without_signs(project: Project, program: _Program, shown: Shown) -> bool:
    among = _modules(project, program)
    for name in among:
        facts = project.modules.facts(name)
        if facts is None or _comes_by_name(project, facts):
            return False
        if any(
            not is_unused_at(project, facts, line, among, program.name)
            and not (name and is_fixed(project, facts, line, name, among))
            for line, name in _lines_of_ranks(facts, project, shown)
        ):
            return False
    return True


def _lines_of_ranks(facts: ModuleFacts, project: Project, shown: Shown) -> frozenset[tuple[int, str]]:
    found: frozenset[tuple[int, str]] = project.remember(
        ("lines of ranks",), functools.partial(_lines, facts, project, shown), facts.kept
    )
    return found


def _lines(facts: ModuleFacts, project: Project, shown: Shown) -> frozenset[tuple[int, str]]:
    """The lines of a file that show a group, whoever runs it, each with the name that does, '' for more than a name."""
    off = lines_off(facts.tree, facts.file.text)
    joins = ((node, "") for node in _joins(facts, project))
    told = ((node, _given_name(node)) for node in _told(facts, project, shown, bool(off)))
    lines = ((getattr(node, "lineno", 1), name) for node, name in (*joins, *told))
    return frozenset(each for each in lines if each[0] not in off)


def _given_name(node: ast.AST) -> str:
    """The variable that a node is, or hands on by a keyword."""
    given = node.value if isinstance(node, ast.keyword) else node
    return given.id if isinstance(given, ast.Name) else given.arg if isinstance(given, ast.arg) else ""


def has_runner(facts: ModuleFacts, project: Project) -> bool:
    """Whether a file uses a class of another package that starts ranks, or joins them, by itself."""
    # A folder without `__init__.py` is a package of the project as well.
    foreign = (
        t
        for t in facts.imports.names.values()
        if not (project.modules.find(t.partition(".")[0]) or project.meanings.split(t))
    )
    return any(_RUNNERS.fullmatch(target.rpartition(".")[2]) for target in foreign if not _STARTS_NONE.match(target))


def _joins(facts: ModuleFacts, project: Project) -> Iterator[ast.AST]:
    """Where a file joins a group or starts ranks, or names a function that does, also where only its name says so."""
    functions = joining_functions(project)
    lasts = {name.rpartition(".")[2] for name in functions}
    called = {id(call.func) for call in calls_below(facts.tree)}
    # A file that has the function which makes the group gets it by that, or not at all.
    makes = any(name.rpartition(".")[0] == facts.name for name in functions)
    guards = set(map(id, main_guards(facts.tree)))
    tests = (n for n in statements(facts.tree) if isinstance(n, ast.If) and id(n) not in guards)
    tested = {line for n in tests for line in range(n.lineno, (n.end_lineno or n.lineno) + 1)}
    for node in walk(facts.tree):
        if not isinstance(node, (ast.Name, ast.Attribute)):
            continue
        last = last_part(node)
        if id(node) in called and not makes and facts.qualified(node) in _WRAPS and node.lineno not in tested:
            yield node  # it fails without a group: where none is seen, another package has made it
        if isinstance(node, ast.Attribute) and dotted_ast(node).startswith("self.") and not MAY_JOIN.search(last):
            continue  # what an object has is no function at the top of a file
        if last not in lasts and not (id(node) in called and MAY_JOIN.search(last)):
            continue
        if is_variable(node, function_at(facts.tree, node.lineno)):
            continue
        meaning = project.meanings.of(facts, node)
        if meaning in functions or project.meanings.split(meaning or dotted_ast(node)) is None:
            yield node


def _told(facts: ModuleFacts, project: Project, shown: Shown, decides: bool) -> Iterator[ast.AST]:
    """Where a file shows ranks by more than the names of settings, and than what torch offers for several ranks.
    `decides`: it has the join itself, switched off."""
    weak = {*table("launch")["settings"]["identifiers"]} | ({"local_rank"} if decides else set())
    said = project.own.names.words  # the configuration says of these that they are of ranks
    for word, node in shown(facts, project):
        shows = word not in weak and not (word in _constants(facts) and _is_name_of(word, node))
        if word in said or (shows and not _is_shown_elsewhere(facts, project, word, node)):
            yield from _read_at(facts, node)


def _is_name_of(word: str, node: ast.AST) -> bool:
    """Whether a node is a variable of a name, or hands that one on by the same name."""
    return word == _given_name(node)


def _constants(facts: ModuleFacts) -> frozenset[str]:
    """Names that a file gives numbers alone, in assignments and as the defaults of parameters: ``local_rank = 0``. Who
    gives a parameter something else shows the ranks itself, but for the packages that make options of parameters."""
    return _numbered(facts.tree) if not facts.file.shows(_MAKES_OPTIONS) else frozenset()


@kept_by_node(32)
def _numbered(tree: ast.Module) -> frozenset[str]:
    pairs = [pair for node in walk(tree) if isinstance(node, ast.arguments) for pair in defaults(node)]
    numbers = {id(parameter) for parameter, default in pairs if is_int(default)}
    others = {n.arg for n in walk(tree) if isinstance(n, ast.arg) and id(n) not in numbers}
    assigned = [n for n in statements(tree) if isinstance(n, ast.Assign) and is_int(n.value)]
    stored = {id(target) for node in assigned for target in node.targets}
    names = (n for n in walk(tree) if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Load))
    others |= {name.id for name in names if id(name) not in stored}
    given = {parameter.arg for parameter, _ in pairs if id(parameter) in numbers}
    given |= {target.id for node in assigned for target in node.targets if isinstance(target, ast.Name)}
    return frozenset(given - others)


def _read_at(facts: ModuleFacts, node: ast.AST) -> Iterator[ast.AST]:
    """Where a string is used: for one of a list that the file keeps for itself, where the list is read."""
    lists = (n for n in facts.tree.body if isinstance(n, ast.Assign) and isinstance(n.value, (ast.Tuple, ast.List)))
    around = next((n for n in lists if isinstance(node, ast.Constant) and any(p is node for p in walk(n.value))), None)
    name = around.targets[0] if around is not None else None
    if not isinstance(name, ast.Name) or not name.id.startswith("_"):
        yield node
    else:
        yield from (use.node for use in uses(facts, name.id) if use.node is not name)


def _is_shown_elsewhere(facts: ModuleFacts, project: Project, word: str, node: ast.AST) -> bool:
    """Whether a name is of torch, or is defined in the project, which shows there what it does."""
    if isinstance(node, ast.ImportFrom):
        names = [facts.imports.resolve(alias.asname or alias.name) or "" for alias in node.names]
        return word.partition(".")[0] == "torch" or any(project.meanings.split(name) for name in names if name)
    if isinstance(node, ast.Import):
        return word.partition(".")[0] == "torch"
    meaning = project.meanings.of(facts, node) if isinstance(node, (ast.Name, ast.Attribute)) else ""
    return meaning.partition(".")[0] == "torch" or project.meanings.definition(meaning) is not None
