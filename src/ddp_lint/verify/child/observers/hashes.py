"""Digests of parameters, gradients and buffers, to be compared across ranks; parameters without a gradient."""

from __future__ import annotations

import collections
import ctypes
import hashlib
import math
import weakref
from collections.abc import Iterable
from typing import Any

import torch

from ddp_lint.verify import trace
from ddp_lint.verify.child.models import Model, clean, is_shard, local
from ddp_lint.verify.child.observers.base import Observer

#: Steps at which every tensor is digested: the first, then each that is twice as far, then the last. Between them one
#: number shows whether the replicas are still equal; scripts may make a million steps.
_STEPS = 5
#: Models that are kept for the last look although the program has let go of them: more would keep memory of its own.
_HELD = 4
#: Evaluations before which the statistics of batch norms are compared.
_EVALUATIONS = 3
#: The integer type of each size in bytes.
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
#: Elements up to which a tensor is digested whole; of larger ones a sample.
_WHOLE = 1 << 20
#: Settings of optimizers that schedules change: these are compared at each step.
_CHANGING = ("params", "lr", "initial_lr", "max_lr", "min_lr")
#: Sums in a sketch: the distance of two is off by the root of 1 / (2 * _SUMS) or so.
_SUMS = 32


class Hashes(Observer):
    """Hashes before and after the wrap, around each of the first steps and after updates by hand; NoGrad at a step."""

    reads_device = True

    def prepare(self) -> None:
        self._by_hand = 0
        #: (model, name) of statistics that are gathered by assignment and were reported.
        self._gathered: set[tuple[int, str]] = set()
        #: (model, its updates) at evaluations that were looked at.
        self._evaluated: list[tuple[int, int]] = []
        #: The latest models that are compared: one that is local to `main()` is looked at in the end like a global one.
        self._held: collections.deque[Any] = collections.deque(maxlen=_HELD)
        #: Fingerprints that the device may still be working on, to be read when the next one is computed.
        self._unread: list[tuple[torch.Tensor, dict[str, Any]]] = []
        #: Optimizers whose settings were reported.
        self._set: weakref.WeakSet[Any] = weakref.WeakSet()
        #: By optimizers of sharded models, in the order in which they stepped first, the rates that were reported last.
        self._rates: weakref.WeakKeyDictionary[Any, tuple[float, ...]] = weakref.WeakKeyDictionary()

    def install(self) -> None:
        self.models.when_split = self.wrapped

    def before_wrap(self, module: Any) -> None:
        named = {clean(name): p for name, p in module.named_parameters()}
        self._emit("parameters", "before_wrap", "none", None, named)
        self._emit("buffers", "before_wrap", "none", None, {clean(name): b for name, b in module.named_buffers()})

    def wrapped(self, model: Model) -> None:
        if model.replicated == "none":
            return
        self._held.append(model.root)
        self._emit("parameters", "after_wrap", model.replicated, model, model.compared())
        self._emit("buffers", "after_wrap", model.wrap, model, model.buffers())

    def before_forward(self, root: Any) -> None:
        """The user's code has updated parameters by hand."""
        if self.recorder.parameters_written:
            self._by_hand += 1
            self._after(list(self.models), by_hand=self._by_hand)
        model = next((model for model in self.models if root is model.root or root is model.inner), None)
        if model is not None and model.wrap == "ddp" and model.updates and not root.training:
            self._before_evaluation(model)

    def _before_evaluation(self, model: Model) -> None:
        """What a model computes with that evaluates, the first time behind an update."""
        seen = (model.number, model.updates)
        if seen not in self._evaluated and len(self._evaluated) < _EVALUATIONS:
            self._evaluated.append(seen)
            self._emit("buffers", "in_evaluation", "ddp", model, model.running_statistics())

    def before_step(self, optimizer: Any) -> None:
        if _captured():
            return
        if optimizer not in self._set:
            self._set.add(optimizer)
            self.recorder.emit(trace.Call, name="settings", arguments=_settings(optimizer))
        for model in self._stepped(optimizer):
            if model.updates >= _STEPS:
                continue
            parameters = model.parameters()
            averaged = model.compared() if model.wrap == "ddp" else parameters
            grads = {name: p.grad for name, p in averaged.items() if p.grad is not None}
            self._emit("gradients", "before_step", model.wrap, model, grads)
            if model.replicated == trace.BY_HAND and not model.updates:
                self._emit("parameters", "averaged", trace.BY_HAND, model, model.compared())
            if model.replicated in ("ddp", trace.BY_HAND):
                self._emit("states", "before_step", model.replicated, model, _kept(optimizer, model))
            names = tuple(name for name, p in parameters.items() if p.requires_grad and p.grad is None and p.numel())
            if names:
                known = self.recorder.reference_without_gradient
                self.recorder.emit(trace.NoGrad, names=names, reference=tuple(n for n in names if n in known))

    def after_step(self, optimizer: Any) -> None:
        # A rate that is a tensor lies on the device: reading it would make the host wait.
        found = (group.get("lr") for group in optimizer.param_groups)
        rates = tuple(float(rate) for rate in found if isinstance(rate, int | float))
        stepped = self._stepped(optimizer)
        for model in stepped:
            model.updates += 1
        if any(model.sharded for model in stepped):
            self._note_rates(optimizer, rates)
        self._after(stepped, rates)

    def _note_rates(self, optimizer: Any, rates: tuple[float, ...]) -> None:
        """The learning rates of shards, whose values nothing compares, when they have changed."""
        if self._rates.get(optimizer) != rates:
            self._rates[optimizer] = rates
            number = list(self._rates).index(optimizer)
            self.recorder.emit(trace.Call, name="rates", arguments={"optimizer": number, "rates": rates})

    def finish(self) -> None:
        self._read()
        written = self.recorder.parameters_written
        self._in_full([m for m in self.models if written or not m.updates or not _in_full(m.updates)], "at_end")

    def _after(self, models: list[Model], rates: tuple[float, ...] = (), by_hand: int = 0) -> None:
        """The models were updated, by an optimizer or (for how many times now) by hand."""
        if _captured():
            return
        self.recorder.parameters_written = False
        self._read()
        for model in models:
            self._fingerprint(model, rates)
        self._in_full([model for model in models if _in_full(by_hand or model.updates)], "after_step")

    def _in_full(self, models: list[Model], when: str) -> None:
        self.recorder.parameters_written = False
        for model in models:
            self._emit("parameters", when, model.replicated, model, model.compared())
            self._emit("buffers", when, model.wrap, model, model.buffers())
            statistics = model.statistics()
            for name, (_, site) in statistics.items():
                if (model.number, name) not in self._gathered:
                    self._gathered.add((model.number, name))
                    self.recorder.emit(trace.Gathers, frames=(site,), name=name, buffer=name in model.buffers())
            self._emit(
                "statistics", when, model.replicated, model, {n: tensor for n, (tensor, _) in statistics.items()}
            )

    def _fingerprint(self, model: Model, rates: tuple[float, ...]) -> None:
        """Compute the number now, on the device, and read it when the next one is computed: the host does not wait."""
        if model.replicated not in ("ddp", trace.BY_HAND):
            return
        sums = fingerprint(p for p in model.compared().values() if not is_shard(p))
        if sums is None:
            return
        about = {"wrap": model.replicated, "model": model.shared_number, "among": model.among, "update": model.updates}
        about |= {"joins": model.joins, "rates": rates, "step": self.recorder.step, "frames": self.recorder.here()}
        self._unread.append((sums, about))
        if not sums.is_cuda:
            self._read()

    def _read(self) -> None:
        unread, self._unread = self._unread, []
        for sums, about in unread:
            text = hashlib.blake2b(repr(sums.tolist()).encode(), digest_size=8).hexdigest()
            self.recorder.emit(trace.Fingerprint, digest=text, **about)

    def _stepped(self, optimizer: Any) -> list[Model]:
        """The models of which the optimizer holds a parameter; all when it holds none (it may hold stale ones)."""
        held = {id(p) for group in optimizer.param_groups for p in group["params"]}
        return [m for m in self.models if any(id(p) in held for p in m.parameters().values())] or list(self.models)

    def _emit(self, what: str, when: str, wrap: str, model: Model | None, named: dict[str, Any]) -> None:
        if not named and what != "states":  # that a rank's optimizer keeps nothing is worth knowing
            return
        parts = wrap in ("fsdp1", "fsdp2") and what not in ("buffers", "statistics")
        sharded = tuple(name for name, tensor in named.items() if parts or is_shard(tensor))
        self.recorder.emit(
            trace.Hashes,
            what=what,
            when=when,
            wrap=wrap,
            model=model.shared_number if model is not None else 0,
            update=model.updates if model is not None else 0,
            joins=model.joins if model is not None else 0,
            among=model.among if model is not None else (),
            digests={name: digest(tensor) for name, tensor in named.items()},
            norms={name: norm(tensor) for name, tensor in named.items()},
            sketches={n: sketch(tensor) for n, tensor in named.items()}
            if what == "parameters" and wrap in trace.REPLICATED
            else {},
            sharded=sharded,
        )


