# dry: world=64 ranks=0,1,2,32 clean
"""A reduction over a tree."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
value, other = torch.ones(1), torch.zeros(1)
step = 1
while step < world:
    if rank % (2 * step) == 0:
        dist.recv(other, rank + step)
        value += other
    elif rank % (2 * step) == step:
        dist.send(value, rank - step)
    step *= 2
dist.barrier()
dist.destroy_process_group()
