"""A validation that hangs: each rank decides by its own loss whether to take part. validate.log is what it left."""

import datetime

import torch
import torch.distributed as dist


def validate(model, batch):
    loss = model(batch).pow(2).mean()
    if loss.item() > 5:
        dist.all_reduce(loss)
    return loss


def main():
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=6))
    model = torch.nn.Linear(4, 4)
    batch = torch.randn(2, 4) * (100 if dist.get_rank() == 1 else 1)
    for _ in range(3):
        validate(model, batch)
    print("validation done", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
