"""Products of half-precision tensors on the CPU."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

torch = pytest.importorskip("torch")

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from ddp_lint.verify.child.dispatch import Dispatch  # noqa: E402
from ddp_lint.verify.child.recorder import Recorder  # noqa: E402


class Kernels(TorchDispatchMode):  # type: ignore[misc, unused-ignore]
    """What runs in the end."""

    def __init__(self) -> None:
        super().__init__()
        self.of: set[tuple[str, Any]] = set()

    def __torch_dispatch__(self, op: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if op._opname in ("convolution", "convolution_backward"):
            self.of.add((op._opname, args[0].dtype))
        return op(*args, **(kwargs or {}))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_products_of_halves_are_those_of_the_cpu_by_way_of_float32(dtype: Any) -> None:
    """Forward and backward, and of the same dtype."""
    torch.manual_seed(0)
    layer, x = torch.nn.Conv2d(2, 3, 3).to(dtype), torch.randn(2, 2, 5, 5, dtype=dtype)
    plain = layer(x)
    plain.sum().backward()
    gradients = [p.grad.clone() for p in layer.parameters()]
    layer.zero_grad()
    with Kernels() as kernels, Dispatch(cast(Recorder, SimpleNamespace(ticks=0, quiet=False)), []):
        found = layer(x)
        found.sum().backward()
    assert found.dtype is dtype and torch.allclose(found, plain, rtol=0.02, atol=1e-3)
    assert all(torch.allclose(p.grad, g, rtol=0.02) for p, g in zip(layer.parameters(), gradients, strict=True))
    assert kernels.of == {("convolution", torch.float32), ("convolution_backward", torch.float32)}
