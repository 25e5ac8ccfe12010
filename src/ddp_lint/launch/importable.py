"""Files that no run can import: they import from the project what is not there any more."""

from __future__ import annotations

import ast
import itertools
import posixpath
import re
from collections.abc import Iterator

from ddp_lint.launch.search import imported_through
from ddp_lint.launch.texts import is_installed_as
from ddp_lint.project import Project
from ddp_lint.project.facts import ModuleFacts
from ddp_lint.project.requirements import removed_by
from ddp_lint.source.imports import absolute, dotted_ast, is_script
from ddp_lint.source.syntax import FunctionNode, calls_below, main_guards, walk

#: By what a module may get names that its text does not have.
_MAKES_NAMES = re.compile(r"__getattr__|globals\(|sys\.modules|setattr\(|__path__|load_library|import_module")
#: Modules of ``from module import *`` that are gone through, one in the other.
_STARS = 3
#: A program that looks for modules in other folders.
_OTHER_FOLDERS = re.compile(r"sys\.path|__path__")

#: Tests for whether the file is the program, and for nothing else: one that has as many is several programs.
_SEVERAL = 3


def is_put_together(project: Project, facts: ModuleFacts) -> bool:
    """Whether a file is several programs one below the other, as are notes on the code of others: it asks often whether
    it is the program, or has a ``from __future__ import`` below other statements, which Python does not compile."""

    def found() -> bool:
        is_future = [isinstance(n, ast.ImportFrom) and n.module == "__future__" for n in facts.tree.body]
        # Those of a program stand together at its top, below its docstring.
        below = is_future[1:] if ast.get_docstring(facts.tree, clean=False) is not None else is_future
        return (
            True in itertools.dropwhile(bool, below)
            or sum(isinstance(guard.test, ast.Compare) for guard in main_guards(facts.tree)) >= _SEVERAL
        )

    answer: bool = project.remember(("put together",), found, facts.kept)
    return answer


def cannot_be_imported(project: Project, facts: ModuleFacts) -> bool:
    """Whether a file imports from a module of the project, in every run, a name that the module does not have."""
    return project.remember(("cannot be imported", facts.name), lambda: _imports_nothing(project, facts))


def imports_removed(project: Project, program: ModuleFacts, package: str, version: str) -> bool:
    """Whether a program imports in every run, by itself or through modules of the project, a module of a package that
    releases from a version on do not have: it runs under an older one alone."""
    gone = removed_by(package, version)
    reached = (project.modules.facts(name) for name in imported_through(project, program))
    return any(not gone.isdisjoint(_always_imported(facts)) for facts in reached if facts is not None)


def _always_imported(facts: ModuleFacts) -> Iterator[str]:
    """The modules of other packages that a file imports outside of any condition, and what it takes from them."""
    for node in facts.tree.body:
        if isinstance(node, ast.ImportFrom) and not node.level and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def _imports_nothing(project: Project, facts: ModuleFacts) -> bool:
    path = project.modules.find(facts.name)
    if path is None or path.suffix != ".py" or facts.source.is_test or facts.file.shows(_OTHER_FOLDERS):
        return False
    if _lacks_file(project, facts):
        return True
    own = facts.name.partition(".")[0]
    # What a package imports of itself it may get when it is installed: a link, or files that are made.
    return any(
        _is_missing(project, module, rest, within=module.name.partition(".")[0] == own)
        for module, rest in _imported(project, facts)
    )


def _imported(project: Project, facts: ModuleFacts) -> Iterator[tuple[ModuleFacts, str]]:
    """What a file imports by ``from``, outside of any condition, of modules that are surely the project's: each module
    with the rest of the name."""
    path = project.modules.find(facts.name)
    for node in facts.tree.body if path is not None else ():
        if not isinstance(node, ast.ImportFrom) or path is None:
            continue
        base = absolute(node, facts.name, project.modules.name_of(path)[1])
        for alias in node.names:
            name = f"{base}.{alias.name}"
            target = name if node.level else project.modules.locate(name, path, is_script(facts.file.text))
            found = project.meanings.split(target) if alias.name != "*" else None
            if found is not None and found[1] and (node.level or _is_its_own(project, facts, *found, base)):
                yield found


