# dry: world=8 ranks=0,1,4,7 clean
"""Ranks branch on their averaged loss and on gathered lengths, which are the same everywhere."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
loss = torch.tensor([float(rank)])
dist.all_reduce(loss)
if loss.item() / world > 2:
    dist.barrier()
lengths = [torch.zeros(1, dtype=torch.long) for _ in range(world)]
dist.all_gather(lengths, torch.tensor([3 + rank]))
padded = torch.zeros(max(int(n) for n in lengths))
gathered = [torch.zeros_like(padded) for _ in range(world)]
dist.all_gather(gathered, padded)
dist.destroy_process_group()
