"""Where the host reads from the device: `.item()` and similar calls, copies to the CPU, and what CUDA reports."""

from __future__ import annotations

import collections
import functools
import re
import sys
import warnings
from types import FrameType
from typing import Any

import torch

from ddp_lint.verify import trace
from ddp_lint.verify.child import patching
from ddp_lint.verify.child.dispatch import arguments, tensors
from ddp_lint.verify.child.observers.base import Observer
from ddp_lint.verify.frames import is_user, outwards

_READS = {
    "_local_scalar_dense", "nonzero", "masked_select", "_unique", "_unique2", "unique_dim", "unique_consecutive",
    "equal", "is_nonzero", "repeat_interleave",
}  # fmt: skip
#: What users write for an operator.
_WRITTEN = {"_local_scalar_dense": ".item()"}
_OWN_READERS = ("torch/utils/data/", "torch/distributed/distributed_c10d.py", "torch/optim/", "torch/serialization.py")
_COPIES = {"_to_copy", "copy_"}
#: Times a line is reported; its count is among the line counts.
_LIMIT = 100
_SYNC_WARNING = "called a synchronizing CUDA operation"


class Syncs(Observer):
    """A Sync for each read in the user's code outside an optimizer's step."""

    def prepare(self) -> None:
        self._side_streams = False
        self._seen: collections.Counter[tuple[trace.Frame, ...]] = collections.Counter()

    def install(self) -> None:
        if self.recorder.spec.device != "cuda":
            return
        patching.before(torch.cuda, "set_stream", self._streams)
        patching.before(torch.cuda.StreamContext, "__enter__", self._streams)
        show = warnings.showwarning

        def showwarning(message: Warning | str, *args: Any, **kwargs: Any) -> None:
            if _SYNC_WARNING not in str(message):
                show(message, *args, **kwargs)
            elif self.recorder.active:
                self._emit("synchronizing CUDA operation", "cuda")

        warnings.showwarning = showwarning
        warnings.filterwarnings("always", message=f".*{re.escape(_SYNC_WARNING)}.*")
        # Once the user's code starts CUDA: before that CUDA_VISIBLE_DEVICES may still change, and processes may fork.
        torch.cuda._lazy_call(functools.partial(torch.cuda.set_sync_debug_mode, "warn"))

    def wants(self, op: Any) -> bool:
        return op.namespace == "aten" and (op._opname in _READS or op._opname in _COPIES)

    def before(self, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self.recorder.phase in ("step", "wrap") or _within_torch(sys._getframe(2)):
            return None
        given = arguments(op, args, kwargs)
        source = next(iter(tensors(list(given.values()))), None)
        if source is None or (op._opname in _COPIES and not _leaves_device(op, given)):
            return None
        of_shards = self.recorder.of_dtensor == op._opname
        self.recorder.of_dtensor = ""
        return _WRITTEN.get(op._opname, op._opname), source, of_shards

    def after(self, token: Any, result: Any) -> None:
        cause, source, of_shards = token
        value = float(result) if isinstance(result, bool | int | float) else None
        place = self.models.place(source)
        self._emit(
            cause,
            source.device.type,
            value=value,
            again=self._again(source) if value is not None else None,
            sharded=of_shards or (place is not None and place.sharded),
            name=place.name if place else "",
        )

    def _again(self, source: torch.Tensor) -> float | None:
        """The number re-read when all streams have finished, where side streams are in use (on CUDA)."""
        if not self._side_streams or source.device.type != "cuda":
            return None
        with self.recorder.quieted():
            torch.cuda.synchronize()
            return float(source)

    def _streams(self, *_: Any) -> None:
        self._side_streams = True

    def _emit(self, cause: str, device: str, **fields: Any) -> None:
        frames = self.recorder.here()
        if not frames or self._seen[frames] >= _LIMIT:
            return
        self._seen[frames] += 1
        self.recorder.emit(
            trace.Sync,
            frames=frames,
            cause=cause,
            device=device,
            **fields,
        )


def _within_torch(frame: FrameType | None) -> bool:
    """A library reads a tensor of its own (a loader its seed, an object collective its sizes), always on the CPU."""
    for here in outwards(frame):
        path = here.f_code.co_filename
        if is_user(path):
            return False
        if any(owner in path for owner in _OWN_READERS):
            return True
    return False


def _leaves_device(op: Any, given: dict[str, Any]) -> bool:
    """The copy goes from a device to the CPU."""
    if op._opname == "copy_":
        target, source = given.get("self"), given.get("src")
        if not isinstance(target, torch.Tensor) or not isinstance(source, torch.Tensor):
            return False
        return bool(target.device.type == "cpu" != source.device.type)
    source, device = given.get("self"), given.get("device")
    return isinstance(source, torch.Tensor) and source.device.type != "cpu" and str(device) == "cpu"
