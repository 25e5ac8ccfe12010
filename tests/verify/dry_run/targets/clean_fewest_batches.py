# dry: world=8 ranks=0,1,4,7 clean
"""Uneven shards, cut to the fewest batches that any rank has."""

import torch
import torch.distributed as dist

dist.init_process_group("nccl")
rank, world = dist.get_rank(), dist.get_world_size()
samples = list(range(100))[rank::world]
fewest = torch.tensor([len(samples)])
dist.all_reduce(fewest, op=dist.ReduceOp.MIN)
for sample in samples[: fewest.item()]:
    total = torch.tensor([float(sample)])
    dist.all_reduce(total)
dist.barrier()
dist.destroy_process_group()
