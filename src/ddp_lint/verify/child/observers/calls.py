"""Calls that the oracles care for: torch.load, share_memory_, devices, loaders, clipping, seeds.

What each Call's arguments hold:
torch.load: map_location (as text, "" for none), storages (the locations stored in the file), landed (devices), path
torch.save: tensors (how many), parts (those of them that are a shard of this rank), path ("" for none)
settings: what an optimizer is given at its first step, by name the numbers of its groups
rates: optimizer (its number), rates (of its groups, when they have changed)
share_memory_: device · set_device: device · DataLoader: workers, context, pin_memory, sampler, dataset, batches
set_epoch: epoch · no_sync: {} · manual_seed: seed, generator (torch, random, numpy)
wrapped: classes (of the modules of a model, by name), files (of the user's own among them)
load_state_dict: model (the module's class), or optimizer (its class)
store: asks, key (the call waits until some rank has set the key)
register_comm_hook: hook, of (where a hook of the user's own begins: path, line)
clip_grad_norm_: sharded, scale (what a GradScaler has multiplied the gradients by so far)
zero_grad: {} (of an optimizer that has gradients)
divided_twice: by (the number that the loss of a backward was divided by twice in a row)
divided_sum: by (the number of ranks, by which the loss was divided whose values were summed over them before; there)
convert_sync_batchnorm: dropped (classes of the replaced layers that have a forward of their own)
schedule: total (steps that it is made for), steps (those that it made until the end); written there
"""

from __future__ import annotations

import functools
import inspect
import os
import random
import sys
from typing import Any

import torch
import torch.distributed as dist
import torch.utils.data
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import post_localSGD_hook
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils.data.distributed import DistributedSampler

from ddp_lint.verify import trace
from ddp_lint.verify.child import patching
from ddp_lint.verify.child.dispatch import tensors
from ddp_lint.verify.child.models import Model, clean, is_shard, local
from ddp_lint.verify.child.observers.base import Observer
from ddp_lint.verify.child.observers.sums import SUMMED
from ddp_lint.verify.frames import absolute, is_user

#: Schedules that are remembered until the end.
_SCHEDULES = 16


