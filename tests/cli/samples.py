"""Code with a finding that does not depend on any rule's judgement, and code with a real hazard."""

from __future__ import annotations

#: DDP002 on line 1, with a safe fix.
UNUSED = "x = 1  # noqa: DDP999\n"
FIXED = "x = 1\n"
CLEAN = "x = 1\n"
#: DDP601 (forward-bypasses-wrapper), which is on by default.
HAZARD = """\
from torch.nn.parallel import DistributedDataParallel as DDP


def train(net, batches, optimizer):
    model = DDP(net)
    for x in batches:
        loss = model.module(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
"""
