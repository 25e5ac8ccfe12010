# dry: world=4 ranks=all hang
"""A pipeline whose last stage is taken to be rank 1: right with two stages."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
x = torch.ones(4)
for _ in range(2):
    if rank > 0:
        dist.recv(x, rank - 1)  # hang
    x = x * 2
    if rank != 1:
        if rank < world - 1:
            dist.send(x, rank + 1)
dist.destroy_process_group()
