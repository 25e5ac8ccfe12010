"""CUDA scripts on a machine without CUDA: what the user's code says of `cuda` and `nccl` means the CPU and gloo.

The entry points of `child/devices.py` are replaced, and the functions of `torch.cuda` and `torch.accelerator`. What
those functions return depends on the caller: the user's code sees a GPU for each rank of the machine, torch and other
libraries see the true value, so that none of them takes a path that needs a driver. What could only fail without a
driver, such as the state of the random numbers of a device that the user's code named, works for everyone.

With CUDA (`--device cuda`) the reverse: a group on gloo alone gets both backends, one for each kind of tensor.
"""

from __future__ import annotations

import os
import types
from collections.abc import Callable
from typing import Any

from ddp_lint.verify.child import patching
from ddp_lint.verify.child.devices import Devices, Notice, caller
from ddp_lint.verify.child.sharing import Sharing
from ddp_lint.verify.frames import is_user
from ddp_lint.verify.spec import Spec

#: The answers that the user's code gets about the device that is not there.
_MEMORY = 16 << 30
_CAPABILITY = (8, 0)
_NAME = "CPU (in place of CUDA)"
#: A library calls these for a device that it was given; without CUDA they raise, so they are no test for it.
_SERVICES = frozenset(
    ("synchronize", "get_rng_state", "set_rng_state", "current_stream", "default_stream", "reset_peak_memory_stats")
)


