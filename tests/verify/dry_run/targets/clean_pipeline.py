# dry: world=4 ranks=all clean
"""Forward and backward through four stages."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
for _ in range(3):
    x = torch.ones(4)
    if rank > 0:
        dist.recv(x, rank - 1)
    x = x * 2
    if rank < world - 1:
        dist.send(x, rank + 1)
        dist.recv(x, rank + 1)
    if rank > 0:
        dist.send(x, rank - 1)
dist.destroy_process_group()
