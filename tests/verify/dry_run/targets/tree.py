# dry: world=64 ranks=0,1,2,3 hang
"""A reduction over a tree: in its second round the receivers of the first send to nobody."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
value, other = torch.ones(1), torch.zeros(1)
step = 1
while step < world:
    if rank % (2 * step) == 0:
        dist.recv(other, rank + step)  # hang
        value += other
    elif step == 1:
        dist.send(value, rank - step)
    step *= 2
dist.barrier()
dist.destroy_process_group()
