"""`knowledge/tensors.toml` against torch: an operation is listed if, and only if, backward needs what was written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ddp_lint.knowledge import table

torch = pytest.importorskip("torch")

#: Arguments of the methods that need some.
ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "pow": (2,), "clamp": (0.1,), "softmax": (-1,), "log_softmax": (-1,), "logsumexp": (-1,), "cumprod": (-1,),
    "amax": (-1,), "amin": (-1,), "gather": (1, torch.zeros(4, 1, dtype=torch.long)),
    "matmul": (torch.rand(4, 4, requires_grad=True),), "mm": (torch.rand(4, 4, requires_grad=True),),
    "bmm": (torch.rand(4, 4, 4, requires_grad=True),),
}  # fmt: skip
#: Constructors of the layers that need arguments, and the shape that they take.
LAYERS: dict[str, tuple[tuple[Any, ...], tuple[int, ...]]] = {
    "Linear": ((4, 4), (4, 4)), "Conv2d": ((4, 4, 3), (2, 4, 8, 8)), "ConvTranspose2d": ((4, 4, 2), (2, 4, 8, 8)),
    "LayerNorm": ((4,), (4, 4)), "GroupNorm": ((2, 4), (2, 4, 8, 8)), "BatchNorm1d": ((4,), (4, 4)),
    "BatchNorm2d": ((4,), (2, 4, 8, 8)), "InstanceNorm2d": ((4,), (2, 4, 8, 8)), "MaxPool2d": ((2,), (2, 4, 8, 8)),
    "AvgPool2d": ((2,), (2, 4, 8, 8)), "LSTM": ((8, 4), (2, 4, 8)), "GRU": ((8, 4), (2, 4, 8)), "PReLU": ((), (4, 4)),
    "GELU": ((), (4, 4)), "SiLU": ((), (4, 4)), "Softplus": ((), (4, 4)), "ReLU": ((), (4, 4)), "Tanh": ((), (4, 4)),
    "Sigmoid": ((), (4, 4)), "Softmax": ((-1,), (4, 4)), "LogSoftmax": ((-1,), (4, 4)), "Dropout": ((0.5,), (4, 4)),
    "Flatten": ((), (4, 4)), "Upsample": ((None, 2), (2, 4, 8, 8)), "PixelShuffle": ((2,), (2, 4, 8, 8)),
}  # fmt: skip
#: Methods that keep neither input nor output: residuals, masks and views rest on this.
KEEP_NOTHING = ("neg", "mean", "sum", "clone", "transpose", "view", "masked_fill", "cumsum", "flip", "repeat", "triu")
NEUTRAL = {"transpose": (0, 1), "view": (-1,), "masked_fill": (torch.eye(4).bool(), 0.0), "cumsum": (-1,),
           "flip": (0,), "repeat": (2, 1)}  # fmt: skip


def raises(operation: Callable[[Any], Any], shape: tuple[int, ...], overwritten: str) -> bool:
    """Whether backward raises once the operation's `input` or `output` is overwritten behind it."""
    leaf = (torch.rand(shape) + 0.1).requires_grad_(True)
    given = leaf * 1.0
    result = operation(given)
    result = result[0] if isinstance(result, tuple) else result
    with torch.no_grad():
        (given if overwritten == "input" else result).mul_(1.0001)
    try:
        result.sum().backward()
    except RuntimeError as error:
        assert "modified by an inplace operation" in str(error)
        return True
    return False


def shape_of(method: str) -> tuple[int, ...]:
    return (4, 4, 4) if method == "bmm" else (4, 4)


@pytest.mark.parametrize("section, overwritten", [("saves_input", "input"), ("saves_output", "output")])
def test_listed_methods_keep_what_is_said(section: str, overwritten: str) -> None:
    wrong = [
        name
        for name in table("tensors")[section]["methods"]
        if not raises(lambda x, n=name: getattr(x, n)(*ARGUMENTS.get(n, ())), shape_of(name), overwritten)
    ]
    assert not wrong


@pytest.mark.parametrize("section, overwritten", [("saves_input", "input"), ("saves_output", "output")])
def test_layers_keep_what_is_said_and_nothing_else(section: str, overwritten: str) -> None:
    listed = set(table("tensors")[section]["layers"])
    keep = {
        name
        for name, (arguments, shape) in LAYERS.items()
        if raises(getattr(torch.nn, name)(*arguments), shape, overwritten)
    }
    assert keep == listed & set(LAYERS)


def test_methods_that_residuals_and_masks_rest_on_keep_nothing() -> None:
    listed = {*table("tensors")["saves_input"]["methods"], *table("tensors")["saves_output"]["methods"]}
    for name in KEEP_NOTHING:
        assert name not in listed
        for overwritten in ("input", "output"):
            assert not raises(lambda x, n=name: getattr(x, n)(*NEUTRAL.get(n, ())), (4, 4), overwritten), name
