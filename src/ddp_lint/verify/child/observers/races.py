"""Tensors of an asynchronous collective that are read or written before its `wait()`."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
import torch.distributed as dist

from ddp_lint.verify import trace
from ddp_lint.verify.child import patching
from ddp_lint.verify.child.dispatch import arguments, namespace, read, tensors, written
from ddp_lint.verify.child.models import Models, pointer
from ddp_lint.verify.child.observers.base import Observer
from ddp_lint.verify.child.observers.collectives import OUTPUT_NAMES, Collectives, work_of
from ddp_lint.verify.child.recorder import Recorder


@dataclasses.dataclass
class _Flight:
    """A collective that was started and not waited for: the storages that it moves, and those that it fills."""

    number: int
    work: Any
    moved: list[torch.Tensor]
    storages: frozenset[int]
    filled: frozenset[int]
    before: float | None = None
    access: str = ""
    op: str = ""
    frames: tuple[trace.Frame, ...] = ()
    issued: tuple[trace.Frame, ...] = ()


class Races(Observer):
    """Follows the works that the user's own asynchronous collectives return."""

    def __init__(self, recorder: Recorder, models: Models, collectives: Collectives) -> None:
        super().__init__(recorder, models)
        self._collectives = collectives
        self._flying: list[_Flight] = []

    def install(self) -> None:
        for name in ("wait", "synchronize", "get_future", "block_current_stream"):
            patching.after(dist.Work, name, self._waited)
        patching.after(dist.Work, "is_completed", lambda done, work, *_: self._waited(None, work) if done else None)
        patching.after(torch.cuda, "synchronize", lambda *_, **__: self._all_waited())

    def wants(self, op: Any) -> bool:
        return op.namespace not in ("_c10d_functional", "prim")

    def before(self, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if namespace(op) == "c10d":
            return (op, arguments(op, args, kwargs)) if not _coalescing() else None
        if self._flying:
            self._check(op, args, kwargs)
        return None

    def after(self, token: Any, result: Any) -> None:
        """A collective was issued: it is in flight if the user requested an asynchronous one."""
        work = work_of(result)
        number = next(reversed(self._collectives.works), None)
        if work is None or number is None or not self._collectives.latest_is_users_asynchronous:
            return
        op, given = token
        moved = tensors(list(given.values()))
        filled = _storages(_filled(op, given, moved))
        self._flying.append(_Flight(number, work, moved, _storages(moved), filled, issued=self.recorder.here()))

    def _check(self, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """What a collective only passes on may be read meanwhile, what it fills may not; neither may be written."""
        mutated, looked_at = _storages(written(op, args, kwargs)), _storages(read(op, args, kwargs))
        for flight in self._flying:
            if flight.access or not (flight.storages & mutated or flight.filled & looked_at):
                continue
            with self.recorder.quieted():
                flight.before = _first(flight.moved)
            flight.access = "write" if flight.storages & mutated else "read"
            flight.op = f"{op.namespace}.{op._opname}"
            flight.frames = self.recorder.here()
            self._emit(flight, waited=False)

    def _waited(self, _result: Any, work: Any, *_args: Any) -> None:
        if not self._flying or self.recorder.quiet:
            return
        landed = [flight for flight in self._flying if flight.work is work]
        self._flying = [flight for flight in self._flying if flight.work is not work]
        for flight in landed:
            if flight.access:
                with self.recorder.quieted():
                    after = _first(flight.moved)
                self._emit(flight, waited=True, after=after)

    def _all_waited(self) -> None:
        for flight in list(self._flying):
            self._waited(None, flight.work)

    def finish(self) -> None:
        """Works without a `wait()`."""
        for flight in self._flying:
            if not flight.access:
                flight.access, flight.frames = "never", flight.issued
                self._emit(flight, waited=False)

    def _emit(self, flight: _Flight, *, waited: bool, after: float | None = None) -> None:
        self.recorder.emit(
            trace.Race,
            frames=flight.frames,
            of=flight.number,
            access=flight.access,
            op=flight.op,
            before=flight.before,
            after=after,
            waited=waited,
        )


def _storages(of: list[torch.Tensor]) -> frozenset[int]:
    return frozenset(filter(None, map(pointer, of)))


def _filled(op: Any, given: dict[str, Any], moved: list[torch.Tensor]) -> list[torch.Tensor]:
    """The tensors that a collective writes to: its outputs, or all where it works in place."""
    if op._opname == "send":
        return []
    return [tensor for name in OUTPUT_NAMES for tensor in tensors(given.get(name))] or moved


def _coalescing() -> bool:
    """Several collectives are being put together: they get one work that covers all, which is not known yet."""
    world = getattr(dist.distributed_c10d, "_world", None)
    return any(getattr(world, "pg_coalesce_state", {}).values())


def _first(moved: list[torch.Tensor]) -> float | None:
    """The first element of the first tensor that has one."""
    for tensor in moved:
        if tensor.numel() and not tensor.is_complex():
            return float(tensor.reshape(-1)[0])
    return None
