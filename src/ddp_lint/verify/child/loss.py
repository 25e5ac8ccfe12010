"""One number to train on, from whatever a model returns."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import torch


def loss_of(output: Any) -> torch.Tensor:
    """The output's own loss where it has one (transformers' `.loss`, a scalar), else the mean square of what trains.

    Raises ValueError when nothing in the output depends on a parameter.
    """
    own = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
    if isinstance(own, torch.Tensor) and own.requires_grad:
        return own.mean()
    trained = [tensor for tensor in _tensors(output) if tensor.requires_grad]
    if not trained:
        raise ValueError("nothing in the output depends on a trainable parameter")
    scalars = [tensor for tensor in trained if tensor.dim() == 0]
    if scalars:
        return scalars[0]
    return torch.stack([_square(tensor) for tensor in trained]).sum()


def _square(tensor: torch.Tensor) -> torch.Tensor:
    values = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    return values.float().pow(2).mean() if values.dtype != torch.float64 else values.pow(2).mean().float()


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _tensors(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from _tensors(getattr(value, field.name))
