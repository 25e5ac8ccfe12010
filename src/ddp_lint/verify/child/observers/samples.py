"""Which samples each rank draws, epoch by epoch, from any sampler of a map-style dataset."""

from __future__ import annotations

import hashlib
import weakref
from typing import Any

from torch.utils.data import dataloader

from ddp_lint.verify import trace
from ddp_lint.verify.child import patching
from ddp_lint.verify.child.models import Models
from ddp_lint.verify.child.observers.base import Observer
from ddp_lint.verify.child.recorder import Recorder

_FIRST = 64


class _Epoch:
    """The indices that one iteration over a loader has drawn."""

    def __init__(self, loader: Any, number: int) -> None:
        self.sampler = type(loader.sampler).__name__
        self.epoch = int(getattr(loader.sampler, "epoch", number) or 0)
        self.has_epoch = hasattr(loader.sampler, "epoch")
        dataset = loader.dataset
        self.dataset = len(dataset) if hasattr(dataset, "__len__") else None
        self.indices: list[int] = []


class Samples(Observer):
    """A Samples event when an epoch ends (or at the end of the run)."""

    def __init__(self, recorder: Recorder, models: Models) -> None:
        super().__init__(recorder, models)
        self._epochs: weakref.WeakKeyDictionary[Any, _Epoch] = weakref.WeakKeyDictionary()
        self._begun = 0

    def install(self) -> None:
        patching.after(dataloader._BaseDataLoaderIter, "_reset", self._begin)
        patching.replace(dataloader._BaseDataLoaderIter, "_next_index", self._next)

    def _begin(self, _result: Any, iterator: Any, loader: Any, *_args: Any, **_kwargs: Any) -> None:
        self._close(iterator)
        self._epoch(iterator, loader)

    def _epoch(self, iterator: Any, loader: Any) -> _Epoch:
        if iterator not in self._epochs:
            self._epochs[iterator] = _Epoch(loader, self._begun)
            self._begun += 1
        return self._epochs[iterator]

    def _next(self, original: Any) -> Any:
        def replacement(iterator: Any) -> Any:
            try:
                drawn = original(iterator)
            except StopIteration:
                self._close(iterator)
                raise
            epoch = self._epochs.get(iterator)
            if epoch is not None:
                epoch.indices += _indices(drawn)
            return drawn

        return replacement

    def _close(self, iterator: Any) -> None:
        epoch = self._epochs.pop(iterator, None)
        if epoch is not None:
            self._emit(epoch)

    def finish(self) -> None:
        for epoch in list(self._epochs.values()):
            self._emit(epoch)

    def _emit(self, epoch: _Epoch) -> None:
        if not epoch.indices or self.recorder.quiet > 1:
            return
        self.recorder.emit(
            trace.Samples,
            sampler=epoch.sampler,
            epoch=epoch.epoch,
            count=len(epoch.indices),
            digest=_digest(epoch.indices),
            members=_digest(sorted(epoch.indices)),
            first=tuple(epoch.indices[:_FIRST]),
            dataset=epoch.dataset,
            set_epoch=epoch.has_epoch,
        )


def _indices(drawn: Any) -> list[int]:
    """The sample numbers in what a (batch) sampler gave; anything else than numbers does not count."""
    items = drawn if isinstance(drawn, list | tuple) else [drawn]
    return [item for item in items if isinstance(item, int)]


def _digest(indices: list[int]) -> str:
    return hashlib.blake2b(repr(indices).encode(), digest_size=8).hexdigest()
