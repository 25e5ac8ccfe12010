"""The one TorchDispatchMode: shows every operator that runs to the observers that want it, and runs it.

Modes propagate to autograd's threads. DTensor and AsyncCollectiveTensor run their own dispatch first, so that the
operators on their local tensors (and the collectives that a DTensor issues by itself) come by as well.
"""

from __future__ import annotations

import copy
import functools
import re
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ddp_lint.verify.child import guard, widening
from ddp_lint.verify.child.observers.base import Observer
from ddp_lint.verify.child.recorder import Recorder

OWN_DISPATCH = {"DTensor", "AsyncCollectiveTensor"}
#: Operators that look at a tensor's shape and place only.
_METADATA = re.compile(r"sym_|set_$|resize_|_resize|detach|is_pinned|is_same_size|rename|(new_)?empty|record_stream")
_FACTORY = re.compile(r"new_|.*_like$")


class Dispatch(TorchDispatchMode):
    """Shows operators to observers. Compiled code runs below it as it would without it."""

    def __init__(self, recorder: Recorder, observers: Sequence[Observer]) -> None:
        super().__init__()
        self._recorder = recorder
        self._observers = [observer for observer in observers if type(observer).wants is not Observer.wants]
        self._of = functools.cache(self._interested)

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """torch.compile compiles although a mode is active (queried by torch 2.9 and later)."""
        return True

    def _interested(self, op: Any) -> tuple[Observer, ...]:
        return tuple(observer for observer in self._observers if observer.wants(op))

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        recorder = self._recorder
        recorder.ticks += 1
        if recorder.quiet:
            if func.namespace == "c10d":
                recorder.orphaned(func._opname.rstrip("_"))
            return func(*args, **kwargs)
        for cls in types:
            if cls.__name__ in OWN_DISPATCH:
                recorder.of_dtensor = func._opname
                return NotImplemented
            if cls.__name__ == "FakeTensor":
                return func(*args, **kwargs)
        tokens = []
        try:
            for observer in self._of(func):
                token = observer.before(func, args, kwargs)
                if token is not None:
                    tokens.append((observer, token))
        except Exception as error:
            guard.failed(error)
            raise
        result = widening.run(func, args, kwargs)
        try:
            for observer, token in tokens:
                observer.after(token, result)
        except Exception as error:
            guard.failed(error)
            raise
        return result


def tensors(value: Any) -> list[torch.Tensor]:
    """The tensors in an argument: itself, or those in its (nested) lists."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, list | tuple):
        return [tensor for item in value for tensor in tensors(item)]
    return []


def changed(value: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Nested tuples, lists and dicts with their tensors changed; other values copied."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, dict):
        return {key: changed(item, change) for key, item in value.items()}
    if isinstance(value, list | tuple) and not hasattr(value, "_fields"):
        return type(value)(changed(item, change) for item in value)
    return copy.copy(value)


def arguments(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments of an operator by the names of its schema."""
    names = [argument.name for argument in op._schema.arguments]
    return {**dict(zip(names, args, strict=False)), **kwargs}


def written(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[torch.Tensor]:
    """The tensors that the operator mutates, by its schema."""
    given = arguments(op, args, kwargs)
    found = []
    for argument in op._schema.arguments:
        if argument.alias_info is not None and argument.alias_info.is_write:
            found += tensors(given.get(argument.name))
    return found


def read(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[torch.Tensor]:
    """The tensors whose values the operator reads: not those of views that it makes, nor of a factory's model."""
    if of_metadata(op) or _FACTORY.match(op._opname):
        return []
    given = arguments(op, args, kwargs)
    plain = (argument.name for argument in op._schema.arguments if argument.alias_info is None)
    return [tensor for name in plain for tensor in tensors(given.get(name))]


@functools.cache
def of_metadata(op: Any) -> bool:
    """The operator touches no element of its tensors."""
    return bool(_METADATA.match(op._opname))


@functools.cache
def is_random(op: Any) -> bool:
    """The operator draws random numbers."""
    return torch.Tag.nondeterministic_seeded in op.tags


@functools.cache
def is_mutable(op: Any) -> bool:
    """The operator mutates an argument, by its schema."""
    return bool(op._schema.is_mutable)


@functools.cache
def namespace(op: Any) -> str:
    """aten, c10d, ... (the operator's own property parses its name each time)."""
    return str(op.namespace)
