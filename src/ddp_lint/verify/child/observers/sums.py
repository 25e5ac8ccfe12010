"""Tensors that hold a sum over the ranks: those that are summed over them again, and losses before backward."""

from __future__ import annotations

import collections
from typing import Any

import torch

from ddp_lint.verify import trace
from ddp_lint.verify.child.dispatch import arguments, namespace, read, tensors, written
from ddp_lint.verify.child.models import pointer
from ddp_lint.verify.child.observers.base import Observer
from ddp_lint.verify.child.observers.collectives import reduce_op_of

#: Tensors that are followed: the latest ones, of few elements, as these are kept alive.
_FOLLOWED, _ELEMENTS = 32, 4096
#: What a tensor stays a larger sum by: each other write gives it another meaning.
_ADDING = ("add", "add_")
#: Under this key autograd's node of a loss that was summed over the ranks keeps where.
SUMMED = "ddp-lint: summed"


class Sums(Observer):
    """Follows what the user's own all_reduce has summed, through additions, up to the next all_reduce of it."""

    def prepare(self) -> None:
        self._summed: collections.OrderedDict[int, torch.Tensor] = collections.OrderedDict()

    def wants(self, op: Any) -> bool:
        return namespace(op) == "aten" or op._opname in ("allreduce_", "all_reduce_")

    def before(self, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if namespace(op) == "aten":
            return (op, args, kwargs) if self._summed else None
        given = arguments(op, args, kwargs)
        if reduce_op_of(given, {}) != "SUM" or self.recorder.phase == "backward":
            return None
        moved = [tensor for value in given.values() for tensor in tensors(value)]
        if any(pointer(tensor) in self._summed for tensor in moved):
            self.recorder.emit(trace.Resummed)
        for tensor in moved:
            if tensor.grad_fn is not None and tensor.numel() == 1:
                tensor.grad_fn.metadata[SUMMED] = self.recorder.here()
        return op, moved, None

    def after(self, token: Any, result: Any) -> None:
        op, args, kwargs = token
        if kwargs is None:
            for tensor in args:
                self._follow(tensor)
            return
        if op._opname in _ADDING:
            if any(pointer(tensor) in self._summed for tensor in read(op, args, kwargs)):
                for tensor in tensors(result):
                    self._follow(tensor)
            return
        for tensor in written(op, args, kwargs):
            self._summed.pop(pointer(tensor), None)

    def _follow(self, tensor: torch.Tensor) -> None:
        if tensor.numel() <= _ELEMENTS and pointer(tensor):
            self._summed[pointer(tensor)] = tensor.detach()
            while len(self._summed) > _FOLLOWED:
                self._summed.popitem(last=False)
