"""Runs of experiment trackers that user code starts. It does not need torch.

What each Call's arguments hold: start_run: tracker (the package), off (an argument says that there is no run)
"""

from __future__ import annotations

import functools
import inspect
import os
from types import ModuleType
from typing import Any

from ddp_lint.knowledge.trackers import Tracker, trackers
from ddp_lint.verify import trace
from ddp_lint.verify.child import patching
from ddp_lint.verify.child.observers.base import Observer


class Trackers(Observer):
    """A Call before each call that starts a run, by the names of `knowledge/launch.toml`."""

    def install(self) -> None:
        for name, tracker in trackers().items():
            where, _, last = name.rpartition(".")
            owner = where.rpartition(".")[2] if where.rpartition(".")[2][:1].isupper() else ""
            module = where.removesuffix(f".{owner}") if owner else where
            patching.when_imported(module, functools.partial(self._watch, tracker, owner, last))

    def _watch(self, tracker: Tracker, owner: str, name: str, module: ModuleType) -> None:
        holder = getattr(module, owner, None) if owner else module
        starts = getattr(holder, name, None)
        if inspect.isclass(starts):
            holder, name = starts, "__init__"
        if starts is not None:
            patching.before(holder, name, functools.partial(self._started, tracker))

    def _started(self, tracker: Tracker, *_args: Any, **kwargs: Any) -> None:
        if self.recorder.active and self.recorder.here():
            mode = kwargs.get(tracker.mode) if tracker.mode else None
            mode = mode or os.environ.get(f"{tracker.package.upper()}_MODE")
            off = mode is not None and mode not in tracker.modes
            arguments = {"tracker": tracker.package, "off": off or any(map(kwargs.get, tracker.joined))}
            self.recorder.emit(trace.Call, name="start_run", arguments=arguments)
