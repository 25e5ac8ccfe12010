# dry: world=16 ranks=0,1,8,15 hang
"""The evaluation of an FSDP model on the ranks of one node."""

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

dist.init_process_group("nccl")
rank = dist.get_rank()
mesh = init_device_mesh("cuda", (dist.get_world_size(),))
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 16)).cuda()
for layer in model:
    fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
model(torch.ones(2, 64, device="cuda")).sum().backward()
if rank < 8:
    with torch.no_grad():
        model(torch.ones(2, 64, device="cuda"))  # hang
dist.barrier()
dist.destroy_process_group()
