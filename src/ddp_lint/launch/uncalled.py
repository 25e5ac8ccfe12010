"""Functions and methods that no step of the project's training comes by, as nothing in the project calls them.

Of a package that is installed, others may call any function: what `launch.unused` and `launch.reached` say of programs
leaves these out. Whether that happens once or in each step of a training, nobody knows. What costs time in every step
alone is no more than possible there.
"""

from __future__ import annotations

import ast
import posixpath
import re

from ddp_lint.launch.reached.names import MODULE, PROGRAM, body_at
from ddp_lint.launch.reached.walk import CALLED
from ddp_lint.launch.search import imported_through, importers, words_of_imports
from ddp_lint.launch.texts import called_in_texts, words_of_settings
from ddp_lint.launch.unused import (
    files_mentioning,
    is_foreign,
    is_given_away,
    is_in_use,
    is_plain,
    lines_mentioning,
)
from ddp_lint.project import Project
from ddp_lint.project.facts import ModuleFacts, methods_of
from ddp_lint.project.uses import Use, uses
from ddp_lint.source.imports import dotted_ast
from ddp_lint.source.syntax import FunctionNode, calls_below

#: Files that hold a name which are looked at; one that more files hold counts as called.
_FILES = 25
#: Functions that call each other which are looked at.
_FUNCTIONS = 24
#: Methods that a function calls which is a step of a training itself.
_STEPS = frozenset({"step", "backward", "manual_backward", "optimizer_step"})
#: What a program that trains says somewhere.
_TRAINING = re.compile(r"\b(backward|step|fit|train\w*|\w*Trainer)\b")
#: Calls by which a file imports modules whose names it computes.
_IMPORTS = ("import_module(", "__import__(", "iter_modules")

#: A function: its module, and its name there (`Class.method` of a method).
_Function = tuple[str, str]


def is_in_no_step(project: Project, facts: ModuleFacts, line: int) -> bool:
    """Whether nothing in the project calls the function that a line of a file is in, or only functions which nothing
    calls either. Not one that goes backward or steps an optimizer: whoever calls it trains."""
    if not is_in_use(project, facts):
        return False
    body = body_at(facts.tree, line)
    key = ("in no step", body)
    found: bool = project.remember(key, lambda: _is_uncalled(project, facts, body, set()), facts.kept)
    return found


def _is_uncalled(project: Project, facts: ModuleFacts, body: str, above: set[_Function]) -> bool:
    owner, _, name = body.rpartition(".")
    function = _function(facts, owner, name)
    if function is None or len(above) >= _FUNCTIONS or _is_step(function) or is_given_away(facts, function):
        return False
    above.add((facts.name, body))
    settings = words_of_settings(project)
    if settings is None or name in settings or called_in_texts(project, name):
        return False
    callers = _callers(project, facts, owner, name)
    return callers is not None and all(
        each in above or _trains_nothing(project, user, each[1]) or _is_uncalled(project, user, each[1], above)
        for each, user in callers.items()
    )


def _trains_nothing(project: Project, facts: ModuleFacts, body: str) -> bool:
    """Whether a body is that of a program which stands alone, and nothing in its file trains a model."""
    is_program = body == PROGRAM and not facts.file.shows(_TRAINING)
    return is_program and imported_through(project, facts) == {facts.name} and _is_imported_by_none(project, facts)


def _function(facts: ModuleFacts, owner: str, name: str) -> FunctionNode | None:
    """A function by its name in a file; None for what is none, or what others call by its name."""
    if name in (MODULE, PROGRAM) or (name.startswith("main") and not owner):
        return None
    if not owner:
        found = facts.definitions.get(name)
    else:
        cls = facts.definitions.get(owner)
        found = methods_of(cls).get(name) if isinstance(cls, ast.ClassDef) and not CALLED.fullmatch(name) else None
    return found if isinstance(found, FunctionNode) else None


def _is_step(function: FunctionNode) -> bool:
    return any(isinstance(call.func, ast.Attribute) and call.func.attr in _STEPS for call in calls_below(function))


def _callers(project: Project, facts: ModuleFacts, owner: str, name: str) -> dict[_Function, ModuleFacts] | None:
    """The functions that may call one, with their files; None where not all are seen."""
    if owner:
        return _callers_of_method(project, facts, owner, name)
    found: dict[_Function, ModuleFacts] = {}
    paths = files_mentioning(project, facts, name, by_text=True)
    definition = facts.definitions.get(name)
    if len(paths) > _FILES or definition is None:
        return None
    for user in filter(None, map(project.modules.facts_of, paths)):
        if not user.source.is_test or user.name == facts.name:
            lines = lines_mentioning(project, user, name, definition)
            found |= {(user.name, body_at(user.tree, line)): user for line in lines}
    return found


def _callers_of_method(
    project: Project, facts: ModuleFacts, owner: str, name: str
) -> dict[_Function, ModuleFacts] | None:
    """The functions that may call a method. Of a class of another package, that package may call it."""
    whole = f"{facts.name}.{owner}"
    paths = project.contents.holding(name)
    if len(paths) > _FILES or not is_plain(project, whole):
        return None
    found: dict[_Function, ModuleFacts] = {}
    as_string, alone = re.compile(rf"[\"']{name}[\"']"), _is_imported_by_none(project, facts)
    for user in filter(None, map(project.modules.facts_of, paths)):
        if user.source.is_test and user.name != facts.name:
            continue
        if as_string.search(user.file.code):
            return None
        for use in uses(user, name) if not alone or user.name == facts.name else ():
            if _may_mean(project, user, use, whole):
                found[user.name, body_at(user.tree, use.node.lineno)] = user
    return found


def _is_imported_by_none(project: Project, facts: ModuleFacts) -> bool:
    """Whether no other file imports a module, so that none has objects of its classes: an old copy."""
    stem, folder = facts.name.rpartition(".")[2], posixpath.dirname(facts.source.inside)
    if any(True for _ in importers(project, facts.name, holding=(stem,))):
        return False
    computing = (project.paths.inside(path) for word in _IMPORTS for path in project.contents.holding(word))
    if any(posixpath.dirname(inside) == folder for inside in computing):
        return False
    # A file may be started from a folder that is not seen, but takes a module beside it before one of the same name.
    by_name = (path for path in project.contents.holding(stem) if stem in words_of_imports(project, path))
    others = (path for path in by_name if project.paths.inside(path) != facts.source.inside)
    beside = {posixpath.dirname(inside) for inside in project.contents.named(f"{stem}.py")} - {folder}
    return all(posixpath.dirname(project.paths.inside(path)) in beside for path in others)


def _may_mean(project: Project, user: ModuleFacts, use: Use, owner: str) -> bool:
    """Whether an expression may be a method of a class: not one of ``self`` in a class that has nothing to do with it,
    nor what another package has."""
    if not isinstance(use.node, ast.Attribute):
        return use.owner is not None and use.around is None  # ``scale = property(get_scale)``
    made = use.node.value
    made = made.func if isinstance(made, ast.Call) else made
    of = dotted_ast(made)
    cls = use.owner if of in ("self", "cls") else user.definitions.get(of)
    # Below its test for the program, a file may import another class by the name of its own.
    replaced = user.imports.resolve(of) is not None and body_at(user.tree, use.node.lineno) == PROGRAM
    if isinstance(cls, ast.ClassDef) and not replaced:
        above, there = project.classes.lineage(owner), project.classes.lineage(project.classes.of(user, cls).name)
        return above[0] in there or there[0] in above
    return not is_foreign(project, project.meanings.of(user, made))
