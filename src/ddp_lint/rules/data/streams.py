"""Streams that are not divided: those of Hugging Face's datasets among the ranks, those of the ranks among workers."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import libcst as cst

from ddp_lint.knowledge import table
from ddp_lint.knowledge.tensors import words_of
from ddp_lint.launch.by_rank import Place, assigned_above, called_function, takes_rank
from ddp_lint.launch.callers import CallSite, constructions
from ddp_lint.launch.options import default_of
from ddp_lint.project import Project
from ddp_lint.project.facts import ModuleFacts, assigned_in
from ddp_lint.rules.data.loading import LOADERS, files_of_programs
from ddp_lint.source.imports import dotted_ast, last_part
from ddp_lint.source.syntax import (
    argument_at,
    calls_below,
    function_at,
    is_none,
    parameters,
    statements,
    walk,
)
from ddp_lint.view import Module
from ddp_lint.view.as_ast import as_ast

_ITERABLE = "torch.utils.data.IterableDataset"
#: Methods of a stream that hand out what it does, on each rank alike.
_PASS_ON = frozenset(
    {
        "map", "filter", "shuffle", "select_columns", "remove_columns", "rename_column", "rename_columns",
        "with_format", "take", "skip", "cast", "cast_column", "cast_features", "batch", "repeat",
    }
)  # fmt: skip
#: What code says that gives each rank other samples, of the stream or of its batches.
_DIVIDES = re.compile(
    r"split_dataset_by_node|split_by_node|IterableDatasetShard|num_replicas|num_shards\s*=|\.shard\(|rank\w*\s*::"
    r"|%\s*\(?[\w.]*(world|num_proc|n_ranks|nproc)|islice\([^)\n]*rank|\[\s*[\w.]*rank\b|rank\w*\s*\*|scatter"
)
_DEVICES = re.compile(r"device_ids\s*=\s*\[[^\]]*\]")
#: Packages that divide the stream of a loader, or that train with a loop of their own.
_OF_OTHERS = frozenset(
    {"accelerate", "ray", "webdataset", "composer", "ignite", "catalyst", "fastai", "trl", "streaming"}
)
_TRAINER = re.compile(r"\bTraining_?Arguments\b|\bTrainer\b")
_MODEL_PARALLEL = re.compile(r"parallelize_module|DeviceMesh|init_device_mesh|pipeline_parallel|\bpp_rank|\btp_rank")
#: Calls, names and wraps that a stream is followed through.
_DEPTH = 12


def undivided_stream(module: Module, loader: cst.Call) -> ast.Call | None:
    """The `load_dataset(.., streaming=True)` of which a loader hands out the same on all ranks."""
    facts, project, call = module.facts, module.project, as_ast(module, loader)
    if facts is None or project is None or not isinstance(call, ast.Call):
        return None
    given = argument_at(call, 0, "dataset")
    place = Place(facts, function_at(facts.tree, call.lineno))
    found = _stream(project, given, place, _DEPTH) if given is not None else None
    return found if found is not None and not _is_divided(project, files_of_programs(module)) else None


def _is_divided(project: Project, files: Iterator[ModuleFacts]) -> bool:
    """Whether anything in the files of the programs gives the ranks other samples, or they may have to read the same;
    or nothing shares a model."""
    held = list(files)
    if any(is_of_others(facts) or divides_by_rank(facts) or is_for_one_group(facts) for facts in held):
        return True
    return not any(project.texts.shows(facts, "wraps") for facts in held)


def is_of_others(facts: ModuleFacts) -> bool:
    """Whether a file has a package that divides what a loader hands out, or trains by a loop of its own."""
    trains = "transformers" in facts.imports.packages and _TRAINER.search(facts.file.code) is not None
    return trains or not _OF_OTHERS.isdisjoint(facts.imports.packages)


def divides_by_rank(facts: ModuleFacts) -> bool:
    """Whether a file says anything that gives each rank other samples."""
    return _DIVIDES.search(_DEVICES.sub("", facts.file.code)) is not None


def is_for_one_group(facts: ModuleFacts) -> bool:
    """Whether a file has model parallelism, whose ranks have to read the same samples."""
    words = "|".join(table("data")["model_parallelism"])
    return (
        _MODEL_PARALLEL.search(facts.file.code) is not None or re.search(rf"\b({words})\b", facts.file.code) is not None
    )


def _stream(project: Project, value: ast.expr, place: Place, depth: int) -> ast.Call | None:
    """The call that opens the stream that a value is, where each rank gets the same of it."""
    if depth <= 0:
        return None
    if isinstance(value, ast.Name):
        held = assigned_above(place, value.id, value.lineno)
        found = [_stream(project, each, place, depth - 1) for each in held]
        return found[0] if found and None not in found else None
    if isinstance(value, ast.Subscript):  # a split of it
        return _stream(project, value.value, place, depth - 1)
    if not isinstance(value, ast.Call) or _is_given_rank(project, value, place):
        return None
    if place.facts.qualified(value.func) == "datasets.load_dataset":
        return value if _is_streaming(value) else None
    if isinstance(value.func, ast.Attribute) and value.func.attr in _PASS_ON:
        seeded = value.func.attr != "shuffle" or _has_seed(value)
        return _stream(project, value.func.value, place, depth - 1) if seeded else None
    return _of_class(project, value, place, depth) or _returned(project, value, place, depth)


def _is_given_rank(project: Project, call: ast.Call, place: Place) -> bool:
    given = (*call.args, *(keyword.value for keyword in call.keywords))
    return any(takes_rank(project, each, place) for each in given if not isinstance(each, ast.Starred))


def _is_streaming(call: ast.Call) -> bool:
    given = (keyword.value for keyword in call.keywords if keyword.arg == "streaming")
    return any(isinstance(value, ast.Constant) and value.value is True for value in given)


def _has_seed(shuffle: ast.Call) -> bool:
    """Whether a shuffle has a seed: without one each rank draws an order of its own."""
    seed = argument_at(shuffle, 0, "seed")
    return seed is not None and not is_none(seed)


def _returned(project: Project, call: ast.Call, place: Place, depth: int) -> ast.Call | None:
    """The stream that a function of the project returns, whatever happens."""
    found = called_function(project, call, place)
    if found is None or isinstance(found[1], ast.AsyncFunctionDef):
        return None
    inside = place.called(call, *found)
    returned = [n.value for n in statements(found[1]) if isinstance(n, ast.Return) and n.value is not None]
    streams = [_stream(project, value, inside, depth - 1) for value in returned]
    return streams[0] if len(streams) == 1 else None


def _of_class(project: Project, call: ast.Call, place: Place, depth: int) -> ast.Call | None:
    """The stream that an object of an IterableDataset of the project is given, or opens, that says nothing of ranks."""
    facts, cls = project.meanings.definition(project.meanings.of(place.facts, call.func)) or (None, None)
    if facts is None or not isinstance(cls, ast.ClassDef) or _ITERABLE not in map(facts.qualified, cls.bases):
        return None
    code = ast.unparse(cls).lower()
    if re.search(r"rank|world|shard|split_by|num_replicas|process_(index|id)|node|uuid|urandom|getpid", code):
        return None
    streams = (_stream(project, each, place, depth - 1) for each in (*call.args, *(k.value for k in call.keywords)))
    found = next(filter(None, streams), None)
    made = next((n for n in cls.body if isinstance(n, ast.FunctionDef) and n.name == "__init__"), None)
    if found is not None or made is None:
        return found
    kept = (
        n.value for n in statements(made) if isinstance(n, ast.Assign) and dotted_ast(n.targets[0]).startswith("self.")
    )
    opened = (_stream(project, value, place.called(call, facts, made), depth - 1) for value in kept)
    return next(filter(None, opened), None)


# ---- divided among the ranks, but not among the workers


def repeating_loader(module: Module, node: cst.ClassDef) -> CallSite | None:
    """The loader whose workers all hand out the whole part of a rank: its dataset takes that by the rank alone."""
    facts, project = module.facts, module.project
    cls = facts.definitions.get(node.name.value) if facts is not None else None
    if facts is None or project is None or not isinstance(cls, ast.ClassDef) or cls.lineno != _line(module, node):
        return None
    if "worker" in ast.unparse(cls).lower() or len(cls.bases) != 1 or not _divides_by_rank_alone(cls):
        return None
    for site in constructions(module, node):
        loader = _loader_of(site)
        if loader is not None and not _OF_OTHERS.isdisjoint(site.facts.imports.packages):
            return None
        if loader is not None and _has_several_workers(project, site, loader):
            return CallSite(site.facts, loader, site.around, bound=False)
    return None


def _line(module: Module, node: cst.ClassDef) -> int:
    return module.span(node.name).line


def _divides_by_rank_alone(cls: ast.ClassDef) -> bool:
    """Whether the iteration goes once through what the rank takes by its number."""
    iterate = next((n for n in cls.body if isinstance(n, ast.FunctionDef) and n.name == "__iter__"), None)
    if iterate is None or any(isinstance(n, ast.While) for n in walk(iterate)):
        return False
    methods = [n for n in cls.body if isinstance(n, ast.FunctionDef)]
    for loop in walk(iterate):
        if isinstance(loop, ast.For) and any(isinstance(n, (ast.Yield, ast.YieldFrom)) for n in walk(loop)):
            held = [loop.iter, *(v for n in walk(loop.iter) for m in methods for v in _held(m, iterate, n))]
            if any(_is_share(part) for value in held for part in walk(value)) or _skips_others(loop):
                return True
        if isinstance(loop, ast.YieldFrom) and any(_is_share(part) for part in walk(loop.value)):
            return True
    return False


def _held(method: ast.FunctionDef, iterate: ast.FunctionDef, node: ast.AST) -> list[ast.expr]:
    """What a method gives an attribute, or the iteration one of its names."""
    name = dotted_ast(node)
    return assigned_in(method, name) if name.startswith("self.") or (name and method is iterate) else []


def _is_share(node: ast.AST) -> bool:
    """``files[rank::world]``, ``islice(lines, rank, None, world)``."""
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Slice):
        return _is_rank(node.slice.lower) and node.slice.step is not None
    is_slice = isinstance(node, ast.Call) and last_part(node.func) == "islice" and len(node.args) == 4
    return isinstance(node, ast.Call) and is_slice and _is_rank(node.args[1])


def _skips_others(loop: ast.For) -> bool:
    """``if number % world == rank:`` around what it hands out, or ``if number % world != rank: continue``."""
    tests = (n.test for n in loop.body if isinstance(n, ast.If) and isinstance(n.test, ast.Compare))
    for test in tests:
        by_count = isinstance(test.left, ast.BinOp) and isinstance(test.left.op, ast.Mod)
        if by_count and len(test.comparators) == 1 and _is_rank(test.comparators[0]):
            return True
    return False


def _is_rank(node: ast.expr | None) -> bool:
    name = last_part(node.func if isinstance(node, ast.Call) else node) if node is not None else ""
    return name in table("data")["rank_names"] or name in table("data")["rank_calls"] or "rank" in words_of(name)


def _loader_of(site: CallSite) -> ast.Call | None:
    """The loader of the dataset that a call makes, in the function around it."""
    scope: ast.AST = site.around or site.facts.tree
    names = {dotted_ast(t) for n in statements(scope) if isinstance(n, ast.Assign) and n.value is site.node
             for t in n.targets} - {""}  # fmt: skip
    for call in calls_below(scope):
        given = argument_at(call, 0, "dataset") if site.facts.qualified(call.func) in LOADERS else None
        if given is not None and (given is site.node or dotted_ast(given) in names):
            return call
    return None


def _has_several_workers(project: Project, site: CallSite, loader: ast.Call) -> bool:
    """Whether a loader has two workers at least, and nothing else that may tell them apart."""
    given = argument_at(loader, 5, "num_workers")
    if given is None or any(keyword.arg in (None, "worker_init_fn") for keyword in loader.keywords):
        return False
    held = default_of(project, site.facts, site.around, given) or given
    if (
        isinstance(held, ast.Name)
        and site.around is not None
        and held.id not in {p.arg for p in parameters(site.around)}
    ):
        values = assigned_in(site.around, held.id)
        held = values[0] if len(values) == 1 else held
    return isinstance(held, ast.Constant) and isinstance(held.value, int) and held.value > 1
