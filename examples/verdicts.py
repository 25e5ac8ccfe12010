"""Two findings that look alike. `ddp-lint verify examples/verdicts.py --wrap ddp` tells them apart."""

import torch


class Adaptive(torch.nn.Module):
    """Divides its weight by a statistic of the batch, and every rank has a batch of its own."""

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(8, 8)

    def forward(self, x):
        self.linear.weight.data.div_(1 + 0.01 * x.std())
        return self.linear(x)


class Bounded(torch.nn.Module):
    """Keeps its weight within bounds that are the same on every rank."""

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(8, 8)

    def forward(self, x):
        self.linear.weight.data.clamp_(-1.0, 1.0)
        return self.linear(x)
