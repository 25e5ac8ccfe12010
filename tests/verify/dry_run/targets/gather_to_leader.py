# dry: world=64 ranks=0,8,16,63 hang
"""Metrics are gathered by the leaders of the nodes, over the world, each to itself."""

import torch.distributed as dist

dist.init_process_group("nccl")
rank, world = dist.get_rank(), dist.get_world_size()
found = [None] * world if rank % 8 == 0 else None
if rank % 8 == 0:
    dist.gather_object({"rank": rank}, found, dst=rank)  # hang
dist.barrier()
dist.destroy_process_group()
