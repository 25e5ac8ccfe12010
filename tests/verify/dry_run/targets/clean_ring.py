# dry: world=64 ranks=0,1,32,63 clean
"""A ring of asynchronous messages."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
mine, other = torch.full((2,), float(rank)), torch.zeros(2)
for _ in range(3):
    sent = dist.isend(mine, (rank + 1) % world)
    dist.recv(other, (rank - 1) % world)
    sent.wait()
    print(other.sum().item())
    dist.barrier()
dist.destroy_process_group()
