# dry: world=64 ranks=0,1,62,63 hang
"""The last rank's shard is empty and it skips the step: 63 chunks of 16."""

import torch
import torch.distributed as dist

dist.init_process_group("nccl")
rank, world = dist.get_rank(), dist.get_world_size()
chunks = torch.arange(1000.0).split(16)
for start in range(0, len(chunks), world):
    if start + rank >= len(chunks):
        continue
    total = chunks[start + rank].sum()
    dist.all_reduce(total)  # hang
dist.barrier()
dist.destroy_process_group()
