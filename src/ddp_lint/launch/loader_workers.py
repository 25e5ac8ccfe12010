"""Which code the worker processes of a DataLoader run, and not the rank itself."""

from __future__ import annotations

import ast
import functools
import re

import libcst as cst

from ddp_lint.knowledge import table
from ddp_lint.launch.callers import CallSite, constructions
from ddp_lint.launch.search import importers, programs
from ddp_lint.launch.single_process import transforms_samples
from ddp_lint.project import Project
from ddp_lint.project.facts import ModuleFacts, assigned_in
from ddp_lint.project.uses import Use, uses
from ddp_lint.project.uses import constructions as constructions_of
from ddp_lint.source import dotted
from ddp_lint.source.imports import last_part
from ddp_lint.source.syntax import argument_at, calls_below, function_at, parameters, walk
from ddp_lint.source.tree import descendants
from ddp_lint.view import Module

#: Methods of a dataset that make samples, and all functions that make samples or batches of them.
SAMPLES = ("__getitem__", "__getitems__", "__iter__", "__next__")
METHODS = (*SAMPLES, "collate_fn", "collate", "collater", "__call__")
_DATASET = "torch.utils.data.Dataset"
#: Files that hold the name of what makes objects; where more do, not all that it gives them to is seen.
_FILES = 25
_STREAM = "torch.utils.data.IterableDataset"
#: How far the class of an object is looked for.
_TYPE = 6
_WORKERS = re.compile(r"\bnum_workers[\"']?\s*[=:]\s*(?P<value>[^,})\s]+)")
#: How many workers a trainer of transformers is told to start.
_OF_TRAINERS = re.compile(r"\bdataloader_num_workers[\"']?[ \t]*[=: \t][ \t]*(\d+)\b")
_CONTEXT = re.compile(
    r"""multiprocessing_context\s*=\s*["'](spawn|forkserver)|set_start_method\(\s*["'](spawn|forkserver)"""
)


def makes_samples(module: Module, function: cst.FunctionDef) -> bool:
    """Whether a loader calls a function for its samples or batches: a method of a dataset, one that a dataset calls for
    a sample, or a collate function."""
    if function.name.value not in METHODS:
        return False
    owner = module.parent(module.parent(function) or function)
    if isinstance(owner, cst.ClassDef):
        transforms = function.name.value == "__call__" and transforms_samples(module, function)
        return transforms or _is_dataset(module, owner)
    return function.name.value.startswith("collate")


def is_stage(module: Module, function: cst.FunctionDef) -> bool:
    """Whether a function is a generator that the project gives to iterable datasets, which go through it, and calls
    nowhere itself: ``Stage(dataset, tokenize)``, ``dataset.apply(tokenize)``."""
    facts, project = module.facts, module.project
    if facts is None or project is None or not any(isinstance(n, cst.Yield) for n in descendants(function.body)):
        return False
    if module.class_of(function) is not None:
        return False
    name, key = function.name.value, ("stage of a stream", module.name_of(function))
    found: bool = project.remember(key, lambda: _is_given_to_streams(project, facts, name))
    return found


def _is_given_to_streams(project: Project, home: ModuleFacts, name: str) -> bool:
    whole, found = f"{home.name}.{name}", False
    for user in project.modules.but_tests(project.contents.holding(name)):
        for use in uses(user, name):
            if project.meanings.of(user, use.node) != whole:
                continue
            if use.given is None or not _makes_stream(project, user, use):
                return False
            found = True
    return found


def _makes_stream(project: Project, user: ModuleFacts, use: Use) -> bool:
    """Whether a function is given to the constructor of an iterable dataset, or to a method of one."""
    call = use.given
    if call is None:
        return False
    name = project.meanings.of(user, call.func)
    if project.classes.subclass_of(name, _STREAM):
        return True
    owner = project.classes.of(user, use.owner) if use.owner is not None else None
    on = call.func.value if isinstance(call.func, ast.Attribute) else None
    kind = project.types.of(on, user, use.around, owner, _TYPE) if on is not None else ""
    return bool(kind) and project.classes.subclass_of(kind, _STREAM)


