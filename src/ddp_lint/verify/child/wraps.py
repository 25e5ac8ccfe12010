"""The wrappers under which a model is trained."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn


def wrap(model: nn.Module, kind: str, device: torch.device) -> nn.Module:
    """The model under `kind`: ddp, fsdp2, fsdp1 or none. FSDP shards each child and the root, as users do."""
    if kind == "ddp":
        ids = [device.index] if device.type == "cuda" else None
        return nn.parallel.DistributedDataParallel(model, device_ids=ids)
    if kind == "fsdp2":
        return _fsdp2(model, device)
    if kind == "fsdp1":
        return _fsdp1(model, device)
    return model


def _fsdp2(model: nn.Module, device: torch.device) -> nn.Module:
    from torch.distributed.device_mesh import init_device_mesh

    try:
        from torch.distributed.fsdp import fully_shard
    except ImportError:  # before torch 2.6
        from torch.distributed._composable.fsdp import fully_shard

    mesh = init_device_mesh(device.type, (torch.distributed.get_world_size(),))
    for unit in units(model):
        fully_shard(unit, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def _fsdp1(model: nn.Module, device: torch.device) -> nn.Module:
    from torch.distributed.fsdp import FullyShardedDataParallel

    chosen = set(units(model))

    def policy(module: nn.Module, recurse: bool, **_: Any) -> bool:
        return recurse or module in chosen

    return FullyShardedDataParallel(model, auto_wrap_policy=policy, use_orig_params=True, device_id=device)


def units(model: nn.Module) -> list[nn.Module]:
    """The children that make an FSDP unit: those with parameters, of containers their elements.

    A child that shares a parameter with the rest of the model belongs to the root's unit.
    """
    candidates = list(_children(model))
    count: dict[int, int] = {}
    for candidate in candidates:
        for parameter in {id(p) for p in candidate.parameters()}:
            count[parameter] = count.get(parameter, 0) + 1
    own = {id(p) for p in model.parameters(recurse=False)}
    return [
        candidate
        for candidate in candidates
        if all(count[id(p)] == 1 and id(p) not in own for p in candidate.parameters())
    ]


def _children(model: nn.Module) -> Iterator[nn.Module]:
    for child in model.children():
        if isinstance(child, nn.ModuleList | nn.ModuleDict):
            yield from _children(child)
        elif any(True for _ in child.parameters()):
            yield child
