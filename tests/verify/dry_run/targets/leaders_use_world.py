# dry: world=64 ranks=0,1,8,63 hang
"""The leaders of the nodes reduce over the world instead of their own group."""

import os

import torch
import torch.distributed as dist

dist.init_process_group("nccl")
local = int(os.environ["LOCAL_RANK"])
nodes = [list(range(n, n + 8)) for n in range(0, dist.get_world_size(), 8)]
group, _ = dist.new_subgroups_by_enumeration(nodes)
total = torch.ones(1)
dist.reduce(total, dst=nodes[dist.get_rank() // 8][0], group=group)
if local == 0:
    dist.all_reduce(total)  # hang
dist.broadcast(total, src=nodes[dist.get_rank() // 8][0], group=group)
dist.destroy_process_group()
