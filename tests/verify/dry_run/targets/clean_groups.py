# dry: world=64 ranks=0,1,8,63 clean
"""Node groups and a group of leaders, made by all ranks, used by their members."""

import torch
import torch.distributed as dist

dist.init_process_group("nccl")
rank, world = dist.get_rank(), dist.get_world_size()
nodes = [dist.new_group(list(range(n, n + 8))) for n in range(0, world, 8)]
leaders = dist.new_group(list(range(0, world, 8)))
total = torch.ones(1)
first = rank // 8 * 8
dist.reduce(total, dst=first, group=nodes[rank // 8])
if rank % 8 == 0:
    dist.all_reduce(total, group=leaders)
dist.broadcast(total, src=first, group=nodes[rank // 8])
dist.destroy_process_group()
