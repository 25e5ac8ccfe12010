# dry: world=4 ranks=all hang
"""A ring in which each rank but the first two sends before it receives: a circle of sends that nobody takes."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
mine, other = torch.ones(2), torch.zeros(2)
if world == 2 and rank == 1:
    dist.recv(other, 0)
    dist.send(mine, 0)
else:
    dist.send(mine, (rank + 1) % world)  # hang
    dist.recv(other, (rank - 1) % world)
dist.destroy_process_group()
