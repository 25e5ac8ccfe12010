from __future__ import annotations

import libcst as cst

from ddp_lint.rules.triggers import Triggers
from ddp_lint.rules.wrapping.sharded import CallOnSharded, first_argument
from ddp_lint.view.wraps import Wrap


class CopyOfShardedModel(CallOnSharded):
    """A sharded model is deep-copied.

    ## What it does

    Finds `copy.deepcopy(model)` on a model that FSDP1 or `fully_shard` has wrapped, as for an EMA or a reference
    model.

    ## Why it breaks

    FSDP models hold process groups and sharded parameters that cannot be copied. Measured on 2 x H200 (NCCL, torch
    2.11) and on gloo (torch 2.13): FSDP1 raises "TypeError: cannot pickle 'module' object" and FSDP2
    "AssertionError: FSDP does not support deepcopy." on every rank. DDP models can be copied.

    ## Example

    ```python
    import copy
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
    reference = copy.deepcopy(model)  # <- DDP609

    dist.destroy_process_group()
    ```

    ## Use instead

    ```python
    import copy
    import os

    import torch
    import torch.distributed as dist
    from torch.distributed.fsdp import fully_shard

    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.is_available() else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")

    model = torch.nn.Linear(4, 4, device=device)
    reference = copy.deepcopy(model)
    fully_shard(model)
    fully_shard(reference)

    dist.destroy_process_group()
    ```

    ## When it is silent

    Copies made before the wrap, copies of DDP models, copies of a state dict.

    ## How to confirm

    `ddp-lint verify train.py`: the exception at the line.

    ## Fix safety

    No automatic fix: copy first, then wrap both.

    ## References

    - https://pytorch.org/docs/stable/distributed.fsdp.fully_shard.html
    """

    triggers = Triggers("deepcopy", "fully_shard", "FullyShardedDataParallel", file=("torch",))
    oracles = ("exception",)

    def model_of(self, node: cst.Call) -> str:
        return first_argument(node) if self.module.qualified(node.func) == "copy.deepcopy" else ""

    def found(self, node: cst.Call, name: str, wrap: Wrap) -> None:
        self.report(
            node,
            f"`{name}` is deep-copied, but its parameters are sharded: this raises on every rank",
            labels=[(wrap.place, "sharded here")],
            help="copy the model before it is wrapped, and wrap both",
        )
