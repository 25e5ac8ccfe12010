"""Stimuli of a skewed pass: what a guard on a rank's own data needs in order to make the ranks diverge."""

from __future__ import annotations

import random
from typing import Any

import torch
from torch import nn

from ddp_lint.verify.child import patching
from ddp_lint.verify.child.dispatch import changed
from ddp_lint.verify.child.models import Model
from ddp_lint.verify.child.observers.base import Observer
from ddp_lint.verify.spec import STIMULI

#: Between the seeds of two ranks.
SEED_STRIDE = 7919
#: How many times as large "large" inputs are.
LARGE = 100.0


class Skew(Observer):
    """Applies the stimuli of the run that concern a script's own training; those of a model are in the loop."""

    def prepare(self) -> None:
        self._poisoned = False

    def install(self) -> None:
        if self.recorder.spec.kind != "script":
            return
        stimuli = self.recorder.spec.stimuli
        if "seeds" in stimuli:
            self._seeds()
        loader = torch.utils.data.DataLoader
        if "short" in stimuli and self._is_last:  # one batch fewer in every pass
            patching.around(loader, "__iter__", lambda original, batches: _without_last(original(batches)))
        if "large" in stimuli:
            patching.around(loader, "__iter__", lambda original, batches: map(enlarge, original(batches)))

    @property
    def _is_last(self) -> bool:
        return self.recorder.rank == self.recorder.world - 1

    def _seeds(self) -> None:
        """Every seed that user code sets is another one on each rank."""
        offset = self.recorder.rank * SEED_STRIDE

        def seed(original: Any, seed: Any = 0, *args: Any, **kwargs: Any) -> Any:
            return original(int(seed or 0) + offset, *args, **kwargs)

        patching.around(torch, "manual_seed", seed)
        patching.around(random, "seed", seed)
        try:
            import numpy as np
        except ImportError:
            return
        patching.around(np.random, "seed", seed)

    def wrapped(self, model: Model) -> None:
        """NaN comes out of the model in the second step."""
        if self.recorder.spec.kind == "script" and "nan" in self.recorder.spec.stimuli and self._is_last:
            root = model.root
            if root is not None:
                root.register_forward_hook(self._nan)

    def _nan(self, module: nn.Module, _args: Any, output: Any) -> Any:
        if self._poisoned or self.recorder.step != 1 or not module.training or not isinstance(output, torch.Tensor):
            return output
        self._poisoned = True
        return output * float("nan")

    def words(self) -> tuple[str, ...]:
        """The stimuli that this pass applies, for the evidence."""
        if self.recorder.spec.kind == "script":
            return tuple(STIMULI[name] for name in self.recorder.spec.stimuli)
        words = {**STIMULI, "seeds": "each rank has another random seed, the inputs of odd ranks are negated"}
        words["nan"] = "the last rank's inputs are NaN in the second step"
        return tuple(words[name] for name in self.recorder.spec.stimuli if name != "short")


def enlarge(value: Any) -> Any:
    """Floating-point tensors in a batch, 100 times as large."""
    return changed(value, lambda tensor: tensor * LARGE if tensor.is_floating_point() else tensor)


def _without_last(batches: Any) -> Any:
    """All items of an iterator but the last."""
    held: list[Any] = []
    for batch in batches:
        if held:
            yield held.pop()
        held.append(batch)
