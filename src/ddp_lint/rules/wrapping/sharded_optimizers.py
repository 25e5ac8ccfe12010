"""Optimizers over the parameters of a model that FSDP has sharded: each rank's has the moments of its own shard."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import libcst as cst

from ddp_lint.findings import Span
from ddp_lint.knowledge.frameworks import wrappers
from ddp_lint.launch.callers import CallSite, call_sites
from ddp_lint.project import Project
from ddp_lint.project.facts import assigned_in
from ddp_lint.rules.wrapping.optimizers import is_optimizer, models_of
from ddp_lint.source import dotted
from ddp_lint.source.control_flow import opposed
from ddp_lint.source.imports import dotted_ast
from ddp_lint.source.syntax import calls_below, statements
from ddp_lint.view import Module
from ddp_lint.view.wraps import Wrap, argument

_SHARDING = frozenset({"fsdp1", "fsdp2"})
_STRATEGY = "sharding_strategy"
_NO_SHARD = "NO_SHARD"
_TAKES = frozenset({"parameters", "named_parameters"})


def sharded_by(module: Module, optimizer: str, call: cst.Call) -> Span | cst.Call | None:
    """Where the model was sharded whose parameters an optimizer takes, by the optimizer's name at a call; None where
    that is not seen."""
    made = [value for value in module.assignments(optimizer, call) if isinstance(value, cst.Call)]
    if made:
        return _made_here(module, made[0], call) if len(made) == 1 else None
    function = module.function_of(call)
    if function is None or "." in optimizer or module.project is None:
        return None
    if optimizer not in (each.name.value for each in function.params.params):
        return None
    found = [_made_at(module.project, site, site.given(function, optimizer)) for site in call_sites(module, function)]
    return found[0] if found and None not in found else None


def _made_here(module: Module, made: cst.Call, call: cst.Call) -> Span | cst.Call | None:
    if not is_optimizer(module, made):
        return None
    wraps = [module.wraps.of(model, made) for model in sorted(models_of(module, made))]
    wrap = wraps[0] if len(wraps) == 1 else None
    if wrap is None or not _shards(module, wrap) or opposed(module, call, wrap.call):
        return None
    return wrap.place


def _shards(module: Module, wrap: Wrap) -> bool:
    """Whether a wrap surely divides the parameters."""
    if wrap.kind not in _SHARDING or wrap.tested or wrap.given is None or wrap.handed is not None:
        return False
    strategy = argument(wrap.call, None, _STRATEGY)
    return strategy is None or _divides(dotted(strategy))


def _divides(strategy: str) -> bool:
    """``ShardingStrategy.FULL_SHARD``, and no other name, whose value only the run knows."""
    owner, _, name = strategy.rpartition(".")
    return owner.endswith("ShardingStrategy") and name != _NO_SHARD


def _made_at(project: Project, site: CallSite, optimizer: ast.expr | None) -> Span | None:
    """The same for what a call gives a function, made and sharded in the function around the call."""
    if site.around is None or optimizer is None:
        return None
    made = assigned_in(site.around, dotted_ast(optimizer))
    if len(made) != 1 or not isinstance(made[0], ast.Call):
        return None
    if not (site.facts.qualified(made[0].func) or "").startswith("torch.optim."):
        return None
    models = {model for model in _models_of(made[0]) if model}
    places = [place for place in _sharding_calls(project, site) if place[0] in models]
    return site.facts.file.span_of(places[0][1]) if len(models) == 1 and places else None


def _models_of(optimizer: ast.Call) -> Iterator[str]:
    for call in calls_below(optimizer):
        owner, _, method = dotted_ast(call.func).rpartition(".")
        if method in _TAKES:
            yield owner


def _sharding_calls(project: Project, site: CallSite) -> Iterator[tuple[str, ast.Call]]:
    """The calls that shard a model in the function around a call, each with the name of the model."""
    assert site.around is not None
    for call in calls_below(site.around):
        entry = wrappers().get(project.meanings.of(site.facts, call.func))
        if entry is None or entry.kind not in _SHARDING:
            continue
        strategy = next((k.value for k in call.keywords if k.arg == _STRATEGY), None)
        hidden = any(keyword.arg is None for keyword in call.keywords)
        if hidden or (strategy is not None and not _divides(dotted_ast(strategy))):
            continue
        yield _name_of(site, call), call


def _name_of(site: CallSite, call: ast.Call) -> str:
    """The name that a sharded model gets, or keeps: ``model = FSDP(model)``, ``fully_shard(model)``."""
    assert site.around is not None
    assigned = (n for n in statements(site.around) if isinstance(n, ast.Assign) and n.value is call)
    target = next((dotted_ast(n.targets[0]) for n in assigned), "")
    return target or (dotted_ast(call.args[0]) if call.args else "")
