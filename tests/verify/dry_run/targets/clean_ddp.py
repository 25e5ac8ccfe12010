# dry: world=64 ranks=0,1,8,63 clean
"""DDP with autocast and a scaler, DistributedSampler, rank 0 logs the averaged loss, all stop early together."""

import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("nccl")
rank, local = dist.get_rank(), int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local)
torch.manual_seed(rank)
data = TensorDataset(torch.randn(1000, 4), torch.randn(1000, 1))
loader = DataLoader(data, batch_size=4, sampler=DistributedSampler(data), drop_last=True)
model = DDP(torch.nn.Linear(4, 1).cuda(), device_ids=[local])
optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cuda")
best = float("inf")
for epoch in range(3):
    loader.sampler.set_epoch(epoch)
    for x, y in loader:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = (model(x.cuda(non_blocking=True)) - y.cuda()).square().mean()
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
    mean = loss.detach().clone()
    dist.all_reduce(mean, op=dist.ReduceOp.AVG)
    if rank == 0:
        print(epoch, mean.item())
    stop = torch.tensor([0], device="cuda")
    if rank == 0 and mean.item() > best:
        stop += 1
    best = min(best, mean.item())
    dist.broadcast(stop, 0)
    if stop.item():
        break
dist.barrier()
dist.destroy_process_group()
