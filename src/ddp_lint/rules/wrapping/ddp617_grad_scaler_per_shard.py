from __future__ import annotations

import libcst as cst

from ddp_lint.rules.base import Rule
from ddp_lint.rules.triggers import Triggers
from ddp_lint.source import dotted
from ddp_lint.source.control_flow import chosen_apart, opposed
from ddp_lint.source.queries import calls_in, is_false
from ddp_lint.view.wraps import argument

_SCALERS = ("torch.amp.GradScaler", "torch.cuda.amp.GradScaler", "torch.cuda.amp.grad_scaler.GradScaler")
_SHARDED = "sharded_grad_scaler.ShardedGradScaler"


class GradScalerPerShard(Rule):
    """With a plain GradScaler each FSDP1 rank decides on its own whether to skip a step.

    ## What it does

    Finds `torch.amp.GradScaler` (or `torch.cuda.amp.GradScaler`) in a function or class that wraps with
    FullyShardedDataParallel.

    ## Why it breaks

    The scaler looks for infinities in the gradients that the rank holds, which is a shard. When only rank 0's shard
    overflows, rank 0 skips the step and halves its scale while rank 1 steps and keeps it. Measured (gloo and NCCL):
    scale 2 on rank 0, 4 on rank 1, no error. FSDP2's DTensors agree (measured 2 and 2).

    ## Example

    ```python
    import os

    import torch
    import torch.distributed as dist
    from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
    from torch.amp import GradScaler

    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.is_available() else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")

    model = FSDP(torch.nn.Linear(4, 4).to(device), use_orig_params=True, device_id=device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = GradScaler(device.type, init_scale=4.0)  # <- DDP617
    scaler.scale(model(torch.randn(8, 4, device=device)).square().mean()).backward()
    if dist.get_rank() == 0:  # one shard overflows
        next(p for p in model.parameters() if p.grad is not None).grad.view(-1)[0] = float("inf")
    scaler.step(optimizer)
    scaler.update()
    print(dist.get_rank(), scaler.get_scale())

    dist.destroy_process_group()
    ```

    ## Use instead

    ```python
    import os

    import torch
    import torch.distributed as dist
    from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
    from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.is_available() else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")

    model = FSDP(torch.nn.Linear(4, 4).to(device), use_orig_params=True, device_id=device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = ShardedGradScaler(device.type, init_scale=4.0)
    scaler.scale(model(torch.randn(8, 4, device=device)).square().mean()).backward()
    scaler.step(optimizer)
    scaler.update()
    print(dist.get_rank(), scaler.get_scale())

    dist.destroy_process_group()
    ```

    ## When it is silent

    `ShardedGradScaler`, DDP and FSDP2 models, a scaler created with `enabled=False`, functions that create the kind of
    scaler that the wrapper needs, a scaler that the same test sends a run to which does not shard, and a scaler in an
    object that is created again after the model is sharded.

    ## How to confirm

    `ddp-lint verify train.py`: the scale differs between the ranks after `update()`.

    ## Fix safety

    No automatic fix: `ShardedGradScaler` is imported from `torch.distributed.fsdp.sharded_grad_scaler`.

    ## References

    - https://pytorch.org/docs/stable/fsdp.html
    """

    triggers = Triggers("GradScaler", "FullyShardedDataParallel", file=("FullyShardedDataParallel",))
    oracles = ("value",)

    def visit_Call(self, node: cst.Call) -> None:
        if self.module.qualified(node.func) not in _SCALERS or is_false(argument(node, None, "enabled")):
            return
        here, owner = self.module.function_of(node), self.module.class_of(node)
        if any(self.module.qualified(call.func).endswith(_SHARDED) for call in calls_in(here or self.module.tree)):
            return
        for wrap in self.module.wraps.all:
            same_function = self.module.function_of(wrap.call) is here
            same_class = owner is not None and self.module.class_of(wrap.call) is owner
            together = (same_function or same_class) and not opposed(self.module, node, wrap.call)
            together = together and not chosen_apart(self.module, node, wrap.call)
            if wrap.kind == "fsdp1" and together and not self._is_replaced(node, wrap.call):
                self.report(
                    node,
                    "the scaler checks this rank's shard only: one rank skips a step that another takes",
                    notes=["rank 0 and rank 1 then continue with different loss scales"],
                    labels=[(wrap.place, "sharded with FSDP1 here")],
                    help="use torch.distributed.fsdp.sharded_grad_scaler.ShardedGradScaler",
                )
                return

    def _is_replaced(self, node: cst.Call, wrap: cst.Call) -> bool:
        """Whether what the scaler went into is made again once the model is sharded:
        ``stepper = Stepper(GradScaler())``, then ``model = FSDP(model)`` and ``stepper = ShardedStepper()``."""
        around = next((up for up in self.module.ancestors(node) if isinstance(up, cst.Assign)), None)
        name = dotted(around.targets[0].target) if around is not None and around.value is not node else ""
        bound = (
            [b for b in self.module.bindings(name, wrap) if b.value is not None and b.node is not around]
            if name
            else []
        )
        return any(self.module.span(b.node).line > self.module.span(wrap).line for b in bound)
