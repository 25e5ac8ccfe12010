# dry: world=8 ranks=0,1,6,7 clean
"""Rank 0 asks what the others will do by messages that come from higher ranks: nobody knows them in a dry run."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
count = torch.zeros(1, dtype=torch.long)
if rank == 0:
    for other in range(1, world):
        dist.recv(count, other)
        for _ in range(count.item()):
            dist.recv(torch.zeros(1), other)
else:
    dist.send(torch.tensor([rank]), 0)
    for _ in range(rank):
        dist.send(torch.ones(1), 0)
dist.barrier()
dist.destroy_process_group()