class Calls(Observer):
    """Writes a Call, before the call where it may not return."""

    def prepare(self) -> None:
        self._tags: list[str] = []
        self._scale = 1.0
        self._converting = False
        #: Where losses are summed over the ranks that backward then takes divided by their number.
        self._summed: set[tuple[trace.Frame, ...]] = set()
        #: The schedules of learning rates, each with where it was made.
        self._schedules: list[tuple[Any, tuple[trace.Frame, ...]]] = []

    def install(self) -> None:
        patching.after(torch.serialization, "default_restore_location", self._restored)
        patching.around(torch.serialization, "load", self._load)
        patching.before(torch.serialization, "save", self._save)
        patching.before(
            torch.Tensor, "share_memory_", lambda tensor: self._call("share_memory_", device=_device(tensor))
        )
        patching.before(nn.Module, "share_memory", self._share_module)
        patching.before(torch.cuda, "set_device", lambda device: self._call("set_device", device=str(device)))
        self._watch_seeds()
        patching.before(
            nn.Module, "load_state_dict", lambda module, *_, **__: self._call("load_state_dict", model=_class(module))
        )
        patching.before(
            torch.optim.Optimizer,
            "load_state_dict",
            lambda optimizer, *_, **__: self._call("load_state_dict", optimizer=_class(optimizer)),
        )
        for name in ("get", "wait"):
            patching.before(dist.Store, name, functools.partial(self._awaits, name))
        patching.before(nn.parallel.DistributedDataParallel, "no_sync", lambda _: self._call("no_sync"))
        patching.before(nn.parallel.DistributedDataParallel, "register_comm_hook", self._hook)
        patching.before(DistributedSampler, "set_epoch", lambda _, epoch: self._call("set_epoch", epoch=int(epoch)))
        patching.after(torch.utils.data.DataLoader, "__init__", self._loader)
        patching.after(nn.utils.clip_grad, "clip_grad_norm_", self._clipped)
        patching.before(torch.optim.Optimizer, "zero_grad", self._clears)
        patching.before(torch.Tensor, "backward", self._goes_back)
        patching.after(torch.optim.lr_scheduler.LRScheduler, "__init__", self._made_schedule)
        patching.before(torch.optim.lr_scheduler.ReduceLROnPlateau, "step", self._decides)
        patching.after(torch.optim.lr_scheduler.ReduceLROnPlateau, "step", self._decided)
        patching.after(torch.amp.GradScaler, "scale", lambda _, scaler, *args: self._multiplied(scaler))
        patching.after(torch.amp.GradScaler, "unscale_", lambda *_: self._divided())
        patching.after(torch.amp.GradScaler, "update", lambda _, scaler, *args: self._scaled(scaler))
        patching.around(nn.SyncBatchNorm, "convert_sync_batchnorm", self._convert)
        nn.utils.clip_grad_norm_ = nn.utils.clip_grad.clip_grad_norm_

    def wrapped(self, model: Model) -> None:
        inner = model.inner
        if model.replicated != "none" and inner is not None:
            classes = {clean(name): type(module).__name__ for name, module in inner.named_modules()}
            files = sorted({path for module in inner.modules() if is_user(path := _source(module))})
            self.recorder.emit(trace.Call, name="wrapped", arguments={"classes": classes, "files": files})

    def _call(self, name: str, /, **arguments: Any) -> None:
        if self.recorder.active and not torch.compiler.is_compiling() and self.recorder.here():
            self.recorder.emit(trace.Call, name=name, arguments=arguments)

    def _awaits(self, asks: str, _store: Any, key: Any, *_args: Any) -> None:
        """Of the user's own: torch keeps much in its store."""
        if is_user(sys._getframe(2).f_code.co_filename):
            self._call("store", asks=asks, key=str(key))

    def _watch_seeds(self) -> None:
        def notice(generator: str) -> Any:
            return lambda seed=None, *_, **__: self._call("manual_seed", generator=generator, seed=_number(seed))

        patching.before(torch, "manual_seed", notice("torch"))
        patching.before(random, "seed", notice("random"))
        patching.before(random.Random, "seed", lambda _, seed=None, *__, **___: notice("random.Random")(seed))
        patching.when_imported("numpy.random", lambda package: patching.before(package, "seed", notice("numpy")))

    # ---- torch.load

    def _load(self, original: Any, f: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
        self._tags = []
        loaded = original(f, map_location, *args, **kwargs)
        found = {_device(tensor) for tensor in _tensors_in(loaded)}
        self._call(
            "torch.load",
            map_location="" if map_location is None else str(map_location),
            storages=sorted(set(self._tags)),
            landed=sorted(found),
            path=_path(f),
        )
        return loaded

    def _save(self, obj: Any, f: Any = None, *_args: Any, **_kwargs: Any) -> None:
        saved = _tensors_in(obj)
        self._call("torch.save", tensors=len(saved), parts=sum(map(is_shard, saved)), path=_path(f))

    def _restored(self, _result: Any, _storage: Any, location: Any) -> None:
        self._tags.append(str(location))

    # ---- the rest

    def _made_schedule(self, _result: Any, schedule: Any, *_args: Any, **_kwargs: Any) -> None:
        if self.recorder.active and len(self._schedules) < _SCHEDULES:
            self._schedules.append((schedule, self.recorder.here()))

    def finish(self) -> None:
        for schedule, frames in self._schedules:
            total = getattr(schedule, "total_steps", None) or getattr(schedule, "T_max", None)
            if isinstance(total, int) and frames:
                arguments = {"total": total, "steps": int(schedule.last_epoch)}
                self.recorder.emit(trace.Call, frames=frames, name="schedule", arguments=arguments)

    def _convert(self, original: Any, cls: Any, module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        """It calls itself for each child: the outermost call counts."""
        if self._converting:
            return original(cls, module, *args, **kwargs)
        norms = (type(each) for each in module.modules() if isinstance(each, nn.modules.batchnorm._BatchNorm))
        dropped = sorted({kind.__name__ for kind in norms if not kind.forward.__module__.startswith("torch.")})
        self._call("convert_sync_batchnorm", dropped=dropped)
        self._converting = True
        try:
            return original(cls, module, *args, **kwargs)
        finally:
            self._converting = False

    def _share_module(self, module: nn.Module) -> None:
        first = next(module.parameters(), None)
        self._call("share_memory_", device=_device(first) if first is not None else "", module=type(module).__name__)

    def _loader(self, _result: Any, loader: Any, *_args: Any, **_kwargs: Any) -> None:
        dataset = loader.dataset
        self._call(
            "DataLoader",
            workers=loader.num_workers,
            context=str(getattr(loader.multiprocessing_context, "_name", "") or ""),
            pin_memory=bool(loader.pin_memory),
            sampler=type(loader.sampler).__name__,
            dataset=type(dataset).__name__,
            batches=_length(loader),
        )

    def _hook(self, wrapper: Any, _state: Any, hook: Any, *_args: Any) -> None:
        model = self.models.find(wrapper)
        if model is not None and hook is post_localSGD_hook:
            model.wrap = "none"  # each rank trains by itself, and models are averaged now and then
        code = getattr(hook, "__code__", None)
        if code is not None and is_user(code.co_filename):
            self._call("register_comm_hook", hook=code.co_name, of=[absolute(code.co_filename), code.co_firstlineno])

    def _clipped(self, total: Any, *_args: Any, **_kwargs: Any) -> None:
        if self.recorder.active and isinstance(total, torch.Tensor):
            self._call("clip_grad_norm_", sharded=any(model.sharded for model in self.models), scale=self._scale)
            value = total.full_tensor() if hasattr(total, "full_tensor") else total
            with self.recorder.quieted():
                self.recorder.emit(trace.Value, what="clip_grad_norm_", local=float(value))

    def _clears(self, optimizer: torch.optim.Optimizer, *_args: Any, **_kwargs: Any) -> None:
        parameters = (p for group in optimizer.param_groups for p in group["params"] if p.grad is not None)
        first = next(parameters, None)
        if self.recorder.active and first is not None:
            with self.recorder.quieted():
                holds = bool(local(first.grad).any())
            if holds:
                self._call("zero_grad")

    def _goes_back(self, loss: torch.Tensor, *_args: Any, **_kwargs: Any) -> None:
        if self.recorder.active:
            with self.recorder.quieted(), _disable_current_modes():  # a saved number is no tensor to a mode
                by = _divided_by(loss)
                twice = next((number for number in by if number not in (0.0, 1.0) and by.count(number) > 1), None)
                summed = _summed_and_divided(loss, dist.get_world_size() if dist.is_initialized() else 1)
            if twice is not None:
                self._call("divided_twice", by=twice)
            if summed and summed not in self._summed:
                self._summed.add(summed)
                self.recorder.emit(
                    trace.Call, frames=summed, name="divided_sum", arguments={"by": dist.get_world_size()}
                )

    def _decides(self, _scheduler: Any, metrics: Any, *_args: Any, **_kwargs: Any) -> None:
        if self.recorder.active:
            with self.recorder.quieted():
                self.recorder.emit(trace.Value, what="plateau", local=float(metrics))

    def _decided(self, _result: Any, scheduler: Any, *_args: Any, **_kwargs: Any) -> None:
        rates = [group["lr"] for group in scheduler.optimizer.param_groups]
        if self.recorder.active and rates and isinstance(rates[0], float):
            self.recorder.emit(trace.Value, what="rate", local=rates[0])

    def _multiplied(self, scaler: Any) -> None:
        if self.recorder.active:
            with self.recorder.quieted():
                self._scale = float(scaler.get_scale())

    def _divided(self) -> None:
        self._scale = 1.0

    def _scaled(self, scaler: Any) -> None:
        self._divided()
        if self.recorder.active and scaler.is_enabled():
            with self.recorder.quieted():
                self.recorder.emit(trace.Value, what="scale", local=float(scaler.get_scale()))


def _divided_by(loss: torch.Tensor) -> list[float]:
    """The numbers that a loss was divided by one after the other, with nothing between them, the last first."""
    found: list[float] = []
    made: Any = loss.grad_fn
    while made is not None and type(made).__name__ == "DivBackward0":
        divisor = _divisor(made)
        if divisor is None:
            break
        found.append(divisor)
        made = made.next_functions[0][0]
    return found


def _summed_and_divided(loss: torch.Tensor, world: int) -> tuple[trace.Frame, ...]:
    """Where a loss was summed over the ranks that was divided by their number afterwards: autograd knows of the
    division alone."""
    divided, made = False, loss.grad_fn
    while made is not None and world > 1 and type(made).__name__ in ("DivBackward0", "MulBackward0"):
        summed = made.metadata.get(SUMMED, ())
        if summed:
            break
        divided |= type(made).__name__ == "DivBackward0" and _divisor(made) == world
        made = made.next_functions[0][0]
    found: tuple[trace.Frame, ...] = made.metadata.get(SUMMED, ()) if made is not None and divided else ()
    return found


def _divisor(made: Any) -> float | None:
    """The number that a division was by; a graph that a backward has freed no longer knows it."""
    try:
        other = made._saved_other
    except RuntimeError:
        return None
    return float(other) if isinstance(other, torch.Tensor) and not other.dim() else None


def _source(module: nn.Module) -> str:
    """The file of its forward, which TorchScript makes by a descriptor that needs the module."""
    code = getattr(inspect.getattr_static(type(module), "forward", None), "__code__", None)
    return absolute(code.co_filename) if code is not None else ""


def _path(file: Any) -> str:
    return absolute(os.fsdecode(file)) if isinstance(file, str | bytes | os.PathLike) else ""


def _class(module: Any) -> str:
    return type(module).__name__


def _number(seed: Any) -> int | None:
    return seed if isinstance(seed, int) else None


def _device(tensor: torch.Tensor) -> str:
    return str(local(tensor).device)


def _tensors_in(value: Any, depth: int = 6) -> list[torch.Tensor]:
    """The tensors in a loaded checkpoint: nested dicts, lists, modules."""
    if isinstance(value, nn.Module):
        return list(value.state_dict().values())
    if isinstance(value, dict) and depth:
        return [tensor for item in value.values() for tensor in _tensors_in(item, depth - 1)]
    if isinstance(value, list | tuple) and depth:
        return [tensor for item in value for tensor in _tensors_in(item, depth - 1)]
    return tensors(value)


def _length(loader: Any) -> int | None:
    try:
        return len(loader)
    except (TypeError, NotImplementedError):
        return None
