"""The wrappers under which a model is trained."""

from __future__ import annotations

import collections
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn


def wrap(model: nn.Module, kind: str, device: torch.device) -> nn.Module:
    """The model under `kind`: ddp, fsdp2, fsdp1 or none. FSDP shards each block and the root."""
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
    """The parts that make an FSDP unit, as users choose them: blocks, not single layers.

    A block is a child (of a list or dict of modules: an element) with parameters that is of the user's own class, or
    that has children with parameters. One that shares a parameter with the rest of the model belongs to the root.
    """
    blocks = [child for child in _children(model) if _is_block(child)]
    inside = [{id(p) for p in block.parameters()} for block in blocks]
    everywhere = collections.Counter(id(p) for _, p in model.named_parameters(remove_duplicate=False))
    within = [collections.Counter(id(p) for _, p in b.named_parameters(remove_duplicate=False)) for b in blocks]
    return [
        block
        for block, own, counts in zip(blocks, inside, within, strict=True)
        if all(counts[number] == everywhere[number] for number in own)
    ]


def _children(model: nn.Module) -> Iterator[nn.Module]:
    for child in model.children():
        if isinstance(child, nn.ModuleList | nn.ModuleDict):
            yield from _children(child)
        elif any(True for _ in child.parameters()):
            yield child


def _is_block(module: nn.Module) -> bool:
    of_torch = type(module).__module__.startswith("torch.nn.modules")
    return not of_torch or any(any(True for _ in child.parameters()) for child in module.children())
