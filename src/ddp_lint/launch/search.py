"""Questions about all files of a project: which hold a word, which import a module."""

from __future__ import annotations

import ast
import collections
import dataclasses
import functools
import itertools
import pathlib
import re
from collections.abc import Callable, Iterator

import libcst as cst

from ddp_lint.project import Project
from ddp_lint.project.facts import ModuleFacts
from ddp_lint.project.results import OfNames
from ddp_lint.source.imports import absolute, folders_put_on_path, is_script
from ddp_lint.source.syntax import FunctionNode, statements, walk
from ddp_lint.view import Module

_IMPORT_LINE = re.compile(r"^[ \t]*(?:from|import)\b[^\n]*(?:\([^)]*\))?", re.MULTILINE)
_WORD = re.compile(r"\w+")
#: Files that import a module are looked at until this many were read: beyond it the answer is "not found".
_READ_LIMIT = 200
#: Files that a program imports, directly or through others, which are looked at.
_THROUGH = 240
#: Files between a helper and the program that runs it which are looked at.
_BETWEEN = 8


def importers(project: Project, name: str, *, holding: tuple[str, ...]) -> Iterator[ModuleFacts]:
    """The modules that import the module `name`, or names from it, and hold one of the words `holding`.

    Also by way of a package whose `__init__` passes the module's names on.
    """
    wanted = set[pathlib.Path]().union(*(project.contents.holding(w) for w in holding))
    if not wanted:
        return
    seen = {name}
    for home in homes(project, name):
        package, _, last = home.rpartition(".")
        word = last or package
        found = [p for p in project.contents.holding(word) if p in wanted] if word else []
        for path in _likely(project, home, found):
            if word not in words_of_imports(project, path):
                continue
            table = _table_at(project, path)
            if table is None or table.name in seen or not _imports(project, table, home, name):
                continue
            facts = project.modules.facts_of(path)
            if facts is not None:
                seen.add(facts.name)
                yield facts


def _likely(project: Project, home: str, found: list[pathlib.Path]) -> list[pathlib.Path]:
    """Of the files that hold the last part of a module's name, those that are read: where there are too many, the ones
    first that hold the part before as well, or lie beside the module, which import it by that name."""
    before = home.rpartition(".")[0].rpartition(".")[2]
    if len(found) <= _READ_LIMIT or not before:
        return found[:_READ_LIMIT]
    place = project.modules.find(home)
    around, beside = set(project.contents.holding(before)), place.parent if place is not None else None
    return sorted(found, key=lambda path: path not in around and path.parent != beside)[:_READ_LIMIT]


def words_of_imports(project: Project, path: pathlib.Path) -> frozenset[str]:
    """The words of the lines of a file that import something."""
    found: frozenset[str] = project.remember(
        ("words of imports", path), functools.partial(_read_imports, project, path)
    )
    return found


def _read_imports(project: Project, path: pathlib.Path) -> frozenset[str]:
    return frozenset(
        word for line in _IMPORT_LINE.findall(project.contents.text(path) or "") for word in _WORD.findall(line)
    )


def programs(project: Project, name: str, *, holding: tuple[str, ...]) -> Iterator[ModuleFacts]:
    """The modules with one of the words that import the module `name`, then those that import a module which does: a
    model that loads its weights by a helper runs on the ranks of the program that makes it."""
    yield from importers(project, name, holding=holding)
    between = importers(project, name, holding=(name.rpartition(".")[2],))
    for facts in itertools.islice(between, _BETWEEN):
        if facts.name and not facts.source.is_test and not facts.file.holds("__main__"):
            yield from importers(project, facts.name, holding=holding)


def homes(project: Project, name: str) -> tuple[str, ...]:
    """A module, and the packages around it whose `__init__` imports from it or from a package that does."""
    found = [name]
    for package in _packages(name):
        facts = project.modules.facts(package)
        if facts is not None and any(imports_module(project, facts, home) for home in found):
            found.append(package)
    return tuple(found)


def _packages(name: str) -> Iterator[str]:
    package = name.rpartition(".")[0]
    while package:
        yield package
        package = package.rpartition(".")[0]


