"""A training script that does a bit of everything that observers watch."""

import os
import sys

os.environ["OMP_NUM_THREADS"] = "2"
import torch
import torch.distributed as dist

os.environ["TORCH_DISTRIBUTED_DEBUG"] = "DETAIL"  # line: late
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def main(checkpoint: str) -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
    torch.save(model.state_dict(), f"{checkpoint}{rank}")
    torch.load(f"{checkpoint}{rank}")  # line: load
    wrapped = DistributedDataParallel(model)
    data = TensorDataset(torch.randn(10, 4), torch.randint(0, 2, (10,)))
    loader = DataLoader(data, batch_size=3, sampler=DistributedSampler(data))
    optimizer = torch.optim.SGD(wrapped.parameters(), 0.1)
    pair = dist.new_group([0, 1])
    for _ in range(2):
        for x, y in loader:
            loss = torch.nn.functional.cross_entropy(wrapped.module(x), y)  # line: bypass
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(wrapped.parameters(), 1.0)
            optimizer.step()
        try:
            raise KeyError("swallowed")  # line: raise
        except KeyError:
            rank += 0
            rank += 0
    total = torch.full((3,), float(rank + 1))
    work = dist.all_reduce(total, async_op=True)
    print(total + 1)  # line: race
    work.wait()
    dist.reduce(total, dst=1, op=dist.ReduceOp.MAX, group=pair)  # line: reduce
    dist.broadcast_object_list([rank, 2], src=1)  # line: objects
    if rank == 1:  # line: rank guard
        total += 1


if __name__ == "__main__":
    main(sys.argv[1])
