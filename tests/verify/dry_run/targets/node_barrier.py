# dry: world=16 ranks=0,1,8,15 hang
"""The barrier of the first node only, meant for all: 8 ranks are one node."""

import torch.distributed as dist

dist.init_process_group("nccl")
rank = dist.get_rank()
if rank // 8 == 0:
    dist.barrier()  # hang
dist.all_gather_object([None] * dist.get_world_size(), rank)
dist.destroy_process_group()
