"""Accesses to GPU memory from several CUDA streams that nothing orders.

torch reports events, waits and allocations through its GPU trace (what `TORCH_CUDA_SANITIZER` listens to), those of
NCCL's own streams included; the operators come through our dispatch mode. Order is a property of the program: it is
judged from what was launched, never from what happened to finish in time.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable
from typing import Any

import torch

from ddp_lint.verify import trace
from ddp_lint.verify.child.dispatch import of_metadata, read, tensors, written
from ddp_lint.verify.child.observers.base import Observer
from ddp_lint.verify.child.ordering import Launch, Ordering, Unordered
from ddp_lint.verify.frames import user_frames

#: Operators that look at shapes only, or exchange the storage without touching its contents.
#: The largest number of reported races: one is enough for a verdict, and a loop repeats them.
_LIMIT = 20


class Streams(Observer):
    """An Unordered for each pair of places, and at the end how much was watched. Off unless a finding requires it."""

    def prepare(self) -> None:
        self.ordering = Ordering()
        self._on = False
        self._reported: set[tuple[object, ...]] = set()

    def install(self) -> None:
        if not self.recorder.spec.streams or self.recorder.spec.device != "cuda":
            return
        try:
            import torch.cuda._gpu_trace as gpu_trace

            torch._C._activate_gpu_trace()
        except (ImportError, AttributeError):
            self.recorder.emit(trace.Note, frames=(), text="this torch does not report streams and events")
            return
        self._on = True
        for name, method in (
            ("event_record", self.ordering.record),
            ("event_wait", self.ordering.wait),
            ("event_synchronization", self.ordering.host_waits_for_event),
            ("stream_synchronization", self.ordering.host_waits_for_stream),
            ("device_synchronization", self.ordering.host_waits_for_all),
            ("memory_allocation", self.ordering.allocate),
            ("memory_deallocation", self.ordering.free),
        ):
            getattr(gpu_trace, f"register_callback_for_{name}")(self._of_program(method))

    def _of_program(self, method: Callable[..., None]) -> Callable[..., None]:
        """What the observers themselves wait for orders nothing in the program."""

        def notice(*args: int) -> None:
            if self.recorder.active:
                method(*args)

        return notice

    def wants(self, op: Any) -> bool:
        return self._on

    def before(self, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The launch counts from here: what the operator records by itself (a collective does) comes after it."""
        if not torch.cuda.is_initialized():
            return None
        if op._opname == "record_stream":
            self.ordering.keep(args[0].data_ptr(), _pointer(args[1]))
            return None
        launch = self.ordering.launch(torch.cuda.current_stream().cuda_stream, str(op), user_frames(sys._getframe(1)))
        if not of_metadata(op):
            mutated = _addresses(written(op, args, kwargs))
            self._tell(self.ordering.read(launch, _addresses(read(op, args, kwargs)) - mutated))
            self._tell(self.ordering.write(launch, mutated))
        return op, launch

    def after(self, token: Any, result: Any) -> None:
        op, launch = token
        if not of_metadata(op) and not any(returned.alias_info for returned in op._schema.returns):
            self._tell(self.ordering.write(launch, _addresses(tensors(result))))

    def _tell(self, races: Iterable[Unordered]) -> None:
        for race in races:
            key = (race.later.frames[:1], race.earlier.frames[:1], race.later.op, race.earlier.op)
            if key in self._reported or len(self._reported) >= _LIMIT:
                continue
            self._reported.add(key)
            self.recorder.emit(
                trace.Unordered,
                frames=race.later.frames,
                op=race.later.op,
                writes=race.writes,
                earlier_op=race.earlier.op,
                earlier=race.earlier.frames,
                streams=(_name(race.earlier), _name(race.later)),
                freed=race.freed,
            )

    def finish(self) -> None:
        if self._on:
            watched = self.ordering
            self.recorder.emit(trace.Ordered, frames=(), streams=watched.streams, launches=watched.launches)


def _addresses(found: Iterable[torch.Tensor]) -> set[int]:
    """Where tensors begin: views of one storage at other offsets are other memory."""
    return {tensor.data_ptr() for tensor in found if tensor.is_cuda and tensor.layout is torch.strided} - {0}


@functools.lru_cache(maxsize=256)
def _pointer(stream: Any) -> int:
    """CUDA's handle of a stream, which a generic `torch.Stream` does not have."""
    if not hasattr(stream, "cuda_stream"):
        stream = torch.cuda.Stream(
            stream_id=stream.stream_id, device_index=stream.device_index, device_type=stream.device_type
        )
    return int(stream.cuda_stream)


def _name(launch: Launch) -> str:
    return "the default stream" if launch.stream == 0 else f"stream {launch.stream:#x}"
