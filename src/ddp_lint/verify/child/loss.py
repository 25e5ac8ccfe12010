"""One number to train on, from the output of any model."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import torch

#: How deep tensors are looked for in the attributes of what a model returns, such as a distribution.
_DEPTH = 3


def loss_of(output: Any) -> torch.Tensor:
    """The output's own `loss` where it has one (transformers), else the sum over everything in it that trains: scalars
    as they are, the mean square of the rest. An auxiliary loss alone would leave the model's body without a gradient.

    Raises ValueError when nothing in the output depends on a parameter.
    """
    own = _own(output)
    if own is not None:
        return own.mean()
    trained = [tensor for tensor in _tensors(output) if tensor.requires_grad]
    if not trained:
        raise ValueError("nothing in the output depends on a trainable parameter")
    terms = [_term(tensor) for tensor in trained]
    return terms[0] if len(terms) == 1 else torch.stack([term.float() for term in terms]).sum()


def described(output: Any) -> str:
    """What `loss_of` trains on, in words."""
    if _own(output) is not None:
        return "the output's `loss`"
    trained = [tensor for tensor in _tensors(output) if tensor.requires_grad]
    scalars = sum(tensor.dim() == 0 for tensor in trained)
    words = [] if not scalars else ["the output"] if len(trained) == 1 else [f"{scalars} scalar{'s' * (scalars > 1)}"]
    if scalars < len(trained):
        several = len(trained) - scalars
        words.append("the mean square of the output" if several == 1 else f"the mean squares of {several} outputs")
    return " + ".join(words)


def _own(output: Any) -> torch.Tensor | None:
    own = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
    return own if isinstance(own, torch.Tensor) and own.requires_grad else None


def _term(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.dim() == 0 and not tensor.is_complex():
        return tensor
    values = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    return values.float().pow(2).mean() if values.dtype != torch.float64 else values.pow(2).mean().float()


def _tensors(value: Any, depth: int = _DEPTH) -> Iterator[torch.Tensor]:
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
    elif depth and hasattr(value, "__dict__") and not isinstance(value, type | torch.nn.Module):
        found = [tensor for item in vars(value).values() for tensor in _tensors(item, depth - 1)]
        yield from {id(tensor): tensor for tensor in found}.values()  # a distribution keeps what it was made of twice