def _settings(optimizer: Any) -> dict[str, list[float]]:
    """What the groups of an optimizer have for each setting that is a number or several, but for the learning rate."""
    found: dict[str, list[float]] = {}
    for group in optimizer.param_groups:
        for name, value in group.items():
            numbers = value if isinstance(value, tuple) else (value,)
            if name not in _CHANGING and all(isinstance(number, int | float) for number in numbers):
                found.setdefault(name, []).extend(map(float, numbers))
    return found


def _kept(optimizer: Any, model: Model) -> dict[str, torch.Tensor]:
    """What an optimizer keeps of a model's parameters, but for counters."""
    found = {}
    for name, parameter in model.compared().items():
        # A ZeroRedundancyOptimizer that has loaded a state has None for what other ranks keep.
        for key, value in (optimizer.state.get(parameter) or {}).items():
            if isinstance(value, torch.Tensor) and value.numel() > 1 and not is_shard(value):
                found[f"{key} of {name}"] = value
    return found


def _captured() -> bool:
    """What runs now becomes part of a CUDA graph, in which nothing may be read."""
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


def _in_full(step: int) -> bool:
    """Whether every tensor is digested after this step."""
    return step <= _STEPS or step & (step - 1) == 0


def fingerprint(found: Iterable[torch.Tensor]) -> torch.Tensor | None:
    """For each tensor the sum of its bits taken as integers, in one tensor on the device; None without a tensor."""
    sums = [_bits(tensor).sum(dtype=torch.int64) for tensor in map(local, found) if _readable(tensor)]
    if not sums:
        return None
    return torch.stack([one.to(sums[0].device) for one in sums])


