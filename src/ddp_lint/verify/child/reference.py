"""The single-process twin: the same training without a wrapper, on the full batch and as ideal replicas."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping

import torch
from torch import nn

from ddp_lint.verify import trace
from ddp_lint.verify.child.inputs import Batch, Builder, call, seed_all
from ddp_lint.verify.child.loss import loss_of
from ddp_lint.verify.child.models import Model, clean, local
from ddp_lint.verify.child.single_rank_group import alone

LEARNING_RATE = 0.05
_SEED = 1234
#: Largest difference, relative to the size of the parameter, at which two runs count as equal.
_CLOSE = 1e-5

Tensors = Mapping[str, torch.Tensor]


@dataclasses.dataclass(frozen=True)
class Trained:
    """The parameters after the last step, the gradients of the first, and the parameters that had none."""

    parameters: Tensors
    gradients: Tensors
    no_gradient: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Twin:
    """`full`: one process on the full batch, None when the ranks' batches cannot be joined; `replicas`: each rank's
    batch on a replica of its own, gradients averaged, as DDP means it."""

    full: Trained | None
    replicas: Trained
    repeatable: bool

    @property
    def separable(self) -> bool:
        """The model is a mean over samples: both runs agree (not so with BatchNorm, dropout, a summed loss).

        Parameters behind small gradients hardly move in a few steps: the gradients are asked as well.
        """
        if self.full is None:
            return False
        full, replicas = self.full, self.replicas
        found = [
            *differences(full.parameters, replicas.parameters).items(),
            *differences(full.gradients, replicas.gradients).items(),
        ]
        return all(value <= _CLOSE * max(1.0, _size(full.parameters[name])) for name, value in found)


def seed_step(step: int, offset: int = 0) -> None:
    """Before each step all runs seed alike, so that dropout draws alike."""
    seed_all(_SEED + step + offset)


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), LEARNING_RATE)


def compute(builder: Builder, steps: int, world: int, device: torch.device, wrap: str) -> Twin:
    """Train the twins of a model under a wrap. Raises what the model raises."""
    with alone():
        first, second = _full(builder, steps, world, device), _full(builder, steps, world, device)
        repeatable = True
        if first is not None and second is not None:
            found = differences(first.parameters, second.parameters)
            repeatable = all(value == 0 for value in found.values())
        replicas = _replicas(builder, steps, world, device, broadcast=not wrap.startswith("fsdp"))
        return Twin(first, replicas, repeatable)


def _full(builder: Builder, steps: int, world: int, device: torch.device) -> Trained | None:
    batches = [builder.full_batch(step, world) for step in range(steps)]
    model = builder.build(device)
    batches = [builder.full_batch(step, world) for step in range(steps)]
    if any(batch is None for batch in batches):
        return None
    optimizer = optimizer_of(model)
    gradients: Tensors = {}
    for step, batch in enumerate(batches):
        assert batch is not None
        _step(model, batch.to(device), step)
        gradients = gradients or _gradients(model)
        optimizer.step()
        optimizer.zero_grad()
    return _trained(model, gradients)


def _replicas(builder: Builder, steps: int, world: int, device: torch.device, *, broadcast: bool) -> Trained:
    """As DDP: the mean of the gradients after each backward, and with `broadcast` the buffers of replica 0 before each
    forward (under FSDP each rank has its own)."""
    replicas = [builder.build(device) for _ in range(world)]
    optimizers = [optimizer_of(replica) for replica in replicas]
    gradients: Tensors = {}
    for step in range(steps):
        for rank, replica in enumerate(replicas):
            _copy_buffers(replicas[0], replica) if rank and broadcast else None
        for rank, replica in enumerate(replicas):
            _step(replica, builder.batch(step, rank).to(device), step)
        _average(replicas)
        gradients = gradients or _gradients(replicas[0])
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    return _trained(replicas[0], gradients)


def _step(model: nn.Module, batch: Batch, step: int) -> None:
    seed_step(step)
    loss_of(call(model, batch)).backward()


def _copy_buffers(source: nn.Module, target: nn.Module) -> None:
    with torch.no_grad():
        for mine, other in zip(target.buffers(), source.buffers(), strict=True):
            mine.copy_(other)


def _average(replicas: list[nn.Module]) -> None:
    for row in zip(*(replica.parameters() for replica in replicas), strict=True):
        grads = [p.grad for p in row if p.grad is not None]
        if grads:
            mean = torch.stack(grads).sum(0) / len(row)
            for p in row:
                p.grad = mean.clone()


def _gradients(model: nn.Module) -> Tensors:
    return {clean(name): p.grad.detach().clone() for name, p in model.named_parameters() if p.grad is not None}


def _trained(model: nn.Module, gradients: Tensors) -> Trained:
    parameters = {clean(name): p.detach().clone() for name, p in model.named_parameters()}
    without = tuple(clean(n) for n, p in model.named_parameters() if p.requires_grad and clean(n) not in gradients)
    return Trained(parameters, gradients, without)


# ---- comparing


def compare(model: Model, twin: Twin, gradients: Tensors, rank: int, world: int) -> trace.Reference:
    """The wrapped run on this rank, compared with the twins. FSDP1 gathers: all ranks must be at this point."""
    parameters = _whole_or_shard(model)
    full = _part(twin.full, model, rank, world) if twin.full is not None else None
    replicas = _part(twin.replicas, model, rank, world)
    common = full or replicas
    return trace.Reference(
        parameters=differences(parameters, full.parameters) if full else {},
        gradients=differences(gradients, full.gradients) if full else {},
        shard_parameters=differences(parameters, replicas.parameters),
        shard_gradients=differences(gradients, replicas.gradients),
        scale={name: _size(tensor) for name, tensor in twin.replicas.parameters.items()},
        # Unwrapped ranks train on the full batch themselves.
        separable=twin.separable or (model.wrap == "none" and twin.full is not None),
        repeatable=twin.repeatable,
        missing=tuple(sorted(set(parameters) ^ set(common.parameters))),
    )


def _whole_or_shard(model: Model) -> Tensors:
    """The parameters of this rank: whole under DDP and FSDP1 (which gathers them), the shard under FSDP2."""
    gather = contextlib.nullcontext()
    if model.wrap == "fsdp1":
        from torch.distributed.fsdp import FullyShardedDataParallel

        gather = FullyShardedDataParallel.summon_full_params(model.root, writeback=False)
    with gather:
        return {name: local(p.detach()).clone() for name, p in model.parameters().items()}


def gradients_now(model: Model) -> Tensors:
    """The gradients of this rank; none under FSDP1, whose gradients are flat."""
    if model.wrap == "fsdp1":
        return {}
    return {n: local(p.grad.detach()).clone() for n, p in model.parameters().items() if p.grad is not None}


def _part(trained: Trained, model: Model, rank: int, world: int) -> Trained:
    """The reference as the model holds it: under FSDP2 the shard of this rank along the first dimension."""
    if model.wrap != "fsdp2":
        return trained
    sharded = {name for name, p in model.parameters().items() if local(p) is not p}

    def cut(tensors: Tensors) -> Tensors:
        return {name: _shard(tensor, rank, world) if name in sharded else tensor for name, tensor in tensors.items()}

    return Trained(cut(trained.parameters), cut(trained.gradients), trained.no_gradient)


def _shard(tensor: torch.Tensor, rank: int, world: int) -> torch.Tensor:
    chunks = torch.chunk(tensor, world, dim=0) if tensor.dim() else (tensor,)
    return chunks[rank] if rank < len(chunks) else tensor[:0]


def differences(found: Tensors, expected: Tensors) -> dict[str, float]:
    """The largest absolute difference by name; infinite where shapes differ, NaN where one is not a number."""
    return {name: _difference(found[name], expected[name]) for name in found if name in expected}


def _difference(a: torch.Tensor, b: torch.Tensor) -> float:
    if a.shape != b.shape:
        return float("inf")
    a, b = _dense(a), _dense(b)
    return float((a.double() - b.double().to(a.device)).abs().max()) if a.numel() else 0.0


def _size(tensor: torch.Tensor) -> float:
    return float(_dense(tensor).abs().max()) if tensor.numel() else 0.0


def _dense(tensor: torch.Tensor) -> torch.Tensor:
    """Gradients of an embedding may be sparse, and have no maximum."""
    return tensor if tensor.layout == torch.strided else tensor.to_dense()
