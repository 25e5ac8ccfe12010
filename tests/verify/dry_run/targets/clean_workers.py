# dry: world=16 ranks=0,1,8,15 clean
"""Rank 0 hands out work by messages until there is none; what it sends is not known before it ran."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
task, result = torch.zeros(1), torch.zeros(1)
if rank == 0:
    for number in range(1, 4):
        for worker in range(1, world):
            dist.send(torch.tensor([float(number)]), worker)
            dist.recv(result, worker)
    for worker in range(1, world):
        dist.send(torch.tensor([-1.0]), worker)
else:
    while True:
        dist.recv(task, 0)
        if task.item() < 0:
            break
        dist.send(task * 2, 0)
dist.barrier()
dist.destroy_process_group()
