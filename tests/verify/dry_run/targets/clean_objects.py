# dry: world=64 ranks=0,1,8,63 clean
"""Settings from rank 0, results to rank 0, a plan for each rank."""

import torch.distributed as dist

dist.init_process_group("nccl")
rank, world = dist.get_rank(), dist.get_world_size()
settings = [{"epochs": 2}] if rank == 0 else [None]
dist.broadcast_object_list(settings, src=0)
plan = [None]
dist.scatter_object_list(plan, list(range(world)) if rank == 0 else None, src=0)
for epoch in range(settings[0]["epochs"]):
    found = [None] * world
    dist.all_gather_object(found, {"rank": rank, "epoch": epoch})
    if all(one is not None for one in found):
        dist.barrier()
results = [None] * world if rank == 0 else None
dist.gather_object(plan[0], results, dst=0)
dist.destroy_process_group()
