"""Parameters that a model computes with and keeps in plain lists, tuples and dicts, and that nothing updates.

What each Call's arguments hold:
unregistered: names (of those that have a gradient before a step, and that neither a module nor an optimizer holds)
"""

from __future__ import annotations

import weakref
from typing import Any

import torch

from ddp_lint.verify import trace
from ddp_lint.verify.child import patching
from ddp_lint.verify.child.observers.base import Observer

#: Optimizer steps before which they are looked for.
_STEPS = 3


class Unregistered(Observer):
    """Looks before the first steps, and tells of each parameter once."""

    def prepare(self) -> None:
        self._optimizers: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
        self._told: set[str] = set()

    def install(self) -> None:
        patching.after(torch.optim.Optimizer, "__init__", lambda _, made, *__, **___: self._optimizers.add(made))

    def before_step(self, optimizer: Any) -> None:
        if self.recorder.step >= _STEPS or torch.compiler.is_compiling():
            return
        found = {name: p for model in self.models for name, p in model.unregistered() if p.grad is not None}
        if not found:
            return
        held = {id(p) for model in self.models for p in model.parameters().values()}
        held |= {id(p) for one in (optimizer, *self._optimizers) for group in one.param_groups for p in group["params"]}
        names = [name for name, parameter in found.items() if id(parameter) not in held and name not in self._told]
        if names:
            self._told.update(names)
            self.recorder.emit(trace.Call, name="unregistered", arguments={"names": names})
