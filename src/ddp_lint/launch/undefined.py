"""Expressions that fail wherever they are evaluated: names that a file does not have, options that no parser defines,
calls that a function of the project does not take."""

from __future__ import annotations

import ast
import builtins
import collections
import re
from collections.abc import Iterator, Sequence

from ddp_lint.launch.options import bound_by, is_set, options_of
from ddp_lint.launch.search import importers
from ddp_lint.project import Project
from ddp_lint.project.facts import ModuleFacts
from ddp_lint.project.parts import inside
from ddp_lint.source.file import SourceFile
from ddp_lint.source.imports import dotted_ast
from ddp_lint.source.syntax import FunctionNode, below, defaults, main_guards, parameters, positional, walk

#: Modules of ``from module import *`` that are gone through, one in the other.
_DEPTH = 4
#: The names that a program reads for each one that it binds nowhere: with more of these, it is an excerpt.
_WHOLE = 100
#: Names that a file has without binding them: also those that a shell, a profiler, gettext, what runs the file or an
#: older Python brings.
_BROUGHT = frozenset({*dir(builtins), "__file__", "__path__", "__builtins__", "__class__", "__annotations__"})
_SHELL = frozenset(
    {
        "get_ipython", "display", "profile", "_", "exit", "quit", "copyright", "credits", "license", "reveal_type",
        "snakemake", "spark", "sc", "dbutils", "sqlContext",
        "unicode", "xrange", "raw_input", "reload", "basestring", "long", "unichr", "file", "cmp", "reduce", "execfile",
        "apply", "buffer", "intern",
    }
)  # fmt: skip
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_ANNOTATED = (ast.arg, ast.AnnAssign, *_FUNCTIONS)
#: How a file gets names that it does not bind.
_MAKES_NAMES = re.compile(
    r"\b(?:globals|exec|locals)\(|\bvars\(\s*\)|__builtins__|get_ipython|_getframe"
    # A program that prints on rank 0 alone gives no new name to `builtins`.
    r"|\bbuiltins\.(?!print\b)\w+\s*(?:=(?!=)|\[|\.)|\(\s*builtins\b|\bbuiltins as\b|\bfrom builtins\b",
)
#: A command of a notebook.
_MAGIC = re.compile(r"^[ \t]*[%!]\w", re.MULTILINE)


def _makes_names(file: SourceFile) -> bool:
    """Whether a file may get names that it binds nowhere."""
    return file.shows(_MAKES_NAMES) or file.shows(_MAGIC)


# ---- names


def unbound(project: Project, facts: ModuleFacts) -> frozenset[ast.AST]:
    """The names that a file reads and binds nowhere, nor gets from a module that it imports all of. Of a file that
    stands alone only those of a whole program: an excerpt, as in a question, leaves out what its names are."""
    return project.remember(("unbound names",), lambda: frozenset(_unbound(project, facts)), facts.kept)


def _unbound(project: Project, facts: ModuleFacts) -> Iterator[ast.Name]:
    path = project.modules.find(facts.name) if facts.name else None
    if path is None or path.suffix != ".py" or facts.source.is_test or _makes_names(facts.file):
        return
    bound: set[str] = {*_BROUGHT, *_SHELL}
    stars = 0
    loaded: list[ast.Name] = []
    idle: set[ast.AST] = set()
    for node in walk(facts.tree):
        bound.update(bound_by(node))
        stars += isinstance(node, ast.alias) and node.name == "*"
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            loaded.append(node)
        for annotation in _annotations(node) if isinstance(node, _ANNOTATED) else ():
            idle.update(walk(annotation) if isinstance(annotation, ast.AST) else ())
    missing = [each for each in loaded if each.id not in bound and each not in idle]
    if not missing or stars > len(facts.imports.stars):
        return
    if not _is_whole(facts, missing, loaded) and not _belongs(project, facts):
        return
    yield from (each for each in missing if not _may_come_by_star(project, facts, each.id))


def _is_whole(facts: ModuleFacts, missing: Sequence[ast.Name], loaded: Sequence[ast.Name]) -> bool:
    """Whether a file is a program that binds nearly all of many names that it reads."""
    few = len({each.id for each in missing}) * _WHOLE <= len({each.id for each in loaded})
    return few and any(True for _ in main_guards(facts.tree))


def _belongs(project: Project, facts: ModuleFacts) -> bool:
    """Whether a file imports another one of the project, or another one imports it."""
    imports = any(map(project.meanings.split, facts.imports.names.values()))
    return imports or any(importers(project, facts.name, holding=("import",)))


def _annotations(node: ast.AST) -> tuple[ast.AST | None, ...]:
    return getattr(node, "annotation", None), getattr(node, "returns", None)


def _may_come_by_star(project: Project, facts: ModuleFacts, name: str, depth: int = _DEPTH) -> bool:
    """Whether a file may get a name from a module that it imports all of: from any that is not the project's."""
    for star in facts.imports.stars:
        source = project.modules.facts(star)
        if source is None or not depth or source.file.holds(name) or _makes_names(source.file):
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
    options = options_of(project, facts, function, name.id)
    return options is not None and word not in options.names and not is_set(project, word, options.through)


# ---- calls


def is_refused(project: Project, facts: ModuleFacts, call: ast.Call) -> bool:
    """Whether a function or a class of the project does not take the arguments of a call: it lacks one, or has one too
    many."""
    if any(isinstance(a, ast.Starred) for a in call.args) or any(keyword.arg is None for keyword in call.keywords):
        return False
    found = called_definition(project, facts, call)
    if found is None:
        return False
    taking: ast.AST | None = found[1]
    bound = isinstance(taking, ast.ClassDef)
    if isinstance(taking, ast.ClassDef):
        taking = _constructor(taking)
    if not isinstance(taking, FunctionNode) or taking.decorator_list or not _is_only_one(found[0], found[1].name):
        return False
    return _does_not_take(taking, call, bound)


def called_definition(
    project: Project, facts: ModuleFacts, call: ast.Call
) -> tuple[ModuleFacts, FunctionNode | ast.ClassDef] | None:
    """The function or class of the project that is called, with its file, where its name surely means that: the file
    binds it once, as no parameter or variable, and nothing decorates it."""
    name = dotted_ast(call.func)
    root = name.partition(".")[0]
    if not root or root not in project.remember(("bound once",), lambda: _bound_once(facts), facts.kept):
        return None
    found = project.meanings.definition(project.meanings.of(facts, call.func))
    if found is None or found[1].decorator_list or found[0].source.is_test:
        return None
    return found


def _bound_once(facts: ModuleFacts) -> frozenset[str]:
    """The names that a file binds in one place: by an import or a definition."""
    counts = collections.Counter[str]()
    for node in walk(facts.tree):
        for name in bound_by(node):
            counts[name] += 1 if isinstance(node, (ast.alias, ast.ClassDef, *_FUNCTIONS)) else 2
    return frozenset(name for name, count in counts.items() if count == 1)


def _is_only_one(facts: ModuleFacts, name: str) -> bool:
    """Whether a file binds a name at its top once: of two definitions the last one counts."""
    return sum(name in bound_by(node) for node in inside(facts.tree)) == 1 and not _makes_names(facts.file)


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
