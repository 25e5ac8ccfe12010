# dry: world=8 ranks=all hang
"""Tensor and data parallel groups, reduced in another order by every second rank."""

import torch
import torch.distributed as dist

dist.init_process_group("nccl")
rank, world = dist.get_rank(), dist.get_world_size()
tensor_groups = [dist.new_group(list(range(s, s + 2))) for s in range(0, world, 2)]
data_groups = [dist.new_group(list(range(s, world, 2))) for s in range(2)]
mine, others = tensor_groups[rank // 2], data_groups[rank % 2]
first, second = (mine, others) if (rank // 2 + rank) % 2 == 0 else (others, mine)
dist.all_reduce(torch.ones(1), group=first)  # hang
dist.all_reduce(torch.ones(1), group=second)
dist.destroy_process_group()
