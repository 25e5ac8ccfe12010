"""Fewer GPUs than ranks: the ranks of this machine share them, and communicate by NCCL all the same.

NCCL refuses two ranks on one GPU of a machine. Ranks that name unlike hosts (NCCL_HOSTID) are on two machines for it,
and talk over sockets. The program still chooses a GPU for each rank: each index means one of those that are there, as
`cuda:1` is `cuda:0` where there is one. The program reads the number of ranks as the number of GPUs; torch itself
reads the true number.

Measured with torch 2.11 (NCCL 2.28) on one H100: DDP, FSDP2, sends and receives of two ranks give what they give on
two GPUs. A small all_reduce takes 4.5 ms, as the ranks' kernels take turns.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Sequence
from typing import Any

from ddp_lint.verify.child import patching
from ddp_lint.verify.child.devices import Devices, Notice, caller
from ddp_lint.verify.spec import loopback_interface

#: Functions of `torch.cuda` and `torch.accelerator` whose first argument (or `device=`) is a device.
_OF_A_DEVICE = (
    "set_device", "set_device_index", "set_device_idx", "synchronize", "get_device_name", "get_device_capability",
    "get_device_properties", "mem_get_info", "memory_allocated", "max_memory_allocated", "memory_reserved",
    "max_memory_reserved", "memory_stats", "memory_summary", "reset_peak_memory_stats", "current_stream",
    "default_stream", "get_rng_state", "utilization",
)  # fmt: skip


class Sharing(Devices):
    """`gpus`: how many there are; `ranks`: how many GPUs the program is to see."""

    def __init__(self, notice: Notice, gpus: int, ranks: int) -> None:
        super().__init__(notice)
        self._gpus = gpus
        self._ranks = ranks
        #: The index that the program has chosen: current for it, as it would be with a GPU for each rank.
        self._current = 0

    def install(self) -> None:
        import torch

        self.install_tensors()
        for owner in (torch.Tensor, torch.nn.Module):
            patching.replace(owner, "cuda", self.at(1))
        patching.replace(torch.cuda.device, "__init__", self.at(1))
        for module in filter(None, (torch.cuda, getattr(torch, "accelerator", None))):
            for name in _OF_A_DEVICE:
                patching.replace(module, name, self.at(0))
            self.answer(module, "device_count", lambda: self._ranks)
            for name in ("current_device", "current_device_index", "current_device_idx"):
                self.answer(module, name, lambda: self._current)
            for name in ("set_device", "set_device_index", "set_device_idx"):
                patching.before(module, name, self._chosen)
        patching.replace(torch.cuda, "set_rng_state", self.at(1))
        self._install_groups()
        self._install_wrappers()

    def device(self, value: Any, *, number: bool = False) -> Any:
        import torch

        if isinstance(value, bool):
            return value
        if isinstance(value, int):
            return self._index(value) if number else value
        if isinstance(value, str) and value.startswith("cuda:") and value[5:].isdigit():
            return f"cuda:{self._index(int(value[5:]))}"
        if isinstance(value, torch.device) and value.type == "cuda" and value.index is not None:
            index = self._index(value.index)
            return value if index == value.index else torch.device("cuda", index)
        return value

    def _index(self, asked: int) -> int:
        """An index beyond the number of ranks is out of range, as with a GPU for each rank."""
        if not self._gpus <= asked < self._ranks:
            return asked
        self.report(f"cuda:{asked}", f"cuda:{asked % self._gpus}")
        return asked % self._gpus

    # ---- torch.cuda

    def _chosen(self, device: Any) -> None:
        import torch

        index = torch.device(device).index if isinstance(device, str) else getattr(device, "index", device)
        self._current = index if isinstance(index, int) and index >= 0 else self._current

    def is_told(self, name: str) -> bool:
        """Everybody but torch."""
        frame = caller()
        return frame is not None and str(frame.f_globals.get("__name__")).partition(".")[0] != "torch"

    # ---- process groups and wrappers

    def _install_groups(self) -> None:
        import torch.distributed as dist

        def bound(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            _name_a_host(self._ranks)
            if kwargs.get("device_id") is not None:
                kwargs["device_id"] = self.device(kwargs["device_id"], number=True)
            return original(*args, **kwargs)

        def barrier(
            original: Callable[..., Any], group: Any = None, async_op: bool = False, device_ids: Any = None
        ) -> Any:
            return original(group, async_op, self._all(device_ids))

        for name in ("init_process_group", "new_group"):
            patching.around(dist.distributed_c10d, name, bound)
        patching.around(dist.distributed_c10d, "barrier", barrier)

    def _install_wrappers(self) -> None:
        import torch

        def ddp(
            original: Any, wrapper: Any, module: Any, device_ids: Any = None, out: Any = None, *rest: Any, **more: Any
        ) -> None:
            out = self.device(more.pop("output_device", out), number=True)
            original(wrapper, module, self._all(device_ids), out, *rest, **more)

        def fsdp1(original: Any, wrapper: Any, module: Any, *args: Any, **options: Any) -> None:
            options["device_id"] = self.device(options.get("device_id"), number=True)
            original(wrapper, module, *args, **options)

        patching.around(torch.nn.parallel.DistributedDataParallel, "__init__", ddp)
        patching.when_imported(
            "torch.distributed.fsdp", lambda fsdp: patching.around(fsdp.FullyShardedDataParallel, "__init__", fsdp1)
        )

    def _all(self, devices: Sequence[Any] | None) -> list[Any] | None:
        return [self.device(one, number=True) for one in devices] if devices is not None else None


def _name_a_host(ranks: int) -> None:
    """Before the first use of NCCL: each process is a separate host. On one machine they meet on the
    loopback interface alone. NCCL alone sees that: what the program reads and sets is its own."""
    os.putenv("NCCL_HOSTID", f"ddp-lint-{socket.gethostname()}-{os.getpid()}")
    alone = int(os.environ.get("WORLD_SIZE", ranks)) == ranks
    if alone and (interface := loopback_interface()):
        for name, value in (("NCCL_SOCKET_IFNAME", interface), ("NCCL_IB_DISABLE", "1")):
            if name not in os.environ:
                os.putenv(name, value)
