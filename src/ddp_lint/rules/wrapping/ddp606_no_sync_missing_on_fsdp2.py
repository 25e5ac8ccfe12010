from __future__ import annotations

import re

import libcst as cst

from ddp_lint.rules.triggers import Triggers
from ddp_lint.rules.wrapping.sharded import CallOnSharded, owner_of
from ddp_lint.source import dotted
from ddp_lint.source.queries import literal_text
from ddp_lint.view.wraps import Wrap


class NoSyncMissingOnFsdp2(CallOnSharded):
    """A fully_shard model has no `no_sync` method.

    ## What it does

    Finds `getattr(model, "no_sync", default)` where the file also shards with FSDP2 and never calls
    `set_requires_gradient_sync`, and `model.no_sync()` on a model that `fully_shard` wrapped.

    ## Why it breaks

    FSDP2 models have no `no_sync`. `getattr` with a default falls back silently, so every micro-batch reduce-scatters
    its gradients on every rank: the accumulation is correct, but each micro-batch communicates. A plain call raises
    AttributeError on every rank.

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
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with model.no_sync():  # <- DDP606
        model(torch.randn(8, 4, device=device)).square().mean().backward()
    model(torch.randn(8, 4, device=device)).square().mean().backward()
    optimizer.step()

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
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model.set_requires_gradient_sync(False)
    model(torch.randn(8, 4, device=device)).square().mean().backward()
    model.set_requires_gradient_sync(True)
    model(torch.randn(8, 4, device=device)).square().mean().backward()
    optimizer.step()

    dist.destroy_process_group()
    ```

    ## When it is silent

    Files without FSDP2, and files that call `set_requires_gradient_sync`, which is the replacement in FSDP2.

    ## How to confirm

    `ddp-lint verify train.py`: AttributeError at the line; for the `getattr` form count the reduce-scatters.

    ## Fix safety

    No automatic fix: FSDP2 switches the synchronisation on and off by a method, not by a context.

    ## References

    - https://pytorch.org/docs/stable/distributed.fsdp.fully_shard.html#torch.distributed.fsdp.FSDPModule.set_requires_gradient_sync
    """

    triggers = Triggers("no_sync", "fully_shard", file=("no_sync",))
    oracles = ("exception",)

    kinds = ("fsdp2",)

    def start(self) -> None:
        text = self.module.file.code
        self._knows_fsdp2 = re.search(r"\b(fully_shard|is_fsdp2|fsdp2|FSDP2|FSDPModule)\b", text) is not None
        self._uses_the_method = "set_requires_gradient_sync" in text

    def visit_Call(self, node: cst.Call) -> None:
        if self._uses_the_method:
            return
        if dotted(node.func) != "getattr" or len(node.args) != 3:
            super().visit_Call(node)
        elif self._knows_fsdp2 and literal_text(node.args[1].value) == "no_sync":
            self.report(
                node,
                "a fully_shard model has no `no_sync`: every micro-batch reduce-scatters its gradients on every rank",
                notes=["the default is used silently"],
                help="for FSDP2 call model.set_requires_gradient_sync(False) and (True) around accumulation",
            )

    def model_of(self, node: cst.Call) -> str:
        return owner_of(node, "no_sync")

    def found(self, node: cst.Call, name: str, wrap: Wrap) -> None:
        self.report(
            node,
            f"`{wrap.outer}` was wrapped with fully_shard and has no `no_sync`: AttributeError on every rank",
            labels=[(wrap.place, "wrapped with FSDP2 here")],
            help="call model.set_requires_gradient_sync(False) and (True) around accumulation",
        )
