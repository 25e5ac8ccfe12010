# dry: world=8 ranks=0,1,4,7 hang
"""100 samples over 8 ranks: the first four have one more. Over 2 and 4 they come out even."""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("nccl")
rank, world = dist.get_rank(), dist.get_world_size()
torch.cuda.set_device(rank % 8)
model = DDP(torch.nn.Linear(4, 1).cuda(), device_ids=[rank % 8])
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
samples = list(range(100))[rank::world]
for sample in samples:
    loss = model(torch.full((1, 4), float(sample), device="cuda")).sum()
    optimizer.zero_grad()
    loss.backward()  # hang
    optimizer.step()
dist.barrier()
dist.destroy_process_group()
