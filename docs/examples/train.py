import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


def save(model, path):
    if dist.get_rank() == 0:
        torch.save(model.state_dict(), path)
        dist.barrier()


def train(path):
    dist.init_process_group("gloo")
    net = torch.nn.Linear(4, 4)
    model = DDP(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for step in range(100):
        loss = model.module(torch.randn(8, 4)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    if os.path.exists(path):
        state = torch.load(path)
        model.load_state_dict(state)
    save(model, path)


if __name__ == "__main__":
    train("model.pt")