@dataclasses.dataclass(frozen=True)
class _Table(OfNames):
    """What the imports of the module `name` name, and what its names are that it imports."""

    name: str
    targets: tuple[str, ...]
    imported: tuple[str, ...]


def _table_at(project: Project, path: pathlib.Path) -> _Table | None:
    """The table of a file; None where it cannot be read. Many modules ask that of each file that has their name, and
    few of these import them: the syntax trees of all would not stay in memory."""

    def found() -> _Table | None:
        facts = project.modules.facts_of(path)
        if facts is None:
            return None
        return _Table(facts.name, _targets(project, facts), tuple(facts.imports.names.values()))

    return project.remember(("table of imports", path), found)


def _imports(project: Project, table: _Table, home: str, name: str) -> bool:
    """Whether a module imports `name`, or one of its names from the package `home` that passes them on."""
    if home == name:
        return _names(table.targets, name)
    passed_on = (project.meanings.canonical(target) for target in table.imported if target.startswith(f"{home}."))
    return any(target.startswith(f"{name}.") for target in passed_on)


def returned_by(module: Module, call: cst.CSTNode) -> ast.expr | None:
    """What the function of the project that is called returns, where it has one `return`: what ``exists(x)`` tests."""
    function = _called(module, call)
    returned = [n.value for n in walk(function) if isinstance(n, ast.Return)] if function is not None else []
    return returned[0] if len(returned) == 1 else None


def holds_by(module: Module, call: cst.CSTNode) -> list[tuple[ast.expr, bool]]:
    """By which tests the function or method of the project that is called returns what is true, each with its outcome:
    ``if self.rank == 0: return True``. Empty where it returns in other ways than by tests at its top, one by one."""
    function = _called(module, call)
    only = returned_by(module, call)
    if only is not None:
        return [(only, True)]
    found: list[tuple[ast.expr, bool]] = []
    for statement in function.body if isinstance(function, FunctionNode) else ():
        returned = [n for n in walk(statement) if isinstance(n, ast.Return)]
        whole = statement.body[-1] if isinstance(statement, ast.If) and not statement.orelse else statement
        if not returned:
            continue
        if returned != [whole]:
            return []
        value = returned[0].value
        constant = bool(value.value) if isinstance(value, ast.Constant) else None
        if isinstance(statement, ast.If):
            found += [(statement.test, True)] if constant else [(statement.test, False)] if constant is False else []
        if constant is None and value is not None:
            found.append((value, True))
    return found


def _called(module: Module, call: cst.CSTNode) -> ast.AST | None:
    """The function or class of the project that is called, or the method of a class of it."""
    name, project = module.callee(call) if isinstance(call, cst.Call) else "", module.project
    if not name or project is None:
        return None
    found = project.meanings.definition(project.meanings.canonical(name))
    owner, _, last = name.rpartition(".")
    method = project.classes.method(owner, last) if found is None and owner else None
    return found[1] if found is not None else method[1] if method is not None else None


def imports_module(project: Project, facts: ModuleFacts, name: str) -> bool:
    """Whether a module imports the module `name`, something from it, or all of it."""
    return _names(_targets(project, facts), name)


def _names(targets: tuple[str, ...], name: str) -> bool:
    return any(target == name or target.startswith(f"{name}.") for target in targets)


def imports_any(facts: ModuleFacts, packages: frozenset[str]) -> bool:
    """Whether a file imports something of some packages."""
    return any(target.partition(".")[0] in packages for target in (*facts.imports.names.values(), *facts.imports.stars))


def _targets(project: Project, facts: ModuleFacts) -> tuple[str, ...]:
    """What the imports of a file name. ``import package.module`` binds the package alone: the table of names has
    no entry for the module."""
    return project.remember(("targets of imports",), functools.partial(_read_targets, facts), facts.kept)


def _read_targets(facts: ModuleFacts) -> tuple[str, ...]:
    imports = (n for n in statements(facts.tree) if isinstance(n, ast.Import))
    whole = (alias.name for n in imports for alias in n.names)
    return tuple(dict.fromkeys((*facts.imports.names.values(), *facts.imports.stars, *whole)))