def _is_dataset(module: Module, owner: cst.ClassDef) -> bool:
    names = {dotted(base.value).rpartition(".")[2] for base in owner.bases}
    methods = {s.name.value for s in owner.body.body if isinstance(s, cst.FunctionDef)}
    by_name = any(name.endswith("Dataset") for name in names) or {"__getitem__", "__len__"} <= methods
    return module.is_subclass(owner, _DATASET) or (by_name and "Dataset" in owner.name.value)


def goes_to_datasets(module: Module, node: cst.CSTNode) -> bool:
    """Whether a place is in a class of whose objects each goes to a data set, which calls it for its samples: functions
    that give datasets alone what they return make all of them."""
    owner, project = module.class_of(node), module.project
    if owner is None or project is None:
        return False
    name = module.name_of(owner)

    def found() -> bool:
        made = constructions_of(project, name, _FILES)
        return bool(made) and all(_is_for_datasets(project, facts, use) for facts, use, _ in made)

    return project.remember(("goes to datasets", name), found)


def _is_for_datasets(project: Project, facts: ModuleFacts, use: Use) -> bool:
    """Whether the function around a use gives what it returns to data sets alone, wherever the project calls it."""
    maker = use.around
    if maker is None or facts.definitions.get(maker.name) is not maker or maker.decorator_list:
        return False
    paths = project.contents.holding(maker.name)
    files = [project.modules.facts_of(path) for path in paths] if len(paths) <= _FILES else []
    whole, calls = f"{facts.name}.{maker.name}", 0
    for user in files:
        for other in uses(user, maker.name) if user is not None and not user.source.is_test else ():
            if user is None or project.meanings.of(user, other.node) != whole:
                continue
            calls += 1
            if other.call is None or other.around is None or not _is_given_to_dataset(project, user, other):
                return False
    return calls > 0


def _is_given_to_dataset(project: Project, facts: ModuleFacts, use: Use) -> bool:
    """Whether a function keeps the result of a call by a name of its own that it gives to data sets alone."""
    around = use.around
    kept = (
        next((n for n in walk(around) if isinstance(n, ast.Assign) and n.value is use.call), None) if around else None
    )
    target = kept.targets[0] if kept is not None and len(kept.targets) == 1 else None
    if around is None or not isinstance(target, ast.Name):
        return False
    given = [
        value
        for call in calls_below(around)
        if project.classes.subclass_of(project.meanings.of(facts, call.func), _DATASET)
        for value in (*call.args, *(keyword.value for keyword in call.keywords))
    ]
    reads = [n for n in walk(around) if isinstance(n, ast.Name) and n.id == target.id and isinstance(n.ctx, ast.Load)]
    return bool(reads) and all(any(each is value for value in given) for each in reads)


def loaders_use_workers(module: Module, *, forked: bool = False) -> bool:
    """Whether a DataLoader of this file, else of a file that imports it, starts workers; where none is seen, whether a
    trainer of transformers does. `forked`: by a fork."""
    own = _uses_workers(module.facts, forked) if module.facts is not None else None
    if own is not None or module.project is None or not module.name:
        return bool(own)
    find = importers if forked else programs
    users = find(module.project, module.name, holding=("DataLoader",))
    seen = [uses for user in users if (uses := _uses_workers(user, forked)) is not None]
    if seen or forked:
        return any(seen)
    return module.project.remember(("trainers use workers",), functools.partial(_trainers_use_workers, module.project))


