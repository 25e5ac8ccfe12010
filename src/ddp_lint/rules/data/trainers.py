"""The trainers of Lightning that the programs of a file make: on several devices, and whether they divide the data."""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Iterator

from ddp_lint.findings import Span
from ddp_lint.launch.options import default_of
from ddp_lint.project import Project
from ddp_lint.project.facts import ModuleFacts
from ddp_lint.rules.data.loading import files_of_programs
from ddp_lint.source.imports import last_part
from ddp_lint.source.syntax import calls_below, function_at
from ddp_lint.view import Module

#: The names of Lightning.
LIGHTNING = frozenset({"lightning", "pytorch_lightning"})
#: Arguments that say on how many devices or nodes it runs, and with what its ranks share the model.
_COUNTS = ("devices", "gpus", "num_nodes")
_STRATEGIES = ("strategy", "distributed_backend")
_SHARING = ("ddp", "fsdp", "deepspeed")
#: Arguments that turn off its sampler for the ranks, with the name that versions before 2.0 have for it.
_DIVIDING = ("use_distributed_sampler", "replace_sampler_ddp")


@dataclasses.dataclass(frozen=True)
class Trainer:
    """A trainer: `is_shared` where it says that it runs on several devices, `is_undivided` where it is told to put no
    sampler for the ranks into the loaders."""

    span: Span
    is_shared: bool
    is_undivided: bool


def trainers_of(module: Module) -> list[Trainer]:
    """The trainers that the programs of a file make."""
    project = module.project
    files = filter(uses_lightning, files_of_programs(module))
    return [each for facts in files if project is not None for each in _made_in(project, facts)]


def is_shared_by_trainers(project: Project, facts: ModuleFacts) -> bool:
    """Whether a program makes trainers, all of which run on several devices."""
    made = list(_made_in(project, facts)) if uses_lightning(facts) else []
    return bool(made) and all(each.is_shared for each in made)


def uses_lightning(facts: ModuleFacts) -> bool:
    """Whether a file imports Lightning, by either of its names."""
    return not LIGHTNING.isdisjoint(facts.imports.packages)


def _made_in(project: Project, facts: ModuleFacts) -> Iterator[Trainer]:
    for call in calls_below(facts.tree) if facts.file.holds("Trainer") else ():
        if last_part(call.func) != "Trainer" or facts.qualified(call.func).partition(".")[0] not in LIGHTNING:
            continue
        given = {keyword.arg: keyword.value for keyword in call.keywords}
        undivided = [given[name] for name in _DIVIDING if name in given]
        off = any(isinstance(value, ast.Constant) and value.value is False for value in undivided)
        yield Trainer(facts.file.span_of(call.func), _is_shared(project, facts, call, given), off)


def _is_shared(project: Project, facts: ModuleFacts, call: ast.Call, given: dict[str | None, ast.expr]) -> bool:
    """Whether a trainer runs on several devices: by a number, also the default of an option, or by a strategy that
    needs several, where no number says that there is one."""
    around = function_at(facts.tree, call.lineno)
    values = [given[name] for name in _COUNTS if name in given]
    counts = [_count(default_of(project, facts, around, value) or value) for value in values]
    if any(count is not None and (count > 1 or count == -1) for count in counts):
        return True
    strategies = [given[name] for name in _STRATEGIES if name in given]
    shares = any(
        isinstance(value, ast.Constant) and isinstance(value.value, str) and value.value.startswith(_SHARING)
        for value in strategies
    )
    return shares and not (counts and all(count is not None for count in counts))


def _count(value: ast.expr) -> int | None:
    """How many devices a value is, None where it does not say."""
    if isinstance(value, (ast.List, ast.Tuple)):
        return len(value.elts)
    if isinstance(value, ast.UnaryOp) and isinstance(value.op, ast.USub) and isinstance(value.operand, ast.Constant):
        return -1
    if isinstance(value, ast.Constant) and isinstance(value.value, int) and not isinstance(value.value, bool):
        return value.value
    return None
