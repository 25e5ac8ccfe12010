"""Metrics that a module of Lightning logs of this rank's part of the validation data, and that a callback watches."""

from __future__ import annotations

import pathlib
import re
from collections.abc import Iterator

import libcst as cst

from ddp_lint.knowledge.tensors import words_of
from ddp_lint.project import Project
from ddp_lint.rules.data.loading import files_of_programs
from ddp_lint.rules.data.trainers import trainers_of
from ddp_lint.source import dotted
from ddp_lint.source.queries import calls_in
from ddp_lint.source.tree import called, descendants, subtree
from ddp_lint.view import Module
from ddp_lint.view.wraps import argument

MODULE = "lightning.pytorch.LightningModule"
#: The hooks whose metrics are those of the validation.
HOOKS = ("validation_step", "validation_epoch_end", "on_validation_epoch_end")
#: ``ModelCheckpoint(monitor="val_loss")``, ``{"scheduler": s, "monitor": "val_loss"}``, ``monitor: val/acc``.
_MONITOR = re.compile(r"""\bmonitor["']?\s*[=:]\s*["']?([\w./-]+)""")
#: Files of settings that are read: where there are more, nothing is known to be watched.
_SETTINGS = 500
#: What calls are named after that bring the ranks' parts together, or are of metrics that do so themselves.
_JOINING = frozenset({"reduce", "gather", "allgather", "sync", "compute", "broadcast"})


def watched(project: Project) -> frozenset[str]:
    """The names of the metrics that code or settings of a project watch; none where there is too much to read."""

    def found() -> frozenset[str]:
        settings = project.contents.named("*.yaml *.yml")
        paths = [path for path in project.contents.holding("monitor") if _is_program(project, path)]
        paths += [project.root / path for path in settings]
        texts = (project.contents.text(path) or "" for path in paths if len(settings) <= _SETTINGS)
        return frozenset(name for text in texts for name in _MONITOR.findall(text))

    return project.remember(("watched metrics",), found)


def is_watched_by_ranks(module: Module, metric: str) -> bool:
    """Whether the programs of a file watch a metric themselves, and their trainer runs on several devices, among which
    it divides the data."""
    files = [facts for facts in files_of_programs(module) if not facts.source.is_test]
    if not any(metric in _MONITOR.findall(facts.file.code) for facts in files):
        return False
    return any(trainer.is_shared and not trainer.is_undivided for trainer in trainers_of(module))


def _is_program(project: Project, path: pathlib.Path) -> bool:
    """Whether a file is code of the project that is no test."""
    facts = project.modules.facts_of(path)
    return facts is not None and not facts.source.is_test


def logged_alone(module: Module, hook: cst.FunctionDef) -> Iterator[tuple[cst.Call, str]]:
    """The calls of `self.log` in a hook that log a value of this rank alone, each with the name of the metric."""
    if any(words_of(called(call)) & _JOINING for call in calls_in(hook.body)):
        return
    for call in calls_in(hook.body):
        if dotted(call.func) != "self.log" or any(arg.star for arg in call.args):
            continue
        name, value, synced = argument(call, 0, "name"), argument(call, 1, "value"), argument(call, None, "sync_dist")
        if not isinstance(name, cst.SimpleString) or value is None or dotted(synced or cst.Name("False")) != "False":
            continue
        if argument(call, None, "rank_zero_only") is None and not _is_metric(module, value):
            yield call, str(name.evaluated_value)


def _is_metric(module: Module, value: cst.BaseExpression) -> bool:
    """Whether a value may be an object that computes a metric over all ranks, or a part of what one returned."""
    if dotted(value).startswith("self."):
        return True
    sources = [value, *(s for n in subtree(value) if isinstance(n, cst.Name) for s in module.assignments(n))]
    calls = (n for source in sources for n in [source, *descendants(source)] if isinstance(n, cst.Call))
    return any(words_of(called(call)) & _JOINING for call in calls)
