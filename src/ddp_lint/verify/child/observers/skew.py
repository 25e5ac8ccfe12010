"""Stimuli of a skewed pass: what a guard on a rank's own data needs in order to make the ranks diverge."""

from __future__ import annotations

import random
from typing import Any

import torch
from torch import nn

from ddp_lint.verify.child import patching
from ddp_lint.verify.child.models import Model, Models
from ddp_lint.verify.child.observers.base import Observer
from ddp_lint.verify.child.recorder import Recorder
from ddp_lint.verify.spec import STIMULI

#: Between the seeds of two ranks.
SEED_STRIDE = 7919
#: How many times as large "large" inputs are.
LARGE = 100.0


class Skew(Observer):
    """Applies the stimuli of the run that concern a script's own training; those of a model are in the loop."""

    def __init__(self, recorder: Recorder, models: Models) -> None:
        super().__init__(recorder, models)
        self._poisoned = False

    def install(self) -> None:
        if self.recorder.spec.kind != "script":
            return
        stimuli = self.recorder.spec.stimuli
        if "seeds" in stimuli:
            self._seeds()
        if "short" in stimuli and self._is_last:
            patching.replace(torch.utils.data.DataLoader, "__iter__", self._short)
        if "large" in stimuli:
            patching.replace(torch.utils.data.DataLoader, "__iter__", self._large)

    @property
    def _is_last(self) -> bool:
        return self.recorder.rank == self.recorder.world - 1

    def _seeds(self) -> None:
        """Every seed that user code sets is another one on each rank."""
        offset = self.recorder.rank * SEED_STRIDE

        def make(original: Any) -> Any:
            return lambda seed=0, *args, **kwargs: original(int(seed or 0) + offset, *args, **kwargs)

        patching.replace(torch, "manual_seed", make)
        patching.replace(random, "seed", make)
        try:
            import numpy as np
        except ImportError:
            return
        patching.replace(np.random, "seed", make)

    def _short(self, original: Any) -> Any:
        """One batch fewer in every pass over a loader."""

        def replacement(loader: Any) -> Any:
            batches = original(loader)
            return _without_last(batches)

        return replacement

    def _large(self, original: Any) -> Any:
        def replacement(loader: Any) -> Any:
            return map(enlarge, original(loader))

        return replacement

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
    if isinstance(value, torch.Tensor):
        return value * LARGE if value.is_floating_point() else value
    if isinstance(value, dict):
        return {key: enlarge(item) for key, item in value.items()}
    if isinstance(value, list | tuple) and not hasattr(value, "_fields"):
        return type(value)(enlarge(item) for item in value)
    return value


def _without_last(batches: Any) -> Any:
    """All items of an iterator but the last."""
    held: list[Any] = []
    for batch in batches:
        if held:
            yield held.pop()
        held.append(batch)
