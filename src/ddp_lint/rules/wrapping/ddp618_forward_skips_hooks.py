from __future__ import annotations

import libcst as cst

from ddp_lint.findings import Applicability, Confidence, Edit, Fix, Span
from ddp_lint.rules.triggers import Triggers
from ddp_lint.rules.wrapping.sharded import CallOnSharded, owner_of
from ddp_lint.source import dotted
from ddp_lint.view.wraps import Wrap


class ForwardSkipsHooks(CallOnSharded):
    """forward is called directly on a sharded model, so its hooks do not run.

    ## What it does

    Finds `model.forward(x)` on a model that `fully_shard` wrapped, and `self.module.forward(...)` inside the
    `forward` of a wrapper class in a file about FSDP.

    ## Why it breaks

    FSDP2 gathers the parameters in a forward pre-hook and frees them in a forward hook, and only `model(x)` runs
    hooks. After a direct `forward` every rank computes on its shard: a DTensor error, or in a custom wrapper
    parameters that are never gathered and gradients that are never reduced.

    ## Example

    ```python
    import os

    import torch
    import torch.distributed as dist
    from torch.distributed.fsdp import fully_shard

    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.is_available() else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")

    model = torch.nn.Linear(4, 4, device=device)
    fully_shard(model)
    model.forward(torch.randn(8, 4, device=device)).square().mean().backward()  # <- DDP618

    dist.destroy_process_group()
    ```

    ## Use instead

    ```python
    import os

    import torch
    import torch.distributed as dist
    from torch.distributed.fsdp import fully_shard

    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.is_available() else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")

    model = torch.nn.Linear(4, 4, device=device)
    fully_shard(model)
    model(torch.randn(8, 4, device=device)).square().mean().backward()

    dist.destroy_process_group()
    ```

    ## When it is silent

    `super().forward(...)`, DDP and FSDP1 objects (their own `forward` does the work), files without FSDP.

    ## How to confirm

    `ddp-lint verify train.py`: the DTensor error at the line.

    ## Fix safety

    Safe: `model(x)` calls `forward`.

    ## References

    - https://pytorch.org/docs/stable/distributed.fsdp.fully_shard.html
    """

    triggers = Triggers("forward", "fully_shard", file=("fully_shard", "FullyShardedDataParallel", "FSDP", "fsdp"))
    oracles = ("exception",)

    kinds = ("fsdp2",)

    def model_of(self, node: cst.Call) -> str:
        return owner_of(node, "forward")

    def visit_Call(self, node: cst.Call) -> None:
        super().visit_Call(node)
        if dotted(node.func) == "self.module.forward" and self._in_forward(node):
            wrap = self.module.wraps.of("self.module", node)
            if wrap is None or wrap.kind not in self.kinds:
                self._report(node, "self.module", [], Confidence.MEDIUM)

    def found(self, node: cst.Call, name: str, wrap: Wrap) -> None:
        self._report(node, name, [(wrap.place, "wrapped with fully_shard here")], Confidence.HIGH)

    def _in_forward(self, node: cst.CSTNode) -> bool:
        function, owner = self.module.function_of(node), self.module.class_of(node)
        return (
            function is not None
            and function.name.value == "forward"
            and owner is not None
            and ("fsdp" in owner.name.value.lower() or "shard" in owner.name.value.lower())
        )

    def _report(
        self, node: cst.Call, owner: str, labels: list[tuple[cst.CSTNode | Span, str]], confidence: Confidence
    ) -> None:
        edit = Edit(self.module.span(node.func), owner)
        self.report(
            node,
            f"`{owner}.forward(...)` runs no hooks: the parameters are not gathered, each rank computes on its shard",
            labels=labels,
            help=f"call `{owner}(...)`",
            confidence=confidence,
            fix=Fix("call the module", Applicability.SAFE, (edit,)),
        )
