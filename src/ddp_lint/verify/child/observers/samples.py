"""Which samples each rank draws, epoch by epoch, from any sampler of a map-style dataset or from an iterable one."""

from __future__ import annotations

import collections
import hashlib
import heapq
import weakref
from typing import Any

import torch
from torch.utils.data import DistributedSampler, IterableDataset, Subset, dataloader

from ddp_lint.verify import trace
from ddp_lint.verify.child import patching
from ddp_lint.verify.child.dispatch import tensors
from ddp_lint.verify.child.observers.base import Observer
from ddp_lint.verify.child.observers.hashes import digest

_FIRST = 64
#: A multiplier that takes neighbouring numbers far apart.
_SCATTER = 2654435761
#: How deep samplers within samplers are looked for.
_DEEP = 3
#: Epochs that were left before their end and are recorded: a loop may begin one for each batch.
_LEFT = 32
#: Batches of an epoch whose contents are compared between the ranks.
_BATCHES = 8
#: Indices of a subset that are compared between the ranks.
_COMPARED = 1 << 16


class _Epoch:
    """The indices that one iteration over a loader has drawn."""

    def __init__(self, loader: Any, number: int, step: int) -> None:
        """`step`: how many steps the optimizers have made before it."""
        self.began_at = step
        sampler = _epoch_sampler(loader) or loader.sampler
        self.takes_epoch = hasattr(sampler, "set_epoch")
        #: Of a shuffling sampler within another one all that its order depends on: the outer one may shuffle as well.
        shuffles = sampler is not loader.sampler and isinstance(sampler, DistributedSampler) and sampler.shuffle
        self.order = (sampler.seed, sampler.epoch) if shuffles else ()
        self.iterable = isinstance(loader.dataset, IterableDataset)
        self.sampler = "IterableDataset" if self.iterable else type(sampler).__name__
        self.epoch = int(getattr(sampler, "epoch", number) or 0)
        dataset = loader.dataset
        self.dataset = len(dataset) if hasattr(dataset, "__len__") and not self.iterable else None
        self.replicas = sampler.num_replicas if isinstance(sampler, DistributedSampler) else 0
        self.divided = _part(dataset) if isinstance(sampler, DistributedSampler) else ""
        self.indices: list[int] = []
        self.contents: list[str] = []
        #: Digests of the samples that were handed out, in the order of the indices.
        self.rows: list[str] = []
        #: How many samples are in each batch that was drawn and is still to come.
        self._due: collections.deque[int] = collections.deque()
        self._distinguishable = True
        #: The sampler has no more.
        self.ended = False

    def drew(self, indices: list[int]) -> None:
        self.indices += indices
        self._due.append(len(indices))

    def handed_out(self, batch: Any) -> None:
        """Batches come in the order in which they were drawn; behind one that does not show its samples none counts."""
        size = self._due.popleft() if self._due else 0
        if self._distinguishable and len(self.rows) < _FIRST:
            rows = _rows(batch, size)
            self._distinguishable = bool(rows)
            self.rows += rows


