"""Which modules of a replica are in evaluation mode as it trains."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from ddp_lint.verify import trace
from ddp_lint.verify.child import patching
from ddp_lint.verify.child.models import clean
from ddp_lint.verify.child.observers.base import Observer


class Modes(Observer):
    """Writes an Evaluates at the forward of a DDP model that meets other modes than the one before."""

    def prepare(self) -> None:
        self._reported: dict[int, tuple[str, ...]] = {}
        #: Where `eval()` was called last, by the module's identity.
        self._set_at: dict[int, tuple[trace.Frame, ...]] = {}

    def install(self) -> None:
        patching.before(nn.Module, "eval", self._eval)

    def _eval(self, module: nn.Module) -> None:
        if self.recorder.active and not torch.compiler.is_compiling():
            self._set_at[id(module)] = self.recorder.here()

    def before_forward(self, root: Any) -> None:
        model = self.models.find(root)
        if model is None or model.wrap != "ddp" or not torch.is_grad_enabled():
            return
        found = dict(_evaluating(root.module, ""))
        names = tuple(found)
        if names != self._reported.get(model.number, ()):
            self._reported[model.number] = names
            places = (self._set_at.get(id(module), ()) for module in (root, *found.values()))
            self.recorder.emit(
                trace.Evaluates,
                frames=next(filter(None, places), ()),
                model=model.shared_number,
                update=model.updates,
                names=names,
            )


def _evaluating(module: nn.Module, name: str) -> Iterator[tuple[str, nn.Module]]:
    """The outermost modules in evaluation mode; "" is the whole."""
    if not module.training:
        yield clean(name), module
        return
    for part, inner in module.named_children():
        yield from _evaluating(inner, f"{name}.{part}" if name else part)
