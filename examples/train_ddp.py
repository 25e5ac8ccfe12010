"""A small DDP training script, with mistakes that cost somebody a night."""

import argparse
import os
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def save_checkpoint(model, path):
    if dist.get_rank() == 0:
        torch.save(model.module.state_dict(), path)
        dist.barrier()


def load_checkpoint(model, path):
    state = torch.load(path)
    model.module.load_state_dict(state)


def evaluate(model, loader):
    correct = torch.zeros(1)
    for x, y in loader:
        with torch.no_grad():
            correct += (model(x).argmax(-1) == y).sum()
    if correct.item() > 0:
        dist.all_reduce(correct)
    return correct


def train(args):
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    torch.manual_seed(0)
    dataset = TensorDataset(torch.randn(256, 8), torch.randint(0, 4, (256,)))
    loader = DataLoader(dataset, batch_size=8, sampler=DistributedSampler(dataset))
    net = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))
    model = DDP(net)
    if args.resume and os.path.exists(args.resume):
        load_checkpoint(model, args.resume)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _epoch in range(args.epochs):
        for x, y in loader:
            loss = torch.nn.functional.cross_entropy(net(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        save_checkpoint(model, "checkpoint.pt")
    print(evaluate(model, loader))
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--resume")
    try:
        train(parser.parse_args())
    except Exception as error:
        print("training failed:", error)
        sys.exit(0)
