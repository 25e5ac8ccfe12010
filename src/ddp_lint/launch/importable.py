"""Files that no run can import: they import from the project what is not there any more."""

from __future__ import annotations

import ast
import posixpath
import re
from collections.abc import Iterator

from ddp_lint.launch.texts import is_installed_as
from ddp_lint.project import Project
from ddp_lint.project.facts import ModuleFacts
from ddp_lint.source.imports import absolute, dotted_ast
from ddp_lint.source.syntax import FunctionNode, calls_below, walk

#: By what a module may get names that its text does not have.
_MAKES_NAMES = re.compile(r"__getattr__|globals\(|sys\.modules|setattr\(|__path__|load_library|import_module")
#: A program that looks for modules in other folders.
_OTHER_FOLDERS = re.compile(r"sys\.path|__path__")


def cannot_be_imported(project: Project, facts: ModuleFacts) -> bool:
    """Whether a file imports from a module of the project, in every run, a name that the module does not have."""
    return project.remember(("cannot be imported", facts.name), lambda: _imports_nothing(project, facts))


def _imports_nothing(project: Project, facts: ModuleFacts) -> bool:
    path = project.find(facts.name)
    if path is None or path.suffix != ".py" or facts.source.is_test or facts.file.shows(_OTHER_FOLDERS):
        return False
    own = facts.name.partition(".")[0]
    # What a package imports of itself it may get when it is installed: a link, or files that are made.
    return any(
        _is_missing(project, module, rest, within=module.name.partition(".")[0] == own)
        for module, rest in _imported(project, facts)
    )


def _imported(project: Project, facts: ModuleFacts) -> Iterator[tuple[ModuleFacts, str]]:
    """What a file imports by ``from``, outside of any condition, of modules that are surely the project's: each module
    with the rest of the name."""
    path = project.find(facts.name)
    for node in facts.tree.body if path is not None else ():
        if not isinstance(node, ast.ImportFrom) or path is None:
            continue
        base = absolute(node, facts.name, project.module_name(path)[1])
        for alias in node.names:
            name = f"{base}.{alias.name}"
            target = name if node.level else project.locate(name, path, facts.file.holds("__main__"))
            found = project.split(target) if alias.name != "*" else None
            if found is not None and found[1] and (node.level or _is_its_own(project, facts, *found, base)):
                yield found


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


def _is_missing(project: Project, module: ModuleFacts, rest: str, *, within: bool) -> bool:
    """Whether a module surely has no name, nor a module of it; `within`: it is of the package that imports it."""
    first, _, behind = rest.partition(".")
    text = module.file.text
    if (
        module.source.is_test
        or _MAKES_NAMES.search(text)
        or _executes(module)
        or re.search(rf"\b{re.escape(first)}\b", text)
    ):
        return False
    if module.imports.stars:  # they may bring it
        return False
    if posixpath.basename(module.source.inside) != "__init__.py":
        return True
    if within:
        return False
    # A folder without a file of its own is a package too, and a compiled module has other files.
    folder = posixpath.dirname(module.source.inside)
    if folder in map(posixpath.dirname, project.named(f"{first.lower()} {first.lower()}.*")):
        return False
    return bool(behind) or not any(path.startswith(f"{folder}/{first}/") for path in project.named("*.py"))
