"""What the rules about data share: samplers, loaders, and where a project sets the epoch."""

from __future__ import annotations

import ast
import pathlib
import re
from collections.abc import Iterator

import libcst as cst

from ddp_lint.files import lies_in
from ddp_lint.findings import Span
from ddp_lint.knowledge import frameworks, table
from ddp_lint.launch.search import importers
from ddp_lint.launch.unused import is_unused_at
from ddp_lint.project import Project
from ddp_lint.project.facts import ModuleFacts
from ddp_lint.source import Module
from ddp_lint.source.queries import options
from ddp_lint.source.syntax import calls_below, walk
from ddp_lint.tensors.operations import words_of

SAMPLER = "torch.utils.data.DistributedSampler"
#: Classes whose constructor takes what `torch.utils.data.DataLoader` takes, by the same names.
LOADERS = frozenset(table("data")["loaders"])


def is_sampler(module: Module, call: cst.Call) -> bool:
    """Whether a call builds a DistributedSampler itself (subclasses may have an order of their own).

    Also through a name: ``make = RandomSampler if local_rank == -1 else DistributedSampler``.
    """
    if module.qualified(call.func) == SAMPLER:
        return True
    if not isinstance(call.func, cst.Name):
        return False
    values = module.assignments(call.func)
    return any(module.qualified(option) == SAMPLER for option in options(values))


def framework_loads(module: Module | ModuleFacts) -> bool:
    """Whether the file hands its loaders to a framework that sets the epoch (`Framework.sets_epoch`)."""
    setting = frameworks.packages(lambda framework: framework.sets_epoch)
    return not setting.isdisjoint(module.imports.packages)


def is_evaluation(text: str) -> bool:
    """Whether a name or an expression mentions validation or test data."""
    return re.search(table("data")["evaluation"], text, re.IGNORECASE) is not None


def mentions_nearby(module: Module, word: str, *, other_programs: bool = True) -> bool:
    """Whether `word` occurs in the code that runs together with the file, and maybe in other programs of its folder.

    That is: the file, its package (for a script without one, its folder and what is below), the project's packages
    that it imports, and the files that import it. Another example of the same repository is not nearby.
    """
    if module.project is None or module.path is None:
        return word in module.file.code
    project, path = module.project, module.path
    near = _nearby(module, project, path, word) if other_programs else _together(module, project, path, word)
    return any(_writes(project, each, word) for each in near)


def _writes(project: Project, path: pathlib.Path, word: str) -> bool:
    """Whether a file that holds a word has it outside of comments, as far as it can be read."""
    facts = project.facts_of(path)
    return facts is None or word in facts.file.code


def done_nearby(module: Module, word: str) -> Span | None:
    """Where the code that runs together with the file has `word` in a line that is no comment and no docstring. Not in
    another program of its folder, nor in what nothing uses."""
    if module.project is None or module.path is None:
        return None
    for path in _together(module, module.project, module.path, word):
        facts = module.project.facts_of(path)
        for number, line in enumerate(facts.file.lines if facts is not None else (), 1):
            if facts is None or word not in line or number in facts.prose:
                continue
            if not is_unused_at(module.project, facts, number):
                start = line.index(word) + 1
                return Span(facts.file.path, number, start, number, start + len(word))
    return None


def reads_alike(module: Module) -> bool:
    """Whether the samplers that run together with the file, one at least, are of one replica: all ranks read the same
    samples, and may have to draw the same, as the stages of a pipeline do."""
    if module.project is None or module.path is None:
        return False
    files = map(module.project.facts_of, _together(module, module.project, module.path, "num_replicas"))
    calls = (n for facts in files if facts is not None for n in calls_below(facts.tree))
    given = [keyword.value for call in calls for keyword in call.keywords if keyword.arg == "num_replicas"]
    return bool(given) and all(isinstance(value, ast.Constant) and value.value == 1 for value in given)


def drawn_in_samples(module: Module) -> tuple[str, Span] | None:
    """What a dataset that runs together with the file draws from `random` or NumPy for each of its samples, and
    where."""
    if module.project is None or module.path is None:
        return None
    for path in _together(module, module.project, module.path, "def __getitem__"):
        facts = module.project.facts_of(path)
        if facts is None or facts.source.is_test:
            continue
        for draw in _draws_of_samples(facts):
            if is_unused_at(module.project, facts, draw.lineno):
                continue
            return ast.unparse(draw.func), facts.file.span_of(draw.func)
    return None


def _draws_of_samples(facts: ModuleFacts) -> Iterator[ast.Call]:
    """The draws in the `__getitem__` of the training datasets of a file."""
    for cls in facts.definitions.values():
        if not isinstance(cls, ast.ClassDef) or is_evaluation(" ".join(words_of(cls.name))):
            continue
        methods = (n for n in cls.body if isinstance(n, ast.FunctionDef) and n.name == "__getitem__")
        for node in (n for method in methods for n in walk(method)):
            if isinstance(node, ast.Call) and facts.qualified(node.func) in table("data")["draws"]:
                yield node


def _nearby(module: Module, project: Project, path: pathlib.Path, word: str) -> Iterator[pathlib.Path]:
    """The files that hold `word` and run together with the file, itself first."""
    holding = project.holding(word)
    if path in holding:
        yield path
    homes = [_home(path), *(_home(p) for p in _imported_files(module, project))]
    yield from (other for other in holding if other != path and any(lies_in(other, home) for home in homes))
    for facts in importers(project, module.name, holding=(word,)):
        importing = project.find(facts.name)
        if importing is not None:
            yield importing


def _together(module: Module, project: Project, path: pathlib.Path, word: str) -> Iterator[pathlib.Path]:
    """The same without other programs: files that are started by themselves, whose names no other file has, and that do
    not import this one."""
    importing = {project.find(facts.name) for facts in importers(project, module.name, holding=(word,))}
    for near in _nearby(module, project, path, word):
        facts = project.facts_of(near) if near != path and near not in importing else None
        if facts is None or not _is_program(project, near, facts):
            yield near


def _is_program(project: Project, path: pathlib.Path, facts: ModuleFacts) -> bool:
    guarded = any(isinstance(s, ast.If) and "__name__" in ast.unparse(s.test) for s in facts.tree.body)
    return guarded and all(other == path for other in project.holding(path.stem))


def _home(path: pathlib.Path) -> pathlib.Path:
    """The outermost package around a file; the folder of a script that is in none."""
    folder = path.parent
    while (folder.parent / "__init__.py").is_file() and folder != folder.parent:
        folder = folder.parent
    return folder


def _imported_files(module: Module, project: Project) -> list[pathlib.Path]:
    found = {project.find(target.partition(".")[0]) for target in module.imports.names.values()}
    return [path for path in found if path is not None]
