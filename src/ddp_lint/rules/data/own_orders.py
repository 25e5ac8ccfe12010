"""Samplers of a project that know no rank: they give all ranks the same order, whose seed they have themselves."""

from __future__ import annotations

import ast
import re

import libcst as cst

from ddp_lint.knowledge import table
from ddp_lint.launch.by_rank import Place, assigned_above, takes_rank
from ddp_lint.project import Project
from ddp_lint.project.facts import ModuleFacts
from ddp_lint.rules.data.loading import files_of_programs, is_evaluation, is_made_by_rank
from ddp_lint.rules.data.streams import divides_by_rank, is_for_one_group, is_of_others
from ddp_lint.rules.data.trainers import trainers_of, uses_lightning
from ddp_lint.source.imports import last_part
from ddp_lint.source.syntax import calls_below, defaults, function_at, is_none
from ddp_lint.view import Module
from ddp_lint.view.as_ast import as_ast
from ddp_lint.view.wraps import argument

#: What samplers derive from that give each rank no part.
_BASES = ("torch.utils.data.Sampler", "torch.utils.data.sampler.Sampler", "typing.Generic", "object")
_BATCHES = ("torch.utils.data.BatchSampler", "torch.utils.data.sampler.BatchSampler")
#: What a sampler says that may give each rank other samples.
_MAY_DIVIDE = re.compile(
    r"rank|world|replica|shard|dist(?!anc)|process|parts|nodes|num_(tasks|gpus)|host|environ|worker|getpid|time|uuid"
    r"|urandom|accelerat|gpu|group"
)


def own_order(module: Module, loader: cst.Call) -> tuple[cst.BaseExpression, str] | None:
    """The sampler of a training loader that gives all ranks the same order, and the name of its class."""
    facts, project = module.facts, module.project
    sampler = argument(loader, 3, "sampler") or argument(loader, 4, "batch_sampler")
    call = as_ast(module, loader)
    if facts is None or project is None or sampler is None or not isinstance(call, ast.Call) or not loader.args:
        return None
    place = Place(facts, function_at(facts.tree, call.lineno))
    given = next((k.value for k in call.keywords if k.arg in ("sampler", "batch_sampler")), None)
    made = _made(given, place) if given is not None else None
    if made is None or any(takes_rank(project, each, place) for each in _given(made)):
        return None
    if _is_unseeded(project, place, made):
        return None
    name = last_part(made.func)
    if is_evaluation(name) or not _orders_alike(project, place.facts, made) or not _is_whole(module, loader, place):
        return None
    return sampler, name


def is_shared_undivided(module: Module) -> bool:
    """Whether the programs of a file share a model, and nothing in them gives the ranks other samples."""
    project, files = module.project, list(files_of_programs(module))
    if project is None or any(is_of_others(each) or divides_by_rank(each) or is_for_one_group(each) for each in files):
        return False
    if not any(map(uses_lightning, files)):
        return any(project.texts.shows(each, "wraps") for each in files)
    trainers = trainers_of(module)
    return bool(trainers) and all(each.is_undivided for each in trainers) and any(each.is_shared for each in trainers)


def _is_whole(module: Module, loader: cst.Call, place: Place) -> bool:
    """Whether the data of a loader is no part that a rank takes, in programs that divide nothing."""
    data, call = loader.args[0].value, as_ast(module, loader)
    if module.project is None or not isinstance(call, ast.Call) or not call.args:
        return False
    if takes_rank(module.project, call.args[0], place) or is_made_by_rank(module, data):
        return False
    return is_shared_undivided(module)


def _made(value: ast.expr, place: Place) -> ast.Call | None:
    """The call that makes the sampler, the only one that the name holds."""
    held = assigned_above(place, value.id, value.lineno) if isinstance(value, ast.Name) else [value]
    return held[0] if len(held) == 1 and isinstance(held[0], ast.Call) else None


def _given(call: ast.Call) -> list[ast.expr]:
    given = [*call.args, *(keyword.value for keyword in call.keywords)]
    return [each.value if isinstance(each, ast.Starred) else each for each in given]


def _lineage(project: Project, facts: ModuleFacts, value: ast.expr) -> list[tuple[ModuleFacts, ast.ClassDef]] | None:
    """The classes of the project that a class consists of; None where one of another package is among them."""
    name = project.meanings.of(facts, value.value if isinstance(value, ast.Subscript) else value)
    if name in _BASES or name in _BATCHES:
        return []
    home, cls = project.meanings.definition(name) or (None, None)
    if home is None or not isinstance(cls, ast.ClassDef):
        return None
    found = [(home, cls)]
    for base in cls.bases:
        above = _lineage(project, home, base)
        if above is None:
            return None
        found += above
    return found


def _is_unseeded(project: Project, place: Place, made: ast.Call) -> bool:
    """Whether the seed that the constructor takes is None unless it is given, and here is not."""
    lineage = _lineage(project, place.facts, made.func) or []
    methods = (n for _, cls in lineage for n in cls.body if isinstance(n, ast.FunctionDef) and n.name == "__init__")
    taken = next(methods, None)
    given = {keyword.arg for keyword in made.keywords}
    return taken is not None and any(
        "seed" in each.arg and default is not None and is_none(default) and each.arg not in given
        for each, default in defaults(taken.args)
    )


def _orders_alike(project: Project, facts: ModuleFacts, made: ast.Call) -> bool:
    """Whether a sampler of the project says nothing of ranks, and draws from generators alone that it seeds."""
    lineage = _lineage(project, facts, made.func)
    if not lineage or any(_MAY_DIVIDE.search(ast.unparse(cls).lower()) for _, cls in lineage):
        return False
    seeds = [_seed(home, call) for home, cls in lineage for call in calls_below(cls)]
    if any(_draws_by_process(home, call) for home, cls in lineage for call in calls_below(cls)):
        return False
    return any(seed is not None and not is_none(seed) for seed in seeds)


def _seed(facts: ModuleFacts, call: ast.Call) -> ast.expr | None:
    """The seed that a call gives a generator of the sampler's own."""
    name = facts.qualified(call.func)
    by_method = last_part(call.func) == "manual_seed" and name != "torch.manual_seed"
    return call.args[0] if call.args and (by_method or name in table("data")["generators"]) else None


def _draws_by_process(facts: ModuleFacts, call: ast.Call) -> bool:
    """Whether a call draws from, or seeds, a generator of the process, or makes one of no seed."""
    name = facts.qualified(call.func)
    if name in table("data")["generators"]:
        return not call.args or is_none(call.args[0])
    if name == "torch.Generator" or any(keyword.arg == "generator" for keyword in call.keywords):
        return False
    of_torch = name.startswith("torch.") and any(word in name for word in ("rand", "seed", "multinomial", "bernoulli"))
    return name.startswith(("random.", "numpy.random.")) or of_torch