def leads_to(project: Project, program: ModuleFacts, name: str) -> bool:
    """Whether a module imports the module `name`, directly or through others, of which some are looked at."""
    return name in imported_through(project, program)


def imported_through(project: Project, program: ModuleFacts) -> frozenset[str]:
    """A module and those that it imports, directly or through others, anywhere in a file."""
    return imported_through_at(project, program.name, program.source.inside, lambda: program)


def imported_through_at(
    project: Project, name: str, inside: str, read: Callable[[], ModuleFacts | None] | None = None
) -> frozenset[str]:
    """`imported_through`, for the module of a file by its name and its path below the root. `read` gives its facts."""

    def found() -> frozenset[str]:
        place = project.modules.place(name)
        # Of several files by one name that is found as one of them, each imports what it names itself.
        if place is not None and project.paths.relative(place) == inside:
            return _through(project, name, _imported_by(project, name) or ())
        facts = read() if read is not None else project.modules.facts_at(project.paths.absolute(inside))
        return _through(project, name, _modules_of_imports(project, facts) if facts is not None else ())

    return project.remember(("leads to", name), found)


def _through(project: Project, name: str, own: tuple[str, ...]) -> frozenset[str]:
    found, queue = {name}, collections.deque([own])
    while queue and len(found) < _THROUGH:
        for module in queue.popleft():
            imported = _imported_by(project, module) if module not in found else None
            if imported is not None:
                found.add(module)
                queue.append(imported)
    return frozenset(found)


def _imported_by(project: Project, name: str) -> tuple[str, ...] | None:
    """The modules that a module imports itself; None where it cannot be read. Kept apart from the module: each program
    asks that of hundreds of files, whose syntax trees would not all stay in memory."""

    def found() -> tuple[str, ...] | None:
        facts = project.modules.facts(name)
        return _modules_of_imports(project, facts) if facts is not None else None

    return project.remember(("imported modules", name), found)


def _put_on_path(project: Project, facts: ModuleFacts, path: pathlib.Path) -> tuple[str, ...]:
    """The folders that a file puts on the path of modules, itself or by a module beside it that it imports for nothing
    else: ``import _init_paths``."""
    whole = (n for n in facts.tree.body if isinstance(n, ast.Import))
    names = (alias.name for n in whole for alias in n.names if alias.asname is None and alias.name.isidentifier())
    beside = (project.contents.text(path.parent / f"{name}.py") or "" for name in names if "path" in name)
    return tuple(dict.fromkeys(each for text in (facts.file.text, *beside) for each in folders_put_on_path(text)))


def _modules_of_imports(project: Project, facts: ModuleFacts) -> tuple[str, ...]:
    """The modules that a file imports itself. The table of names has one import for each name, but the branches
    of a function can each bind one: ``from data.pairs import Pairs as D``."""
    targets = dict.fromkeys(_targets(project, facts))
    path = project.modules.find(facts.name)
    if path is not None:
        _, is_package = project.modules.name_of(path)
        started, below = is_script(facts.file.text), _put_on_path(project, facts, path)
        for node in (n for n in statements(facts.tree) if isinstance(n, ast.ImportFrom)):
            base = absolute(node, facts.name, is_package)
            names = [f"{base}.{alias.name}" for alias in node.names]
            # Whoever starts a script puts its folder in front, or another one.
            places = (started, False)
            located = (
                names
                if node.level
                else [project.modules.locate(n, path, place, below) for n in names for place in places]
            )
            targets |= dict.fromkeys(located)
    found: dict[str, None] = {}
    for target in targets:
        home = target.rpartition(".")[0]
        if home and facts.name.startswith(f"{home}."):
            # Of a package around it a file takes that name alone: what else the package imports is for others.
            home = project.meanings.canonical(target).rpartition(".")[0]
            home = "" if facts.name.startswith(f"{home}.") else home
        found |= {home: None, target: None}
    return tuple(name for name in found if name and project.modules.find(name) is not None)
