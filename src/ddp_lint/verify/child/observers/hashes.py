"""Digests of parameters, gradients and buffers, to be compared across ranks; parameters without a gradient."""

from __future__ import annotations

import hashlib
import math
from typing import Any

import torch

from ddp_lint.verify import trace
from ddp_lint.verify.child.models import Model, Models, clean, local
from ddp_lint.verify.child.observers.base import Observer
from ddp_lint.verify.child.recorder import Recorder

#: Steps that are looked at: damage that shows at all shows in the first few; scripts may make a million.
_STEPS = 5
#: Elements up to which a tensor is digested whole; of larger ones a sample.
_WHOLE = 1 << 20


class Hashes(Observer):
    """Hashes before and after the wrap, around each of the first steps and after updates by hand; NoGrad at a step."""

    reads_device = True

    def __init__(self, recorder: Recorder, models: Models) -> None:
        super().__init__(recorder, models)
        self._by_hand = 0

    def before_wrap(self, module: Any) -> None:
        named = {clean(name): p for name, p in module.named_parameters()}
        self._emit("parameters", "before_wrap", "none", 0, named)
        self._emit("buffers", "before_wrap", "none", 0, {clean(name): b for name, b in module.named_buffers()})

    def wrapped(self, model: Model) -> None:
        if model.wrap == "none":
            return
        self._emit("parameters", "after_wrap", model.wrap, model.number, model.parameters())
        self._emit("buffers", "after_wrap", model.wrap, model.number, model.buffers())

    def before_forward(self, root: Any) -> None:
        """The user's code has updated parameters by hand."""
        if self.recorder.parameters_written and self._by_hand < _STEPS:
            self._by_hand += 1
            self._after(list(self.models), "after_step")

    def before_step(self, optimizer: Any) -> None:
        if self.recorder.step >= _STEPS:
            return
        for model in self._stepped(optimizer):
            parameters = model.parameters()
            grads = {name: p.grad for name, p in parameters.items() if p.grad is not None}
            self._emit("gradients", "before_step", model.wrap, model.number, grads)
            names = tuple(name for name, p in parameters.items() if p.requires_grad and p.grad is None and p.numel())
            if names:
                known = self.recorder.reference_without_gradient
                self.recorder.emit(trace.NoGrad, names=names, reference=tuple(n for n in names if n in known))

    def after_step(self, optimizer: Any) -> None:
        if self.recorder.step <= _STEPS:
            self._after(self._stepped(optimizer), "after_step")

    def finish(self) -> None:
        if self.recorder.step > _STEPS or not self.recorder.step or self.recorder.parameters_written:
            self._after(list(self.models), "at_end")

    def _after(self, models: list[Model], when: str) -> None:
        self.recorder.parameters_written = False
        for model in models:
            self._emit("parameters", when, model.wrap, model.number, model.parameters())
            self._emit("buffers", when, model.wrap, model.number, model.buffers())

    def _stepped(self, optimizer: Any) -> list[Model]:
        """The models of which the optimizer holds a parameter; all when it holds none (it may hold stale ones)."""
        held = {id(p) for group in optimizer.param_groups for p in group["params"]}
        return [m for m in self.models if any(id(p) in held for p in m.parameters().values())] or list(self.models)

    def _emit(self, what: str, when: str, wrap: str, number: int, named: dict[str, Any]) -> None:
        if not named:
            return
        sharded = tuple(named) if wrap in ("fsdp1", "fsdp2") and what != "buffers" else ()
        self.recorder.emit(
            trace.Hashes,
            what=what,
            when=when,
            wrap=wrap,
            model=number,
            digests={name: digest(tensor) for name, tensor in named.items()},
            norms={name: norm(tensor) for name, tensor in named.items()},
            sharded=sharded,
        )


def digest(tensor: torch.Tensor) -> str:
    """16 hex digits of the values on this rank; of a large tensor, of an even sample and the sum."""
    values = _flat(tensor)
    if values is None:
        return "meta"
    summary = b""
    if values.numel() > _WHOLE:
        summary = repr(values.double().sum().item()).encode()
        values = values[:: math.ceil(values.numel() / _WHOLE)].contiguous()
    data = values.view(torch.uint8).numpy().tobytes() if values.numel() else b""
    return hashlib.blake2b(data + summary, digest_size=8).hexdigest()


def norm(tensor: torch.Tensor) -> float:
    """The 2-norm of the values on this rank; not finite when one of them is not."""
    values = _flat(tensor)
    if values is None or not values.numel() or values.is_complex():
        return 0.0
    return float(values.double().norm())


def _flat(tensor: torch.Tensor) -> torch.Tensor | None:
    """The local values as one row on the CPU, None when there are none (meta tensors)."""
    values = local(tensor.detach())
    if values.is_meta:
        return None
    if values.layout is not torch.strided:
        values = values.to_dense()
    return values.reshape(-1).cpu().contiguous()
