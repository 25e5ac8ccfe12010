from __future__ import annotations

import libcst as cst

from ddp_lint.rules.base import Rule
from ddp_lint.rules.triggers import Triggers
from ddp_lint.source.tree import descendants, method_of
from ddp_lint.view.wraps import root_name


class StepInGradientHook(Rule):
    """A hook uses a parameter's gradient before DDP has averaged it.

    ## What it does

    Finds `register_post_accumulate_grad_hook` or `register_hook` on the parameters of a DDP model where the hook
    steps an optimizer or writes the parameter.

    ## Why it breaks

    These hooks run when the local gradient is ready; DDP averages a bucket later. Rank 0 steps with its own
    gradient and rank 1 with its own. Measured on 2 x H200 (NCCL, torch 2.11) and on gloo (torch 2.13): ranks differ
    after two steps, without an error.

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
    optimizers = {p: torch.optim.SGD([p], lr=0.1) for p in model.parameters()}


    def step(p):
        optimizers[p].step()
        optimizers[p].zero_grad()


    for p in model.parameters():
        p.register_post_accumulate_grad_hook(step)  # <- DDP616
    for _ in range(2):
        model(torch.randn(8, 4, device=device) + dist.get_rank()).square().mean().backward()


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
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        model(torch.randn(8, 4, device=device) + dist.get_rank()).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    dist.destroy_process_group()
    ```

    ## When it is silent

    Hooks that only record or scale, models that are not wrapped with DDP in sight, FSDP2 (its hooks see the reduced
    gradient).

    ## How to confirm

    `ddp-lint verify train.py`: the parameters of the ranks differ after the step.

    ## Fix safety

    No automatic fix: step after backward, or register a DDP communication hook.

    ## References

    - https://pytorch.org/docs/stable/ddp_comm_hooks.html
    """

    triggers = Triggers(
        "register_post_accumulate_grad_hook",
        "register_hook",
        "step",
        "DistributedDataParallel",
        file=("register_post_accumulate_grad_hook", "register_hook"),
    )
    oracles = ("parameter", "gradient")

    def visit_Call(self, node: cst.Call) -> None:
        if not isinstance(node.func, cst.Attribute) or not node.args:
            return
        if node.func.attr.value not in ("register_post_accumulate_grad_hook", "register_hook"):
            return
        loop = next((up for up in self.module.ancestors(node) if isinstance(up, cst.For)), None)
        wrap = self.module.wraps.around(root_name(loop.iter), node) if loop is not None else None
        step = self._step_in(node.args[0].value)
        if wrap is not None and wrap.kind == "ddp" and step is not None:
            self.report(
                node,
                "the hook steps with the gradient before DDP has averaged it: the replicas drift apart",
                notes=["rank 0 and rank 1 take different steps, without an error"],
                labels=[(step, "steps here"), (wrap.place, f"`{wrap.outer}` is wrapped here")],
                help="step after backward(), or register a DDP communication hook",
            )

    def _step_in(self, hook: cst.BaseExpression) -> cst.Call | None:
        body: cst.CSTNode | None = hook if isinstance(hook, cst.Lambda) else None
        if isinstance(hook, cst.Name):
            body = next(
                (
                    n
                    for n in descendants(self.module.tree)
                    if isinstance(n, cst.FunctionDef) and n.name.value == hook.value
                ),
                None,
            )
        calls = [n for n in descendants(body) if isinstance(n, cst.Call)] if body is not None else []
        return next((c for c in calls if method_of(c) == "step"), None)