class Shim(Devices):
    """`devices` is how many the program is to see."""

    def __init__(self, notice: Notice, devices: int = 1) -> None:
        super().__init__(notice)
        #: As with CUDA the first one until the program chooses another.
        self._current = 0
        self._devices = devices

    def install(self, device: str) -> None:
        """`device` is what the ranks run on: cpu or cuda."""
        if device == "cuda":
            self._install_groups(_with_cpu)
            return
        self._install_tensors()
        self._install_contexts()
        self._install_cuda()
        self._install_accelerator()
        self._install_groups(_without_cuda)
        self._install_wrappers()

    def device(self, value: Any, *, number: bool = False) -> Any:
        """An existing device for the requested one; `number`: an int here is the index of a device."""
        import torch

        if isinstance(value, str) and value.split(":")[0] == "cuda":
            self.report(value, "cpu")
            return "cpu"
        if isinstance(value, torch.device) and value.type == "cuda":
            self.report(str(value), "cpu")
            return torch.device("cpu")
        if number and isinstance(value, int) and not isinstance(value, bool):
            self.report(f"cuda:{value}", "cpu")
            return "cpu"
        return value

    # ---- tensors and modules

    def _install_tensors(self) -> None:
        import torch

        self.install_tensors()
        for name in ("cuda", "pin_memory"):
            patching.around(torch.Tensor, name, self._stay)
        patching.around(torch.Tensor, "record_stream", lambda *_: None)
        patching.around(torch.nn.Module, "cuda", self._stay)
        for name in ("Float", "Double", "Half", "BFloat16", "Long", "Int", "Short", "Char", "Byte", "Bool"):
            setattr(torch.cuda, f"{name}Tensor", getattr(torch, f"{name}Tensor", None))

    def with_device(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Besides, memory is not pinned."""
        mapped = super().with_device(original)

        def replacement(*args: Any, **kwargs: Any) -> Any:
            if kwargs.get("pin_memory"):
                kwargs["pin_memory"] = False
            return mapped(*args, **kwargs)

        return replacement

    def _stay(self, _original: Callable[..., Any], target: Any, device: Any = None, *_: Any, **__: Any) -> Any:
        """What moves to CUDA stays where it is."""
        self.device("cuda" if device is None else device, number=True)
        return target

    # ---- autocast and scaler

    def _install_contexts(self) -> None:
        import torch

        patching.around(torch.amp.autocast_mode.autocast, "__init__", self._typed)
        patching.around(torch.amp.grad_scaler.GradScaler, "__init__", self._typed)

    def _typed(
        self, original: Callable[..., Any], context: Any, device_type: Any = "cuda", *args: Any, **kwargs: Any
    ) -> Any:
        """The first argument is the type of a device."""
        device = kwargs.pop("device", kwargs.pop("device_type", device_type))
        return original(context, str(self.device(device)), *args, **kwargs)

    # ---- torch.cuda and torch.accelerator

    def _install_cuda(self) -> None:
        import torch

        for name, answer in self._answers().items():
            self.answer(torch.cuda, name, answer)
        for name, stub in {"Stream": _Stream, "Event": _Event, "device": self._on, "device_of": _Context}.items():
            setattr(torch.cuda, name, stub)
        self.answer(torch.cuda, "stream", _Context)
        self.answer(torch.cuda.nvtx, "range_push", lambda *_: 0)
        self.answer(torch.cuda.nvtx, "range_pop", lambda *_: 0)
        self.answer(torch.cuda.nvtx, "range", _Context)

    def _answers(self) -> dict[str, Callable[..., Any]]:
        import torch

        def nothing(*_: Any, **__: Any) -> None:
            return None

        properties = types.SimpleNamespace(
            name=_NAME, major=_CAPABILITY[0], minor=_CAPABILITY[1], total_memory=_MEMORY, multi_processor_count=1
        )
        silent = (
            "synchronize", "empty_cache", "init", "ipc_collect", "manual_seed", "manual_seed_all", "set_stream",
            "reset_peak_memory_stats", "reset_max_memory_allocated", "reset_max_memory_cached",
            "reset_accumulated_memory_stats", "set_per_process_memory_fraction", "set_sync_debug_mode",
            "set_rng_state_all",
        )  # fmt: skip
        zeros = (
            "memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved", "memory_cached",
            "max_memory_cached", "utilization", "temperature", "power_draw",
        )  # fmt: skip
        answers: dict[str, Callable[..., Any]] = dict.fromkeys(silent, nothing)
        answers |= {name: lambda *_, **__: 0 for name in zeros}
        special: dict[str, Callable[..., Any]] = {
            "is_available": lambda: True,
            "is_initialized": lambda: True,
            "is_bf16_supported": lambda *_, **__: True,
            "device_count": lambda: self._devices,
            "current_device": lambda: self._current,
            "set_device": self._set_device,
            "get_device_name": lambda *_: _NAME,
            "get_device_capability": lambda *_: _CAPABILITY,
            "get_device_properties": lambda *_: properties,
            "mem_get_info": lambda *_: (_MEMORY, _MEMORY),
            "memory_stats": lambda *_: {},
            "memory_summary": lambda *_, **__: "",
            "can_device_access_peer": lambda *_: True,
            "current_stream": lambda *_: _Stream(),
            "default_stream": lambda *_: _Stream(),
            "get_rng_state": lambda *_: torch.get_rng_state(),
            "get_rng_state_all": lambda *_: [torch.get_rng_state()] * self._devices,
            "set_rng_state": lambda state, *_: torch.set_rng_state(state),
        }
        return answers | special

    def _on(self, device: Any) -> Any:
        """`with torch.cuda.device(1):`"""
        self.device(device, number=True)
        return _Context()

    def _set_device(self, device: Any) -> None:
        import torch

        self.device(device, number=True)
        if isinstance(device, str):
            device = torch.device(device)
        index = device.index if isinstance(device, torch.device) else device
        self._current = index if isinstance(index, int) else self._current

    def _install_accelerator(self) -> None:
        import torch

        accelerator = getattr(torch, "accelerator", None)
        if accelerator is None:  # before torch 2.6
            return
        answers: dict[str, Callable[..., Any]] = {
            "is_available": lambda: True,
            "device_count": lambda: self._devices,
            "current_accelerator": lambda *_, **__: torch.device("cuda"),
            "current_device_index": lambda: self._current,
            "current_device_idx": lambda: self._current,
            "set_device_index": self._set_device,
            "set_device_idx": self._set_device,
            "device_index": _Context,
            "synchronize": lambda *_: None,
            "current_stream": lambda *_: _Stream(),
            "empty_cache": lambda *_: None,
        }
        for name, answer in answers.items():
            self.answer(accelerator, name, answer)

    def is_told(self, name: str) -> bool:
        """The user's code; others where the truth is an error."""
        frame = caller()
        by_user = frame is not None and is_user(frame.f_code.co_filename)
        if by_user:
            self.report("torch.cuda", "cpu")  # a question alone uses no GPU
        return by_user or name in _SERVICES

    # ---- process groups and wrappers

    def _install_groups(self, backend_for: Callable[[str], str]) -> None:
        import torch.distributed as dist

        def backend(name: Any) -> Any:
            actual = backend_for(name) if isinstance(name, str) else name
            if actual != name:
                self.report(name, actual)
            return actual

        def init(original: Callable[..., Any], backend_name: Any = None, *args: Any, **kwargs: Any) -> Any:
            name = kwargs.pop("backend", backend_name)
            bound = kwargs.get("device_id")
            if backend_for is _without_cuda and self.device(bound, number=True) is not bound:
                del kwargs["device_id"]
            if backend(name) != name:
                kwargs.pop("pg_options", None)
            return original(backend(name), *args, **kwargs)

        def group(
            original: Any, ranks: Any = None, timeout: Any = None, backend_name: Any = None, **kwargs: Any
        ) -> Any:
            name = kwargs.pop("backend", backend_name)
            if backend(name) != name:
                kwargs.pop("pg_options", None)
            if backend_for is _without_cuda:
                kwargs.pop("device_id", None)
            return original(ranks, timeout, backend(name), **kwargs)

        patching.around(dist.distributed_c10d, "init_process_group", init)
        patching.around(dist.distributed_c10d, "new_group", group)
        if backend_for is _without_cuda:
            self._install_group_details()

    def _install_group_details(self) -> None:
        import torch.distributed as dist
        from torch.distributed import device_mesh

        def barrier(original: Any, group: Any = None, async_op: bool = False, device_ids: Any = None) -> Any:
            return original(group, async_op)

        def typed(original: Callable[..., Any], device_type: Any, *args: Any, **kwargs: Any) -> Any:
            if device_type == "cuda":  # a mesh gives each rank a GPU of its own where it has chosen none
                self.report(f"cuda:{os.environ.get('LOCAL_RANK', '0')}", "cpu")
            return original(self.device(device_type), *args, **kwargs)

        patching.around(dist.distributed_c10d, "barrier", barrier)
        self.answer(dist, "is_nccl_available", lambda: True)
        patching.around(dist.distributed_c10d, "get_default_backend_for_device", typed)
        patching.around(device_mesh, "init_device_mesh", typed)
        patching.replace(device_mesh.DeviceMesh, "__init__", self.at(1))

    def _install_wrappers(self) -> None:
        import torch

        def ddp(
            original: Any, wrapper: Any, module: Any, device_ids: Any = None, out: Any = None, *rest: Any, **more: Any
        ) -> None:
            for device in device_ids or ():
                self.device(device, number=True)
            more.pop("output_device", None)
            original(wrapper, module, None, None, *rest, **more)

        def fsdp1(original: Any, wrapper: Any, module: Any, *args: Any, **options: Any) -> None:
            if options.get("device_id") is not None:
                self.device(options["device_id"], number=True)
                options["device_id"] = torch.device("cpu")  # without one FSDP requires an accelerator
            original(wrapper, module, *args, **options)

        def in_place(_original: Any, _cls: Any, module: Any, process_group: Any = None) -> Any:
            from ddp_lint.verify.child.syncbn import converted

            self.report("SyncBatchNorm", "the same sums by all_reduce")
            return converted(module, process_group)

        patching.around(torch.nn.SyncBatchNorm, "convert_sync_batchnorm", in_place)
        patching.around(torch.nn.parallel.DistributedDataParallel, "__init__", ddp)
        patching.when_imported(
            "torch.distributed.fsdp",  # which takes as long as half of torch
            lambda fsdp: patching.around(fsdp.FullyShardedDataParallel, "__init__", fsdp1),
        )


def install(notice: Notice, spec: Spec, devices: int) -> None:
    """What this run needs of it, in a process that is to see so many GPUs."""
    if spec.shim:
        Shim(notice, devices).install(spec.device)
    if spec.shared_gpus:
        Sharing(notice, spec.shared_gpus, devices).install()


def _without_cuda(backend: str) -> str:
    """gloo for nccl, also in `cpu:gloo,cuda:nccl`."""
    return "gloo" if "nccl" in backend.lower() else backend


def _with_cpu(backend: str) -> str:
    """Both backends for gloo alone: the tensors of a GPU run go over NCCL, those that lie on the CPU over gloo. A rank
    that keeps CUDA away from itself (a limit of memory, CUDA_VISIBLE_DEVICES) stays on gloo."""
    import torch

    return "cpu:gloo,cuda:nccl" if backend.lower() == "gloo" and torch.cuda.is_available() else backend


class _Stub:
    """Takes any arguments, has no effect; a context manager that does nothing."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def synchronize(self) -> None:
        return None

    def query(self) -> bool:
        return True


class _Context(_Stub):
    pass


class _Event(_Stub):
    def record(self, *_: Any) -> None:
        return None

    def wait(self, *_: Any) -> None:
        return None

    def elapsed_time(self, _end: Any) -> float:
        return 0.0


class _Stream(_Stub):
    def wait_stream(self, _stream: Any) -> None:
        return None

    def wait_event(self, _event: Any) -> None:
        return None

    def record_event(self, event: Any = None) -> Any:
        return event or _Event()
