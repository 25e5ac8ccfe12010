"""Parameters that are frozen or made trainable after DDP was built: its reducer ignores that."""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from ddp_lint.verify import trace
from ddp_lint.verify.child import patching
from ddp_lint.verify.child.models import Model, clean
from ddp_lint.verify.child.observers.base import Observer

_Frames = tuple[trace.Frame, ...]


@dataclasses.dataclass
class _Wrap:
    """What DDP saw when it was built: which parameters required a gradient. Its reducer keeps them alive, and they may
    have other names since: by identity."""

    root: weakref.ref[Any]
    number: int
    required: dict[int, tuple[str, bool]]
    built: _Frames
    reported: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())


class Trainable(Observer):
    """Writes a Switched at the forward that meets another state than DDP was built with. What is switched and switched
    back between two forwards is none."""

    def prepare(self) -> None:
        self._wraps: list[_Wrap] = []
        #: Where each parameter's `requires_grad` was set last, by its identity.
        self._set_at: dict[int, _Frames] = {}

    def wrapped(self, model: Model) -> None:
        root: Any = model.root
        if model.wrap != "ddp":
            return
        if not self._wraps:
            self._watch()
        ignored = {clean(name) for name in root.parameters_to_ignore}
        named = {clean(name): p for name, p in root.module.named_parameters()}
        required = {id(p): (name, p.requires_grad) for name, p in named.items() if name not in ignored}
        self._wraps.append(_Wrap(weakref.ref(root), model.number, required, self.recorder.here()))

    def _watch(self) -> None:
        """From the first DDP model on: who sets `requires_grad`, by its method or by assignment."""
        patching.before(torch.Tensor, "requires_grad_", self._set)
        field: Any = torch.Tensor.requires_grad

        def write(parameter: torch.Tensor, value: bool) -> None:
            self._set(parameter)
            field.__set__(parameter, value)

        nn.Parameter.requires_grad = property(field.__get__, write)

    def _set(self, tensor: torch.Tensor, *_args: Any, **_kwargs: Any) -> None:
        if self.recorder.active and isinstance(tensor, nn.Parameter) and not torch.compiler.is_compiling():
            self._set_at[id(tensor)] = self.recorder.here()

    def before_forward(self, root: Any) -> None:
        if not torch.is_grad_enabled():
            return
        for wrap in self._wraps:
            wrapper = wrap.root()
            if wrapper is not None and wrapper is root and wrapper.require_backward_grad_sync:
                self._look(wrap, wrapper.module.parameters())

    def _look(self, wrap: _Wrap, parameters: Iterable[nn.Parameter]) -> None:
        now = {key: p.requires_grad for p in parameters if (key := id(p)) in wrap.required}
        switched = {key: wrap.required[key] for key, required in now.items() if wrap.required[key][1] is not required}
        frozen = tuple(name for name, before in switched.values() if before)
        thawed = tuple(name for name, before in switched.values() if not before)
        if (frozen, thawed) == wrap.reported:
            return
        wrap.reported = (frozen, thawed)
        places = [self._set_at.get(key, ()) for key in switched]
        self.recorder.emit(
            trace.Switched,
            frames=next(filter(None, places), ()),
            model=wrap.number,
            frozen=frozen,
            thawed=thawed,
            built=wrap.built,
        )
