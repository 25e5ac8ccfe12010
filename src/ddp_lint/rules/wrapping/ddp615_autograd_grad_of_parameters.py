from __future__ import annotations

import libcst as cst

from ddp_lint.rules.base import Rule
from ddp_lint.rules.triggers import Triggers
from ddp_lint.source import dotted
from ddp_lint.source.tree import descendants, subtree
from ddp_lint.view.wraps import argument


class AutogradGradOfParameters(Rule):
    """torch.autograd.grad of a wrapped model's parameters skips the wrapper's reduction.

    ## What it does

    Finds `torch.autograd.grad(loss, model.parameters())` where `model` is wrapped with DDP or FSDP.

    ## Why it breaks

    DDP reduces in hooks that run when a gradient is accumulated into `.grad`. `autograd.grad` returns gradients
    without accumulating, so rank 0 gets those of its batch and rank 1 those of its own. Measured on 2 x H200 (NCCL,
    torch 2.11) and on gloo (torch 2.13): DDP ranks differ by 0.0099 without an error; FSDP2 finds no gradient and
    is 0.023 off; FSDP1 raises.

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

    torch.manual_seed(0)
    model = DDP(torch.nn.Linear(4, 4).to(device))
    for _ in range(2):
        loss = model(torch.randn(8, 4, device=device) + dist.get_rank()).square().mean()
        gradients = torch.autograd.grad(loss, model.parameters())  # <- DDP615
        with torch.no_grad():
            for p, g in zip(model.parameters(), gradients):
                p -= 0.1 * g

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

    torch.manual_seed(0)
    model = DDP(torch.nn.Linear(4, 4).to(device))
    for _ in range(2):
        loss = model(torch.randn(8, 4, device=device) + dist.get_rank()).square().mean()
        loss.backward()
        with torch.no_grad():
            for p in model.parameters():
                p -= 0.1 * p.grad
                p.grad = None

    dist.destroy_process_group()
    ```

    ## When it is silent

    Gradients with respect to data, as in a gradient penalty; models that are not seen to be wrapped; a function
    that reduces the gradients itself.

    ## How to confirm

    `ddp-lint verify train.py`: the parameters of the ranks differ after the step.

    ## Fix safety

    No automatic fix.

    ## References

    - https://pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html
    """

    triggers = Triggers(
        "grad",
        "DistributedDataParallel",
        "fully_shard",
        "FullyShardedDataParallel",
        file=("DistributedDataParallel", "fully_shard", "FullyShardedDataParallel"),
    )
    oracles = ("gradient", "parameter", "nograd", "exception")

    def visit_Call(self, node: cst.Call) -> None:
        if self.module.qualified(node.func) != "torch.autograd.grad":
            return
        for call in self._calls(argument(node, 1, "inputs")):
            owner, _, method = dotted(call.func).rpartition(".")
            owner = owner.removesuffix(".module")
            wrap = self.module.wraps.around(owner, node) if method == "parameters" else None
            if wrap is not None and not self._reduces(node):
                self.report(
                    node,
                    f"gradients of `{owner}` are computed without its hooks: they are not averaged between ranks",
                    notes=[
                        "without accumulating them no hook of the wrapper runs: rank 0 and rank 1 keep "
                        "the gradients of their own batches"
                    ],
                    labels=[(wrap.place, "wrapped here")],
                    help="call backward() and read p.grad, or all_reduce the gradients on every rank",
                )
                return

    def _calls(self, inputs: cst.BaseExpression | None) -> list[cst.Call]:
        """The calls that make the inputs, where they are or where their name got its value."""
        if inputs is None:
            return []
        made = self.module.assignments(inputs, inputs) if isinstance(inputs, cst.Name) else [inputs]
        return [n for value in made for n in subtree(value) if isinstance(n, cst.Call)]

    def _reduces(self, node: cst.CSTNode) -> bool:
        function = self.module.scope_of(node)
        return any(
            isinstance(n, cst.Call) and dotted(n.func).rpartition(".")[2] in ("all_reduce", "reduce_scatter_tensor")
            for n in descendants(function)
        )
