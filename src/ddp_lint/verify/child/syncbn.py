"""What SyncBatchNorm does, for the CPU: torch's own refuses every other device than a GPU."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.nn.functional import all_reduce
from torch.nn.modules.batchnorm import _BatchNorm


class SyncBatchNorm(_BatchNorm):
    """Normalises by the mean and variance over the batches of all ranks of a group (None: of the job), as torch's does:
    one collective in forward and one in backward while it trains, none in evaluation."""

    def __init__(self, *args: Any, process_group: Any = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.process_group = process_group

    def _check_input_dim(self, input: torch.Tensor) -> None:
        if input.dim() < 2:
            raise ValueError(f"expected at least 2D input (got {input.dim()}D input)")

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """[N, C, ...] to the same shape."""
        if not self.training or not dist.is_initialized():
            return super().forward(input)
        self._check_input_dim(input)
        dims = [0, *range(2, input.dim())]
        count = torch.full((1,), input.numel() / input.size(1), dtype=input.dtype)
        sums = torch.cat([input.sum(dims), input.square().sum(dims), count])
        total = all_reduce(sums, group=self.process_group or dist.group.WORLD)
        mean, square = (total[:-1] / total[-1]).chunk(2)
        variance = square - mean.square()
        self._track(mean.detach(), variance.detach(), float(total[-1]))
        shape = [1, -1, *[1] * (input.dim() - 2)]
        output = (input - mean.view(shape)) * torch.rsqrt(variance + self.eps).view(shape)
        return output * self.weight.view(shape) + self.bias.view(shape) if self.affine else output

    def _track(self, mean: torch.Tensor, variance: torch.Tensor, count: float) -> None:
        if self.running_mean is None or self.running_var is None or self.num_batches_tracked is None:
            return
        self.num_batches_tracked.add_(1)
        momentum = 1 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), momentum)
        self.running_var.lerp_((variance * count / max(count - 1, 1)).to(self.running_var.dtype), momentum)


def converted(module: nn.Module, process_group: Any = None) -> nn.Module:
    """A module with each of its batch norms replaced, as `convert_sync_batchnorm` does it."""
    result = module
    if isinstance(module, _BatchNorm) and not isinstance(module, SyncBatchNorm):
        result = SyncBatchNorm(
            module.num_features, module.eps, module.momentum, module.affine, module.track_running_stats,
            process_group=process_group,
        )  # fmt: skip
        for name in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked", "training"):
            setattr(result, name, getattr(module, name))
    for name, child in module.named_children():
        result.add_module(name, converted(child, process_group))
    return result
