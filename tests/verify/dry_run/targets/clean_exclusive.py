# dry: world=16 ranks=0,1,8,15 clean
"""One rank of each machine downloads while its neighbours wait."""

import os

import torch.distributed as dist

dist.init_process_group("nccl")
local = int(os.environ["LOCAL_RANK"])
if local != 0:
    dist.barrier()
print("loads")
if local == 0:
    dist.barrier()
dist.destroy_process_group()
