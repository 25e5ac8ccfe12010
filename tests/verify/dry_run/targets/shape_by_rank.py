# dry: world=64 ranks=0,1,62,63 hang
"""Each rank gathers its rows of a table that 64 does not divide: the last one has fewer."""

import torch
import torch.distributed as dist

dist.init_process_group("nccl")
rank, world = dist.get_rank(), dist.get_world_size()
table = torch.arange(1000)
per_rank = -(-len(table) // world)
rows = table[rank * per_rank : (rank + 1) * per_rank].float()
whole = [torch.empty_like(rows) for _ in range(world)]
dist.all_gather(whole, rows)  # hang
dist.destroy_process_group()