def _lacks_file(project: Project, facts: ModuleFacts) -> bool:
    """Whether a file imports a module of a folder beside it, which is a package without an `__init__.py`, and has no
    such file: ``from models.unet import Net``, where ``from models.loss import Loss`` shows that it is that folder."""
    here = posixpath.dirname(facts.source.inside)
    bases = {n.module: n for n in facts.tree.body if isinstance(n, ast.ImportFrom) and not n.level and n.module}
    own = {base: _folder_of(project, base, here) for base in bases if "." in base}
    meant = ((folder, project.modules.facts(_at(project, facts, base))) for base, folder in own.items() if folder)
    known = {folder for folder, found in meant if found and posixpath.dirname(found.source.inside) == folder}
    return any(
        folder in known and not _has_module(project, folder, base.rpartition(".")[2]) for base, folder in own.items()
    )


def _at(project: Project, facts: ModuleFacts, name: str) -> str:
    path = project.modules.find(facts.name)
    return project.modules.locate(name, path, is_script(facts.file.text)) if path is not None else name


def _folder_of(project: Project, base: str, here: str) -> str:
    """The folder below `here` that a module is in by its name, where all of its packages are folders without an
    `__init__.py`; '' otherwise."""
    folder = here
    for part in base.split(".")[:-1]:
        folder = posixpath.join(folder, part)
        if any(posixpath.dirname(path) == folder for path in project.contents.named("__init__.*")):
            return ""
    return folder


def _has_module(project: Project, folder: str, name: str) -> bool:
    """Whether a folder has anything by the name of a module: also one that is compiled or linked, and a folder."""
    like = project.contents.named(f"{name.lower()} {name.lower()}.*")
    within = f"{folder}/{name}/"
    return any(posixpath.dirname(path) == folder for path in like) or any(
        path.startswith(within) for path in project.contents.named("*.py")
    )


def _is_its_own(project: Project, facts: ModuleFacts, module: ModuleFacts, rest: str, base: str) -> bool:
    """Whether an absolute import means a module of the project, and not a package that is installed: one beside the
    file or below its folder, or in the package that the file or the project is."""
    here, there = posixpath.dirname(facts.source.inside), module.source.inside
    first = base.partition(".")[0]
    below = f"{here}/{first}" if here else first
    if there == f"{below}.py" or there.startswith(f"{below}/"):
        return True
    return first == facts.name.partition(".")[0] or is_installed_as(project, first)


def _executes(module: ModuleFacts) -> bool:
    """Whether a module runs texts that may define names of it: not in a function, whose variables they are."""
    if not module.file.holds("exec"):
        return False
    functions = {id(call) for node in walk(module.tree) if isinstance(node, FunctionNode) for call in calls_below(node)}
    runs = (call for call in calls_below(module.tree) if dotted_ast(call.func) == "exec")
    return any(id(call) not in functions or len(call.args) > 1 or call.keywords for call in runs)


def _may_have(project: Project, module: ModuleFacts, name: str, depth: int = _STARS) -> bool:
    """Whether a module may have a name: its code has the word, or it imports all of a module that may. What is
    commented out it has not."""
    code = module.file.code
    if module.source.is_test or _MAKES_NAMES.search(code) or _executes(module):
        return True
    if re.search(rf"\b{re.escape(name)}\b", code):
        return True
    starred = [project.modules.facts(star) for star in module.imports.stars]
    return any(each is None or not depth or _may_have(project, each, name, depth - 1) for each in starred)


def _is_missing(project: Project, module: ModuleFacts, rest: str, *, within: bool) -> bool:
    """Whether a module surely has no name, nor a module of it; `within`: it is of the package that imports it."""
    first, _, behind = rest.partition(".")
    if _may_have(project, module, first):
        return False
    if posixpath.basename(module.source.inside) != "__init__.py":
        return True
    if within:
        return False
    # A folder without a file of its own is a package too, and a compiled module has other files.
    folder = posixpath.dirname(module.source.inside)
    if folder in map(posixpath.dirname, project.contents.named(f"{first.lower()} {first.lower()}.*")):
        return False
    return bool(behind) or not any(path.startswith(f"{folder}/{first}/") for path in project.contents.named("*.py"))
