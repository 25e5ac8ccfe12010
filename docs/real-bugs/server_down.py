"""axolotl-ai-cloud/axolotl: rank 0 returns when the server answers with an error; the others wait in the barrier."""

import torch
import torch.distributed as dist


def sync_weights(status: int) -> None:
    if dist.get_rank() == 0:
        if status != 200:
            return
        print("weights sent")
    dist.barrier()


dist.init_process_group("gloo")
sync_weights(503)
dist.all_reduce(torch.ones(4))
dist.destroy_process_group()
