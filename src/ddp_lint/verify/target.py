"""What TARGET means: a file with models, `module:Class`, or a training script. Reads the source only; nothing runs."""

from __future__ import annotations

import ast
import dataclasses
import difflib
import functools
import importlib.machinery
import importlib.util
import pathlib
import sys
from collections.abc import Iterator

from ddp_lint.files import exists, is_file, is_folder
from ddp_lint.knowledge.tensors import names
from ddp_lint.project import Project
from ddp_lint.project.dependents import imported_files
from ddp_lint.project.facts import ModuleFacts
from ddp_lint.project.layout import Roots
from ddp_lint.source.file import SourceFile, Unreadable
from ddp_lint.source.imports import last_part
from ddp_lint.source.parsing import CannotParse, parse
from ddp_lint.tensors.classes import ModuleClasses
from ddp_lint.verify.frames import in_package
from ddp_lint.verify.options import Options, UsageError

EXAMPLE = "ddp_lint_example"
#: Words of a script that trains: a file that has one of them and a main guard (or runs code on import) is run as is.
TRAINING_WORDS = (
    "init_process_group", "backward", "Trainer", "Accelerator", "Fabric", "DistributedDataParallel", "fully_shard",
    "FullyShardedDataParallel", "init_device_mesh", "spawn", "get_rank", "LOCAL_RANK",
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Target:
    """What to run. `kind` is model or script; `models` the class names to build one after the other (or "" for the
    model of the entry function); `entry` the function that returns `(module, inputs)`, "" when there is none."""

    kind: str
    path: pathlib.Path
    root: pathlib.Path
    models: tuple[str, ...] = ("",)
    entry: str = ""
    arguments: tuple[str, ...] = ()
    #: The dotted name of a script that is run as `python -m` does: it belongs to a package.
    module: str = ""

    @property
    def text(self) -> str:
        """How the target is shown."""
        return str(self.path)


def resolve(text: str, options: Options) -> Target:
    """The target that `text` names. Raises UsageError with what to do when there is none."""
    if options.module:
        return _module(text, options)
    place, _, name = text.partition(":") if not exists(text) else (text, "", "")
    path = _file_of(place)
    tree = _parse(path)
    classes = tuple(_module_classes(path))
    functions = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    root = path.parent
    if options.entry:
        return Target("model", path, root, entry=_known(options.entry, functions, "function", path))
    if name:
        named = {node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}
        _known(name.rpartition(".")[2], named, "class", path)
        return Target("model", path, root, models=(name,))
    if options.arguments:
        return _script(path, tree, options)
    if EXAMPLE in functions:
        return Target("model", path, root, entry=EXAMPLE)
    if _is_script(tree) or not classes:
        if not classes and not _runs_something(tree):
            raise UsageError(
                f"{path}: nothing to run: no nn.Module class and no code that runs; name a training script, a file "
                f"with a model, or a file with a function {EXAMPLE}() that returns (module, inputs)"
            )
        return _script(path, tree, options)
    return Target("model", path, root, models=_roots(tree, classes))


def _module(name: str, options: Options) -> Target:
    """`-m NAME`: the module, or the `__main__` of the package, found from here as `python -m` finds it."""
    spec = _found_from_here(name)
    if spec is not None and spec.submodule_search_locations:
        inside = [pathlib.Path(folder, "__main__.py") for folder in spec.submodule_search_locations]
        path = next((file for file in inside if file.is_file()), None)
        if path is None:
            raise UsageError(f"-m {name}: a package without a __main__.py; name the module in it that trains")
    elif spec is None or not spec.origin or not spec.origin.endswith(".py"):
        raise UsageError(f"-m {name}: no module of that name from here ({pathlib.Path.cwd()}) or on PYTHONPATH")
    else:
        path = pathlib.Path(spec.origin)
    _parse(path)
    return Target("script", path.resolve(), pathlib.Path.cwd(), arguments=options.arguments, module=name)


def _script(path: pathlib.Path, tree: ast.Module, options: Options) -> Target:
    """A script by its path. One that imports from its own package can only run as a part of it, as with `-m`."""
    relative = any(isinstance(node, ast.ImportFrom) and node.level for node in ast.walk(tree))
    top, name = in_package(path)
    if relative and top != path.parent:
        return Target("script", path, top, arguments=options.arguments, module=name)
    return Target("script", path, path.parent, arguments=options.arguments)


def _file_of(place: str) -> pathlib.Path:
    """The source file of a path or a dotted module name."""
    path = pathlib.Path(place)
    if is_folder(path):
        raise UsageError(f"{place}: a folder; name the file with the model or the training script")
    if is_file(path):
        return path.resolve()
    if path.suffix == ".py" or "/" in place:
        raise UsageError(f"{place}: no such file")
    spec = _found_from_here(place)
    if spec is None or not spec.origin or not spec.origin.endswith(".py"):
        raise UsageError(f"{place}: no such file, and no module of that name from here")
    return pathlib.Path(spec.origin).resolve()


def _found_from_here(name: str) -> importlib.machinery.ModuleSpec | None:
    """The spec of a dotted name, looked for in the current folder first, then on the import path."""
    sys.path.insert(0, str(pathlib.Path.cwd()))
    try:
        return _find_spec(name)
    finally:
        sys.path.pop(0)


def _find_spec(name: str) -> importlib.machinery.ModuleSpec | None:
    """The spec of a dotted name without importing its packages (importing could start anything)."""
    search: list[str] | None = None
    spec = None
    for part in name.split("."):
        try:
            spec = importlib.machinery.PathFinder.find_spec(part, search)
        except (ImportError, ValueError):
            return None
        if spec is None:
            return None
        search = list(spec.submodule_search_locations or ())
    return spec


def _parse(path: pathlib.Path) -> ast.Module:
    try:
        return parse(SourceFile.read(path, str(path)).text)
    except CannotParse as error:
        raise UsageError(f"{path}:{error.line}: not Python that this interpreter reads: {error}") from error
    except Unreadable as error:
        raise UsageError(f"{path}: {error}") from error


def _known(name: str, names: set[str], what: str, path: pathlib.Path) -> str:
    if name in names:
        return name
    near = difflib.get_close_matches(name, names, 1)
    raise UsageError(f"{path}: no {what} {name!r}" + (f"; did you mean {near[0]!r}?" if near else ""))


@functools.lru_cache(maxsize=1)
def modules(target: Target) -> tuple[ModuleFacts, ...]:
    """The target and the files of its project that it imports, directly or not."""
    project = _project(target.path)
    facts = map(project.modules.facts_of, imported_files(target.path, project))
    return tuple(module for module in facts if module is not None)


def trees(target: Target) -> Iterator[ast.Module]:
    """Their syntax trees."""
    return (module.tree for module in modules(target))


def _project(path: pathlib.Path) -> Project:
    return Project(Roots().of(path.parent))


def _module_classes(path: pathlib.Path) -> Iterator[ast.ClassDef]:
    """Top-level classes that are modules. Where a base is from elsewhere and unknown, a `forward` decides."""
    project = _project(path)
    facts = project.modules.facts_of(path)
    if facts is None:
        return
    classes = ModuleClasses(facts, project)
    for node in facts.tree.body:
        if isinstance(node, ast.ClassDef):
            lineage = project.classes.lineage(project.classes.of(facts, node).name)
            foreign = any(name and project.classes.find(name) is None for name in lineage)
            unknown = foreign and not names("layers", "not_modules").intersection(lineage)
            if classes.named(node.name) or "torch.nn.Module" in lineage or (unknown and _has_own_forward(node)):
                yield node


def _roots(tree: ast.Module, classes: tuple[ast.ClassDef, ...]) -> tuple[str, ...]:
    """The models of a file: its modules that no other class of the file uses, in order; all when each is used."""
    used: set[str] = set()
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            used |= {inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name)} - {node.name}
    abstract = {node.name for node in classes if not _has_forward(node, classes)}
    free = tuple(node.name for node in classes if node.name not in used | abstract)
    return free or tuple(node.name for node in classes if node.name not in abstract) or (classes[-1].name,)


def _has_forward(node: ast.ClassDef, classes: tuple[ast.ClassDef, ...]) -> bool:
    if _has_own_forward(node):
        return True
    bases = {last_part(base) for base in node.bases}
    return bool(bases & {"Sequential"}) or any(
        other.name in bases and other is not node and _has_forward(other, classes) for other in classes
    )


def _has_own_forward(node: ast.ClassDef) -> bool:
    return any(isinstance(item, ast.FunctionDef) and item.name == "forward" for item in node.body)


def _is_script(tree: ast.Module) -> bool:
    """The file trains when it is run: it has a main guard or code that runs, and a word that only training uses."""
    if not _runs_something(tree):
        return False
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    names |= {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    names |= {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    return any(word in names for word in TRAINING_WORDS)


def _runs_something(tree: ast.Module) -> bool:
    """There are statements at module level that do more than define and import."""
    return any(_runs(node) for node in tree.body)


def _runs(node: ast.stmt) -> bool:
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Call)
    if isinstance(node, ast.If):
        return "TYPE_CHECKING" not in ast.dump(node.test) and any(_runs(inner) for inner in node.body)
    return isinstance(node, ast.For | ast.While | ast.With) or (
        isinstance(node, ast.Try) and any(map(_runs, node.body))
    )
