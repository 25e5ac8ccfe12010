# dry: world=8 ranks=0,3,4,7 hang
"""new_group is called by its members only. With two ranks all are members."""

import torch
import torch.distributed as dist

dist.init_process_group("nccl")
rank = dist.get_rank()
first = [r for r in range(dist.get_world_size()) if r < 4]
if rank in first:
    group = dist.new_group(first)  # hang
    dist.all_reduce(torch.ones(1), group=group)
dist.all_reduce(torch.ones(2))
dist.destroy_process_group()
