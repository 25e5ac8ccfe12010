"""kohya-ss/sd-scripts: an attribute of the model is asked of its wrapper, which has none."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class TextEncoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.text_model = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.text_model(x)


dist.init_process_group("gloo")
text_encoder = DistributedDataParallel(TextEncoder())
text_encoder(torch.randn(2, 4)).sum().backward()
print(text_encoder.text_model.weight.dtype)
dist.destroy_process_group()
