"""Parameters that an optimizer trains and that no wrapper keeps equal on all ranks.

What each Call's arguments hold:
optimizer: serial (of the constructor's call) · unwrapped: serial, digests (of these parameters, after a step)
"""

from __future__ import annotations

from typing import Any

import torch

from ddp_lint.verify import trace
from ddp_lint.verify.child import patching
from ddp_lint.verify.child.observers.base import Observer
from ddp_lint.verify.child.observers.hashes import digest

#: Steps of each optimizer behind which they are looked at.
_STEPS = 2


class Unwrapped(Observer):
    """Digests of them after the first steps of each optimizer."""

    def prepare(self) -> None:
        #: By the identity of an optimizer its serial number and the steps that were seen of it.
        self._seen: dict[int, tuple[int, int]] = {}

    def install(self) -> None:
        patching.after(torch.optim.Optimizer, "__init__", self._made)

    def _made(self, _result: Any, optimizer: Any, *_args: Any, **_kwargs: Any) -> None:
        if self.recorder.active and self.recorder.here():
            serial = len(self._seen)
            self._seen[id(optimizer)] = (serial, 0)
            self.recorder.emit(trace.Call, name="optimizer", arguments={"serial": serial})

    def after_step(self, optimizer: Any) -> None:
        serial, steps = self._seen.get(id(optimizer), (0, _STEPS))
        if steps == _STEPS or torch.compiler.is_compiling():
            return
        self._seen[id(optimizer)] = (serial, steps + 1)
        wrapped = {id(p) for model in self.models if model.replicated != "none" for p in model.parameters().values()}
        trained = (p for group in optimizer.param_groups for p in group["params"] if id(p) not in wrapped)
        with self.recorder.quieted():
            digests = [digest(parameter) for parameter in trained]
            self.recorder.emit(trace.Call, name="unwrapped", arguments={"serial": serial, "digests": digests})