def _trainers_use_workers(project: Project) -> bool:
    """Whether the project gives the trainers of transformers, whose loaders its code does not make, workers wherever it
    says how many: in scripts and settings (``--dataloader_num_workers 4``), or in code."""
    starts = table("launch")["starts"]
    files = project.contents.named(f"{starts['scripts']} {starts['settings']} *.yaml *.yml")
    paths = [*(project.root / inside for inside in files), *project.contents.holding("dataloader_num_workers")]
    numbers = [n for path in paths for n in _OF_TRAINERS.findall(project.contents.text(path) or "")]
    return bool(numbers) and all(int(number) > 0 for number in numbers)


def is_read_without_workers(module: Module, owner: cst.ClassDef) -> bool:
    """Whether all objects that the project makes of a dataset are surely read by the process itself: each of them goes
    to DataLoaders without workers, in the function that makes it, and to nothing but samplers besides."""
    made = constructions(module, owner)
    return bool(made) and all(map(_is_read_alone, made))


def is_set_where_workers_are_spawned(project: Project, name: str) -> bool:
    """Whether all files of a project that set an attribute, also as an option of the program, have the workers of their
    loaders spawned: ``args.gpu = rank`` beside ``set_start_method("spawn")``. Who forks them has it from nowhere."""
    option = name.replace("_", "[-_]")
    sets = re.compile(rf"\.{name}\s*(?::[^=\n]+)?=(?!=)|[\"'](?:--)?{option}[\"']")

    def found() -> bool:
        files = (project.modules.facts_of(path) for path in project.contents.holding(name))
        setting = [facts for facts in files if facts is not None and sets.search(facts.file.code)]
        return bool(setting) and all(facts.file.shows(_CONTEXT) for facts in setting)

    return project.remember(("set where workers are spawned", name), found)


def _is_read_alone(site: CallSite) -> bool:
    scope = site.around or site.facts.tree
    name = next(
        (
            node.targets[0].id
            for node in walk(scope)
            if isinstance(node, ast.Assign) and node.value is site.node and isinstance(node.targets[0], ast.Name)
        ),
        "",
    )
    uses = [n for n in walk(scope) if isinstance(n, ast.Name) and n.id == name and isinstance(n.ctx, ast.Load)]
    calls = list(calls_below(scope))
    loaders = [call for call in calls if last_part(call.func) == "DataLoader"]
    reading = [call for call in loaders if (read := argument_at(call, 0, "dataset")) is site.node or read in uses]
    known = [argument_at(call, 0, "dataset") for call in reading]
    for call in calls:
        if last_part(call.func).endswith("Sampler") or last_part(call.func) == "len":
            known += call.args
    alone = not any(_asks_for_workers(loader, site.facts) for loader in reading)
    return bool(reading) and alone and all(use in known for use in uses)


def _uses_workers(facts: ModuleFacts, forked: bool) -> bool | None:
    """Whether a DataLoader of a file starts workers; None when the file makes none."""
    if forked and facts.file.shows(_CONTEXT):
        return False
    loaders = [n for n in calls_below(facts.tree) if last_part(n.func) == "DataLoader"]
    if not loaders:
        return None
    return any(_asks_for_workers(loader, facts) for loader in loaders)


def _asks_for_workers(loader: ast.Call, facts: ModuleFacts) -> bool:
    given = next((k.value for k in loader.keywords if k.arg == "num_workers"), None)
    if given is not None:
        return not all(isinstance(value, ast.Constant) and value.value in (0, None) for value in _values(given, facts))
    elsewhere = _WORKERS.search(facts.file.code) if any(k.arg is None for k in loader.keywords) else None
    return elsewhere is not None and elsewhere["value"] not in ("0", "None")


def _values(given: ast.expr, facts: ModuleFacts) -> list[ast.expr]:
    """What an argument may be; of a local name all that its function assigns to it: ``n_workers = 0``."""
    around = function_at(facts.tree, given.lineno)
    if not isinstance(given, ast.Name) or around is None or given.id in {p.arg for p in parameters(around)}:
        return [given]
    return assigned_in(around, given.id) or [given]
