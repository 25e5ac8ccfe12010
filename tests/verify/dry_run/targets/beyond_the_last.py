# dry: world=12 ranks=0-11 hang
"""A tree that expects a power of two: on 12 ranks one of them waits for a rank that does not exist."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
total = torch.tensor([float(rank)])
step = 1
while step < world:
    if rank % (2 * step):
        dist.send(total, rank - step)
        break
    part = torch.empty_like(total)
    dist.recv(part, rank + step)  # hang
    total += part
    step *= 2
dist.broadcast(total, 0)