def _readable(tensor: torch.Tensor) -> bool:
    return not tensor.is_meta and tensor.layout is torch.strided and tensor.numel() > 0


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    values = tensor.detach()
    values = torch.view_as_real(values) if values.is_complex() else values
    return values.view(_INTEGERS[values.element_size()])


def digest(tensor: torch.Tensor) -> str:
    """16 hex digits of the values on this rank; of a large tensor, of an even sample and the sum."""
    values = _flat(tensor)
    if values is None:
        return "meta"
    summary = repr(values.double().sum().item()).encode() if values.numel() > _WHOLE else b""
    values = _sample(values)
    # An array over its memory would keep FSDP2 from freeing it: such a storage cannot be resized any more.
    data = ctypes.string_at(values.data_ptr(), values.nbytes) if values.numel() else b""
    return hashlib.blake2b(data + summary, digest_size=8).hexdigest()


def norm(tensor: torch.Tensor) -> float:
    """The 2-norm of the values on this rank; not finite when one of them is not."""
    values = _flat(tensor)
    if values is None or not values.numel() or values.is_complex():
        return 0.0
    return float(values.double().norm())


def sketch(tensor: torch.Tensor) -> tuple[float, ...]:
    """A few sums of the values with random signs, the same on every rank; none of what has no real values."""
    values = _flat(tensor)
    if values is None or not values.numel() or values.is_complex():
        return ()
    sample = _sample(values).double()
    scale = math.sqrt(values.numel() / sample.numel())
    rows = math.ceil(sample.numel() / _SUMS)
    padded = torch.nn.functional.pad(sample, (0, rows * _SUMS - sample.numel())).view(rows, _SUMS)
    signs = torch.randint(0, 2, (rows, _SUMS), generator=torch.Generator().manual_seed(rows), dtype=torch.int8)
    return tuple((scale * (padded * (2 * signs - 1)).sum(0)).tolist())


def _sample(values: torch.Tensor) -> torch.Tensor:
    """An even sample of a large tensor."""
    return values[:: math.ceil(values.numel() / _WHOLE)].contiguous() if values.numel() > _WHOLE else values


def _flat(tensor: torch.Tensor) -> torch.Tensor | None:
    """The local values as one row on the CPU, None when there are none (meta tensors)."""
    values = local(tensor.detach())
    if values.is_meta:
        return None
    if values.layout is not torch.strided:
        values = values.to_dense()
    return values.reshape(-1).cpu().contiguous()
