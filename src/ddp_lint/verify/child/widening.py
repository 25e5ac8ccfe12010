"""Products of half-precision tensors on the CPU, in float32: many CPUs take twenty times as long for the others."""

from __future__ import annotations

from typing import Any

import torch

_aten = torch.ops.aten
#: The operators that cost, forward and backward.
_PRODUCTS = frozenset(
    {_aten.mm.default, _aten.addmm.default, _aten.bmm.default, _aten.baddbmm.default, _aten.convolution.default,
     _aten.convolution_backward.default}
)  # fmt: skip
_HALVES = (torch.bfloat16, torch.float16)


def run(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The result of an operator, of the dtype that it has without us: a CPU adds up in float32 and rounds then, too."""
    half = next((one.dtype for one in args if _slow(one)), None) if op in _PRODUCTS else None
    if half is None:
        return op(*args, **kwargs)
    result = op(*(one.float() if _slow(one) else one for one in args), **kwargs)
    if isinstance(result, tuple):
        return tuple(one.to(half) if isinstance(one, torch.Tensor) else one for one in result)
    return result.to(half)


def _slow(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype in _HALVES and value.device.type == "cpu"