class Samples(Observer):
    """A Samples event when an epoch ends (or at the end of the run)."""

    def prepare(self) -> None:
        self._epochs: weakref.WeakKeyDictionary[Any, _Epoch] = weakref.WeakKeyDictionary()
        self._begun = 0
        #: The iterators of epochs, to record those that the program has dropped before their end.
        self._open: list[tuple[weakref.ref[Any], _Epoch]] = []
        self._left = 0

    def install(self) -> None:
        patching.after(dataloader._BaseDataLoaderIter, "__init__", self._begin)
        patching.after(dataloader._BaseDataLoaderIter, "_reset", self._begin)
        patching.around(dataloader._BaseDataLoaderIter, "_next_index", self._next)
        patching.around(dataloader._BaseDataLoaderIter, "__next__", self._next_batch)

    def _begin(self, _result: Any, iterator: Any, loader: Any, *_args: Any, **_kwargs: Any) -> None:
        self._close(iterator)
        self._let_go()
        self._open.append((weakref.ref(iterator), self._epoch(iterator, loader)))

    def _epoch(self, iterator: Any, loader: Any) -> _Epoch:
        if iterator not in self._epochs:
            self._epochs[iterator] = _Epoch(loader, self._begun, self.recorder.step)
            self._begun += 1
        return self._epochs[iterator]

    def _next(self, original: Any, iterator: Any) -> Any:
        try:
            drawn = original(iterator)
        except StopIteration:
            if iterator in self._epochs:
                self._epochs[iterator].ended = True
            self._close(iterator)
            raise
        epoch = self._epochs.get(iterator)
        if epoch is not None:
            epoch.drew(_indices(drawn))
        return drawn

    def _next_batch(self, original: Any, iterator: Any) -> Any:
        """An iterable dataset has no indices: the contents of its batches represent them. For any other one, those of
        the first batches show whether equal indices are equal samples."""
        try:
            batch = original(iterator)
        except StopIteration:
            self._close(iterator)
            raise
        epoch = self._epochs.get(iterator)
        if epoch is not None and self.recorder.active:
            with self.recorder.quieted():
                if epoch.iterable or len(epoch.contents) < _BATCHES:
                    epoch.contents.append(_content(batch))
                epoch.handed_out(batch)
        return batch

    def _close(self, iterator: Any) -> None:
        epoch = self._epochs.pop(iterator, None)
        if epoch is not None:
            self._open = [(of, other) for of, other in self._open if other is not epoch]
            self._emit(epoch)

    def _let_go(self) -> None:
        """Tell of the epochs that were left by a `break`."""
        gone = [epoch for iterator, epoch in self._open if iterator() is None]
        self._open = [(iterator, epoch) for iterator, epoch in self._open if iterator() is not None]
        for epoch in gone[: _LEFT - self._left]:
            self._left += 1
            self._emit(epoch)

    def finish(self) -> None:
        self._let_go()
        for _, epoch in self._open:
            self._emit(epoch)

    def _emit(self, epoch: _Epoch) -> None:
        drawn: list[Any] = list(epoch.contents if epoch.iterable else epoch.indices)
        if not drawn:
            return
        self.recorder.emit(
            trace.Samples,
            sampler=epoch.sampler,
            epoch=epoch.epoch,
            count=len(drawn),
            digest=_digest(list(epoch.order) or drawn),
            members=_digest(sorted(drawn)),
            first=tuple(epoch.indices[:_FIRST]),
            sample=_sample(epoch.indices) if epoch.ended else (),
            dataset=epoch.dataset,
            batches=tuple(epoch.contents[:_BATCHES]),
            rows=tuple(epoch.rows[:_FIRST]),
            steps=self.recorder.step - epoch.began_at,
            takes_epoch=epoch.takes_epoch,
            divided=epoch.divided,
            replicas=epoch.replicas,
        )


def _epoch_sampler(loader: Any) -> Any:
    """The sampler that has a `set_epoch`, also within a batch sampler; None without."""
    found = [loader.sampler, getattr(loader, "batch_sampler", None)]
    for _ in range(_DEEP):
        found.append(getattr(found[-1], "sampler", None))
    return next((sampler for sampler in found if hasattr(sampler, "set_epoch")), None)


def _part(dataset: Any) -> str:
    """Which part of some data this dataset is, "" where it is no part."""
    found = []
    while isinstance(dataset, Subset):
        found.append((len(dataset.indices), list(dataset.indices[:_COMPARED])))
        dataset = dataset.dataset
    return _digest(found) if found else ""


def _indices(drawn: Any) -> list[int]:
    """The sample numbers in what a (batch) sampler gave; anything else than numbers does not count."""
    items = drawn if isinstance(drawn, list | tuple) else [drawn]
    return [item for item in items if isinstance(item, int)]


def _sample(indices: list[int]) -> tuple[int, ...]:
    """The same choice on all ranks, whatever else they have drawn; none where some were drawn twice."""
    drawn = set(indices)
    scattered = heapq.nsmallest(_FIRST, ((n * _SCATTER % (1 << 32), n) for n in drawn))
    return tuple(n for _, n in scattered) if len(drawn) == len(indices) else ()


def _content(batch: Any) -> str:
    return _digest([digest(tensor) for tensor in _tensors(batch)] or [repr(batch)[:1000]])


def _rows(batch: Any, size: int) -> list[str]:
    """A digest for each sample of a batch, a word for each part; none where no part has a row for each sample."""
    parts = list(batch.values()) if isinstance(batch, dict) else batch if isinstance(batch, list | tuple) else [batch]
    fitting = [part for part in parts if size and _length(part) == size]
    return [" ".join(_row(part[number]) for part in fitting) for number in range(size)] if fitting else []


def _length(part: Any) -> int:
    if isinstance(part, torch.Tensor):
        return len(part) if part.ndim else 0
    return len(part) if isinstance(part, list | tuple) else 0


def _row(value: Any) -> str:
    return digest(value) if isinstance(value, torch.Tensor) else _digest([repr(value)[:1000]])


def _tensors(batch: Any) -> list[torch.Tensor]:
    return tensors(list(batch.values()) if isinstance(batch, dict) else batch)


def _digest(indices: list[Any]) -> str:
    return hashlib.blake2b(repr(indices).encode(), digest_size=8).hexdigest()
