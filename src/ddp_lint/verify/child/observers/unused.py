"""What `find_unused_parameters` looks for: parameters that get no gradient on this rank in some backward."""

from __future__ import annotations

import dataclasses
import weakref
from typing import Any

import torch.distributed as dist
from torch import nn

from ddp_lint.verify import trace
from ddp_lint.verify.child import patching
from ddp_lint.verify.child.models import Model, clean
from ddp_lint.verify.child.observers.base import Observer
from ddp_lint.verify.child.recorder import Recorder


@dataclasses.dataclass
class _Search:
    """One DDP wrapper that searches. `reached`: what got a gradient since its latest forward, or since the averaging
    was prepared; `averages`: it was prepared: the backward has to reach everything (not under `no_sync`)."""

    root: weakref.ref[nn.Module]
    number: int
    names: tuple[str, ...]
    frames: tuple[trace.Frame, ...]
    reached: set[str] = dataclasses.field(default_factory=set)
    averages: bool = False
    backwards: int = 0
    unused: dict[str, None] = dataclasses.field(default_factory=dict)

    def close(self) -> None:
        """The backward of the latest forward is over; there was none where nothing was reached."""
        if self.averages and self.reached:
            self.backwards += 1
            self.unused.update(dict.fromkeys(name for name in self.names if name not in self.reached))
        self.reached.clear()

    def emit(self, recorder: Recorder) -> None:
        recorder.emit(
            trace.Searched,
            frames=self.frames,
            model=self.number,
            backwards=self.backwards,
            unused=tuple(self.unused),
        )


class Unused(Observer):
    """DDP fills in the mean for a parameter that another rank uses: `.grad` never shows what this rank reached.
    A hook that runs where autograd accumulates does. The reducer is prepared once for each backward that has to reach
    everything: by DDP after its forward, and by Lightning before each backward of a manual optimization."""

    def prepare(self) -> None:
        self._searches: list[_Search] = []

    def install(self) -> None:
        if dist.is_available():
            patching.before(dist.Reducer, "prepare_for_backward", self._prepared)

    def wrapped(self, model: Model) -> None:
        root: Any = model.root
        if model.wrap != "ddp" or not root.find_unused_parameters:
            return
        trained = {clean(n): p for n, p in root.module.named_parameters() if p.requires_grad}
        ignored = {clean(name) for name in root.parameters_to_ignore}
        search = _Search(
            weakref.ref(root), model.number, tuple(n for n in trained if n not in ignored), self.recorder.here()
        )
        for name in search.names:
            trained[name].register_post_accumulate_grad_hook(lambda _, name=name: search.reached.add(name))
        self._searches.append(search)

    def before_forward(self, root: Any) -> None:
        for search in [search for search in self._searches if search.root() is root]:
            search.close()
            search.averages = False

    def _prepared(self, reducer: Any, *_: Any, **__: Any) -> None:
        for search in self._searches:
            if getattr(search.root(), "reducer", None) is reducer:
                search.close()
                search.averages = True

    def finish(self) -> None:
        for search in self._searches:
            search.close()
            search.emit(self.recorder)
