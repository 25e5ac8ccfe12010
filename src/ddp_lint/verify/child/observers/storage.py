"""Which parameters and buffers share memory, and whether the optimizer holds what the model computes with.

What each Call's arguments hold:
joined: name (of a module or parameter that the user's code has given to a wrapped model)
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as modules

from ddp_lint.verify import trace
from ddp_lint.verify.child import guard
from ddp_lint.verify.child.models import Model, clean, local, pointer
from ddp_lint.verify.child.observers.base import Observer

#: Elements up to which overlap is decided element by element; above it, by address ranges.
_EXACT_LIMIT = 1_000_000
#: What joins a wrapped model: so many are reported.
_MOST = 64


class Storages(Observer):
    """A Storage event before and after each wrap, at the first step of each optimizer, and at the end."""

    def prepare(self) -> None:
        self._after_wrap: dict[int, dict[str, tuple[nn.Parameter, int]]] = {}
        self._optimizers: list[Any] = []
        self._tied_before: tuple[tuple[str, str], ...] = ()
        self._joined = 0

    def install(self) -> None:
        notice = guard.guarded(self._joins)
        modules.register_module_module_registration_hook(notice)
        modules.register_module_parameter_registration_hook(notice)

    def _joins(self, owner: nn.Module, name: str, part: Any) -> None:
        """A module gets a part: hooks are called before it has it."""
        new = part is not None and name not in owner._modules and name not in owner._parameters
        recorder = self.recorder
        if not (new and recorder.active and self.models and self._joined < _MOST) or recorder.phase in ("step", "wrap"):
            return
        if self.models.knows(owner) and any(model.wrap != "none" and model.holds(owner) for model in self.models):
            self._joined += 1
            prefix = self.models.name_of_module(owner)
            recorder.emit(trace.Call, name="joined", arguments={"name": f"{prefix}.{name}" if prefix else name})

    def before_wrap(self, module: Any) -> None:
        named = [(clean(name), p) for name, p in module.named_parameters(remove_duplicate=False)]
        buffers = [(clean(name), b) for name, b in module.named_buffers(remove_duplicate=False)]
        sharing = _sharing(named + buffers)
        self._tied_before = sharing["tied"]
        self.recorder.emit(trace.Storage, when="before_wrap", **sharing)

    def wrapped(self, model: Model) -> None:
        self._after_wrap[model.number] = {name: (p, pointer(p)) for name, p in model.parameters().items()}
        if model.wrap != "none":
            named = dict(model.all_parameters())
            self.recorder.emit(
                trace.Storage,
                when="after_wrap",
                untied=tuple(pair for pair in self._tied_before if _apart(named, *pair)),
                **_sharing([*named.items(), *model.buffers().items()]),
            )

    def before_step(self, optimizer: Any) -> None:
        if any(known is optimizer for known in self._optimizers):
            return
        self._optimizers.append(optimizer)
        names = {id(p): name for model in self.models for name, p in model.all_parameters()}
        held = [p for group in optimizer.param_groups for p in group["params"]]
        entries = [(names.get(id(p), f"parameter of shape {list(p.shape)}"), p) for p in held]
        foreign = tuple(name for name, p in entries if id(p) not in names)
        self.recorder.emit(trace.Storage, when="optimizer", foreign=foreign, **_sharing(entries))

    def finish(self) -> None:
        held = {id(p) for optimizer in self._optimizers for group in optimizer.param_groups for p in group["params"]}
        for model in self.models:
            now, named = model.parameters(), dict(model.all_parameters())
            then = self._after_wrap.get(model.number, {})
            common = now.keys() & then.keys()
            trains = [name for name, p in now.items() if p.requires_grad and id(p) not in held]
            self.recorder.emit(
                trace.Storage,
                frames=(),
                when="end",
                missing=tuple(trains) if self._optimizers else (),
                replaced=tuple(name for name in then if name in common and now[name] is not then[name][0]),
                added=tuple(name for name in now if name not in then),
                removed=tuple(name for name in then if name not in now),
                tied=tuple(
                    (name, other)
                    for name in then
                    if name in named and name not in now
                    for other, p in now.items()
                    if p is named[name]
                ),
                moved=tuple(
                    name
                    for name in then
                    if name in common and now[name] is then[name][0] and pointer(now[name]) != then[name][1]
                )
                if model.wrap != "fsdp1"
                else (),
            )


def _apart(named: Mapping[str, Any], name: str, other: str) -> bool:
    return name in named and other in named and named[name] is not named[other]


def _sharing(named: list[tuple[str, Any]]) -> dict[str, Any]:
    """Pairs of names whose tensors overlap, share a storage without overlapping, or are one object.

    Tensors on the meta device have no storage: there only one object under two names is seen.
    """
    by_storage: dict[int, list[tuple[str, torch.Tensor]]] = {}
    for name, tensor in named:
        if (address := id(tensor) if tensor.is_meta else pointer(tensor)) and tensor.numel():
            by_storage.setdefault(address, []).append((name, tensor))
    found: dict[str, list[tuple[str, str]]] = {"overlaps": [], "aliases": [], "tied": []}
    for sharing in by_storage.values():
        for (name, tensor), (other_name, other) in itertools.combinations(sharing, 2):
            kind = "tied" if tensor is other else "overlaps" if overlap(local(tensor), local(other)) else "aliases"
            found[kind].append((name, other_name))
    return {kind: tuple(pairs) for kind, pairs in found.items()}


def overlap(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Two tensors of one storage have an element in common."""
    (a_first, a_last), (b_first, b_last) = _range(a), _range(b)
    if a_last < b_first or b_last < a_first:
        return False
    if a.dtype != b.dtype or a.numel() + b.numel() > _EXACT_LIMIT:
        return True
    return bool(torch.isin(_elements(a), _elements(b)).any())


def _range(tensor: torch.Tensor) -> tuple[int, int]:
    """The first and the last byte of the tensor in its storage."""
    first = tensor.storage_offset()
    last = first + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return first * tensor.element_size(), (last + 1) * tensor.element_size() - 1


def _elements(tensor: torch.Tensor) -> torch.Tensor:
    """The index of each element in the storage."""
    index = torch.tensor([tensor.storage_offset()])
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        index = (index[:, None] + torch.arange(size) * stride).reshape(-1)
    return index
