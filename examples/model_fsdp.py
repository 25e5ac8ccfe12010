"""A model that trains on one GPU, and is wrong or slow once FSDP and torch.compile get hold of it."""

import torch
from torch import nn
from torch.distributed.fsdp import fully_shard


class Encoder(nn.Module):
    def __init__(self, vocabulary=100, width=16):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width, max_norm=1.0)
        self.project = nn.Linear(width, width)
        self.mirror = nn.Parameter(self.project.weight.t())
        self.scale = nn.Parameter(torch.ones(width))

    def forward(self, tokens):
        x = self.project(self.embed(tokens))
        self.scale.data.mul_(0.99)
        if x.abs().max() > 100:
            x = x / 100
        return torch.sigmoid(x) * self.scale


def build():
    model = Encoder()
    optimizer = torch.optim.AdamW(model.parameters())
    fully_shard(model)
    return torch.compile(model), optimizer


def step(model, optimizer, tokens):
    loss = model(tokens).mean()
    loss.backward()
    for p in model.parameters():
        if torch.isnan(p.grad).any().item():
            return None
    optimizer.step()
    return loss.item()
